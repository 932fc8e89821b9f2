from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tightfit.compress import input_energy, watch_inputs
from tightfit.spaces import EMBED, HEAD, Geometry

Tiny = Callable[[str], tuple[nn.Module, Geometry]]
WINDOWS = [torch.arange(9), torch.arange(40, 45)]


def hooks_of(model: nn.Module) -> int:
    return sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in model.modules())


def test_energy_is_the_mean_square_of_what_every_matrix_is_given(tiny: Tiny, family: str) -> None:
    model, geometry = tiny(family)
    inputs: dict[str, list[Tensor]] = {}
    with watch_inputs(model, geometry, lambda site, x: inputs.setdefault(site, []).append(x[0])):
        for window in WINDOWS:
            model(input_ids=window[None])
    energy = input_energy(model, geometry, WINDOWS)
    for site, seen in inputs.items():
        rows = torch.cat(seen).double()
        assert rows.shape == (14, geometry.linear(site).cols)
        torch.testing.assert_close(energy[site].double(), (rows**2).sum(0) / 14, rtol=1e-5, atol=0)
        assert energy[site].dtype == torch.float32
    assert set(energy) - {EMBED} == set(inputs)


def test_energies_of_one_layer_by_hand(tiny: Tiny) -> None:
    model, geometry = tiny("llama")
    energy = input_energy(model, geometry, WINDOWS)
    ids = torch.cat(WINDOWS)
    x = model.get_parameter("model.embed_tokens.weight")[ids]
    normed = x / (x.pow(2).mean(-1, keepdim=True) + model.config.rms_norm_eps).sqrt()
    normed = normed * model.get_parameter("model.layers.0.input_layernorm.weight")
    expected = normed.pow(2).mean(0)
    for name in ("q_proj", "k_proj", "v_proj"):
        torch.testing.assert_close(energy[f"layers.0.attn.{name}"], expected)


def test_a_tied_embedding_has_the_energy_of_the_head_and_an_untied_one_none(tiny: Tiny) -> None:
    tied = input_energy(*tiny("llama-tied"), WINDOWS)
    assert torch.equal(tied[EMBED], tied[HEAD])
    untied = input_energy(*tiny("llama"), WINDOWS)
    assert EMBED not in untied
    assert HEAD in untied


def test_windows_weigh_by_their_tokens(tiny: Tiny) -> None:
    model, geometry = tiny("llama")
    both = input_energy(model, geometry, WINDOWS)
    first, second = (input_energy(model, geometry, [window]) for window in WINDOWS)
    for site, value in both.items():
        torch.testing.assert_close(value, (9 * first[site] + 5 * second[site]) / 14, rtol=1e-5, atol=1e-12)


def test_every_matrix_but_the_embedding_is_watched_with_its_own_name(tiny: Tiny, family: str) -> None:
    model, geometry = tiny(family)
    seen: list[tuple[str, int]] = []
    with watch_inputs(model, geometry, lambda site, x: seen.append((site, x.shape[-1]))):
        model(input_ids=WINDOWS[0][None])
    assert sorted(seen) == sorted((x.site, x.cols) for x in geometry.linears if x.site != EMBED)


def test_no_hook_is_left_behind(tiny: Tiny, family: str) -> None:
    model, geometry = tiny(family)
    before = hooks_of(model)
    input_energy(model, geometry, WINDOWS)
    assert hooks_of(model) == before
    with pytest.raises(IndexError):  # a token that is not in the vocabulary
        input_energy(model, geometry, [WINDOWS[0], torch.tensor([1000])])
    assert hooks_of(model) == before
    with watch_inputs(model, geometry, lambda site, x: None):
        assert hooks_of(model) == before + len(geometry.linears) - 1
