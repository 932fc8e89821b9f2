"""The proxies on the real default model, against the attention that Transformers itself computes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from tightfit.proxies.kv import retention_curve
from tightfit.proxies.kv.attention import attention_mass
from tightfit.proxies.kv.errors import attention_output, relative_error
from tightfit.proxies.kv.rank import low_rank_cache, principal_directions
from tightfit.proxies.kv.similarity import block_similarity
from tightfit.workers.models import LoadedModel, load_model

TEXT = (
    "A list comprehension consists of brackets containing an expression followed by a for clause, then zero "
    "or more for or if clauses. The result will be a new list resulting from evaluating the expression in "
    "the context of the for and if clauses which follow it. For example, this comprehension combines the "
    "elements of two lists if they are not equal, and it is equivalent to two nested loops."
)
OBSERVED = 16


@dataclass
class Seen:
    """What the model's own forward says: its cache, queries, attention weights and text."""

    loaded: LoadedModel
    ids: Tensor
    keys: list[Tensor]
    values: list[Tensor]
    queries: list[Tensor]
    weights: list[Tensor]


@pytest.fixture(scope="module")
def seen() -> Seen:
    loaded = load_model("smollm2-135m")
    model = loaded.model
    model.set_attn_implementation("eager")
    ids = torch.tensor(loaded.tokenizer(TEXT).input_ids)
    projected: list[Tensor] = []
    handles = [
        block.self_attn.q_proj.register_forward_hook(lambda module, inputs, output: projected.append(output))
        for block in model.model.layers
    ]
    with torch.no_grad():
        output = model(input_ids=ids[None], use_cache=True, output_attentions=True)
    for handle in handles:
        handle.remove()
    cosine, sine = model.model.rotary_emb(projected[0], torch.arange(len(ids))[None])
    queries = []
    for states in projected:
        heads = states.view(1, len(ids), 9, 64).transpose(1, 2)
        rotated, _ = apply_rotary_pos_emb(heads, heads, cosine, sine)
        queries.append(rotated[:, :, -OBSERVED:])
    layers = output.past_key_values.layers
    return Seen(
        loaded, ids, [x.keys for x in layers], [x.values for x in layers], queries, list(output.attentions)
    )


@pytest.mark.real
def test_mass_is_that_of_the_model_itself(seen):
    assert len(seen.ids) < 200
    for queries, keys, weights in zip(seen.queries, seen.keys, seen.weights, strict=True):
        expected = weights[:, :, -OBSERVED:].mean(2).reshape(1, 3, 3, -1).mean(2)
        torch.testing.assert_close(attention_mass(queries, keys, 0.125), expected, atol=1e-4, rtol=0)


@pytest.mark.real
def test_the_first_token_is_a_sink_and_few_tokens_hold_most_of_the_mass(seen):
    masses = [attention_mass(q, k, 0.125) for q, k in zip(seen.queries, seen.keys, strict=True)]
    first = np.array([mass[..., 0].mean().item() for mass in masses])
    assert np.median(first) > 0.3
    curves = [retention_curve(mass) for mass in masses]
    needed = [curve.needed(0.9) for curve in curves]
    assert max(needed) < len(seen.ids)
    assert max(needed) > 2 * min(needed)  # layers differ, or there would be nothing to allocate


@pytest.mark.real
def test_attention_changes_hidden_states_less_than_whole_blocks(seen):
    found = block_similarity(seen.loaded.model, seen.loaded.geometry, [seen.ids])
    assert found.attention.shape == found.block.shape == (30,)
    assert ((found.attention > 0) & (found.attention <= 1)).all()
    # The first block's MLP replaces the embedding: nothing is left of its direction.
    assert abs(found.block[0]) < 0.1
    assert ((found.block[1:] > 0.5) & (found.block[1:] < 1)).all()
    assert np.mean(found.attention > found.block) > 0.8


@pytest.mark.real
def test_rank_loses_less_the_higher_it_is(seen):
    keys, values, queries = seen.keys[10], seen.values[10], seen.queries[10]
    directions = principal_directions([keys]), principal_directions([values])
    exact = attention_output(queries, keys, values, 0.125)
    errors, sizes = [], []
    for rank in (8, 16, 32, 64):
        read_keys, read_values, size = low_rank_cache(keys, values, directions, (rank, rank))
        errors.append(relative_error(exact, attention_output(queries, read_keys, read_values, 0.125)))
        sizes.append(size)
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 1e-5 < errors[0] < 1
    assert sizes == [len(seen.ids) * 3 * rank * 2 * 2 for rank in (8, 16, 32, 64)]
