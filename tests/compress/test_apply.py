from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tightfit.compress import Replica
from tightfit.spaces import EMBED, HEAD, Geometry, InputError

Tiny = Callable[[str], tuple[nn.Module, Geometry]]
IDS = torch.arange(12).view(1, -1)


def state_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def changed(before: dict[str, Tensor], model: nn.Module) -> set[str]:
    after = model.state_dict()
    assert set(before) == set(after)
    return {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}


def noise_like(matrix: Tensor) -> Tensor:
    return torch.randn(matrix.shape, generator=torch.Generator().manual_seed(matrix.numel()))


def test_one_matrix_is_replaced_and_nothing_else(tiny: Tiny, family: str) -> None:
    model, geometry = tiny(family)
    before, replica = state_of(model), Replica(model, geometry)
    for linear in geometry.linears:
        if linear.tied_to is not None:
            continue
        matrix = noise_like(replica.original(linear.site))
        assert matrix.shape == (linear.rows, linear.cols)
        replica.apply({linear.site: matrix})
        stored = model.get_parameter(f"{linear.path}.weight")
        assert torch.equal(stored.t() if linear.transposed else stored, matrix)
        tied = {f"{x.path}.weight" for x in geometry.linears if x.tied_to == linear.site}
        assert changed(before, model) == {f"{linear.path}.weight"} | tied
        replica.restore(linear.site)
        assert changed(before, model) == set()


def test_what_is_applied_is_what_the_model_multiplies_by(tiny: Tiny, family: str) -> None:
    model, geometry = tiny(family)
    replica, names = Replica(model, geometry), {linear.site: linear.path for linear in geometry.linears}
    matrices = {site: noise_like(replica.original(site)) for site in replica.sites}
    replica.apply(matrices)
    logits = model(input_ids=IDS).logits
    for site, matrix in matrices.items():
        module, seen = model.get_submodule(names[site]), {}
        if isinstance(module, nn.Embedding):
            continue
        handle = module.register_forward_hook(lambda m, x, y, seen=seen: seen.update(x=x[0], y=y))
        assert torch.equal(model(input_ids=IDS).logits, logits)
        handle.remove()
        bias = module.bias if module.bias is not None else 0.0
        torch.testing.assert_close(seen["y"], seen["x"] @ matrix.t() + bias, rtol=1e-3, atol=1e-3)


def test_restoring_gives_the_first_logits_again_bit_for_bit(tiny: Tiny, family: str) -> None:
    model, geometry = tiny(family)
    before, logits, replica = state_of(model), model(input_ids=IDS).logits, Replica(model, geometry)
    for _ in range(2):
        replica.apply({site: noise_like(replica.original(site)) for site in replica.sites})
        assert not torch.equal(model(input_ids=IDS).logits, logits)
        assert len(changed(before, model)) == len(geometry.linears)
        replica.restore()
        assert changed(before, model) == set()
        assert torch.equal(model(input_ids=IDS).logits, logits)


def test_writing_to_a_replaced_matrix_leaves_the_original_alone(tiny: Tiny, family: str) -> None:
    model, geometry = tiny(family)
    replica, site = Replica(model, geometry), "layers.1.attn." + ("c_attn" if family == "gpt2" else "q_proj")
    original = replica.original(site).clone()
    replica.apply({site: noise_like(original)})
    model.get_parameter(f"{geometry.linear(site).path}.weight").data.zero_()
    replica.restore(site)
    assert torch.equal(replica.original(site), original)


def test_a_tied_head_follows_the_embedding(tiny: Tiny) -> None:
    model, geometry = tiny("llama-tied")
    replica = Replica(model, geometry)
    assert HEAD not in replica.sites
    replica.apply({EMBED: noise_like(replica.original(EMBED))})
    assert torch.equal(model.get_output_embeddings().weight, model.get_input_embeddings().weight)
    untied, geometry = tiny("llama")
    assert HEAD in Replica(untied, geometry).sites


def test_the_dtype_of_the_model_is_kept(tiny: Tiny) -> None:
    model, geometry = tiny("llama")
    replica = Replica(model.bfloat16(), geometry)
    assert replica.dtype == torch.bfloat16
    site = replica.sites[0]
    replica.apply({site: noise_like(replica.original(site))})
    assert model.get_parameter(f"{geometry.linear(site).path}.weight").dtype == torch.bfloat16


def test_a_matrix_of_another_shape_is_refused(tiny: Tiny, family: str) -> None:
    model, geometry = tiny(family)
    replica, before = Replica(model, geometry), state_of(model)
    site = replica.sites[-1]
    rows, cols = replica.original(site).shape
    with pytest.raises(ValueError, match=rf"{site} is \({rows}, {cols}\), not \({rows}, {cols + 1}\)"):
        replica.apply({site: torch.zeros(rows, cols + 1)})
    assert changed(before, model) == set()


def test_a_model_that_is_not_what_its_config_says_is_refused(tiny: Tiny) -> None:
    model, geometry = tiny("llama")
    wider = [dataclasses.replace(x, rows=x.rows + 1) for x in geometry.linears]
    with pytest.raises(
        InputError, match=r"embed_tokens: the loaded weight is \(97, 32\), the config says \(98, 32\)"
    ):
        Replica(model, dataclasses.replace(geometry, linears=tuple(wider)))
    elsewhere = [dataclasses.replace(x, path=f"{x.path}.base") for x in geometry.linears]
    with pytest.raises(InputError, match=r"embed_tokens\.base: the loaded model has no such layer"):
        Replica(model, dataclasses.replace(geometry, linears=tuple(elsewhere)))
    norm = dataclasses.replace(geometry.linears[0], path="model.norm")
    with pytest.raises(InputError, match=r"model.norm: the loaded weight is \(32,\)"):
        Replica(model, dataclasses.replace(geometry, linears=(norm,)))


def test_a_head_that_is_not_tied_as_its_config_says_is_refused(tiny: Tiny) -> None:
    model, geometry = tiny("llama-tied")
    Replica(model, geometry)
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())
    with pytest.raises(InputError, match="lm_head: the config says it is tied to embed"):
        Replica(model, geometry)
