"""Names of tensors, against the ``gguf`` library's own list."""

from __future__ import annotations

import gguf
import pytest

from tightfit.exporters.gguf.architectures import ARCHITECTURES, gguf_name
from tightfit.spaces import FAMILIES, InputError, read_geometry

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
families = pytest.mark.parametrize("family", ARCHITECTURES)


@families
def test_sites_have_the_names_that_llama_cpp_gives_their_modules(family: str) -> None:
    geometry = read_geometry({**SIZES, "model_type": family, "n_layer": 2})
    names = _names(family)
    for linear in (x for x in geometry.linears if x.tied_to is None):
        assert gguf_name(family, linear.site) == names.get_name(f"{linear.path}.weight", (".weight",))


@families
def test_norms_have_the_names_that_llama_cpp_gives_their_modules(family: str) -> None:
    architecture, names = ARCHITECTURES[family], _names(family)
    for module, name in architecture.norms.items():
        assert f"blk.1.{name}" == names.get_name(f"{architecture.blocks}.1.{module}")
    for module, name in architecture.outside.items():
        assert name == names.get_name(module)


def test_every_family_that_can_be_read_can_be_written() -> None:
    assert set(ARCHITECTURES) == set(FAMILIES)


def test_a_name_of_two_digits() -> None:
    assert gguf_name("llama", "layers.12.mlp.gate_proj") == "blk.12.ffn_gate.weight"
    assert gguf_name("gpt2", "layers.12.mlp.c_proj") == "blk.12.ffn_down.weight"


@pytest.mark.parametrize("site", ["layers.0.attn.c_attn", "layers.x.attn.q_proj", "norm", "layers.0"])
def test_an_unknown_site_is_refused(site: str) -> None:
    with pytest.raises(InputError, match=f"no tensor for the site '{site}' of family 'llama'"):
        gguf_name("llama", site)


def test_an_unknown_family_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"'falcon' cannot be written for llama.cpp \(families: llama, mi"):
        gguf_name("falcon", "embed")


def _names(family: str) -> gguf.TensorNameMap:
    arch = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == ARCHITECTURES[family].name)
    return gguf.get_tensor_name_map(arch, 2)
