"""How llama.cpp names, orders and shifts the tensors of each family, and what it takes for granted.

Facts are those of llama.cpp's ``conversion/``, ``src/llama-arch.cpp`` and ``src/models/``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tightfit.spaces import EMBED, HEAD, InputError

_OUTSIDE = {EMBED: "token_embd", HEAD: "output"}

_LLAMA_SITES = {
    "attn.q_proj": "attn_q",
    "attn.k_proj": "attn_k",
    "attn.v_proj": "attn_v",
    "attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GPT2_SITES = {
    "attn.c_attn": "attn_qkv",
    "attn.c_proj": "attn_output",
    "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down",
}
_LLAMA_NORMS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
_HEAD_NORMS = {"self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
_FOUR_NORMS = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_GPT2_NORMS = {"ln_1": "attn_norm", "ln_2": "ffn_norm"}

_SILU = {"hidden_act": ("silu", "swish")}
_NO_OUTPUT_BIAS = {"attention_bias": (False, None)}
_GELU = ("gelu_pytorch_tanh", "gelu_new")
_GEMMA = {
    **_NO_OUTPUT_BIAS,
    "hidden_activation": (*_GELU, None),
    "use_bidirectional_attention": (False, None),
}
_TIED = {"tie_word_embeddings": (True,)}


@dataclass(frozen=True)
class Architecture:
    """How llama.cpp stores one family.

    Attributes:
        name: of the architecture, which is also the prefix of its metadata.
        sites: a site's name inside its block → llama.cpp's name inside its block.
        norms: module path inside a block → llama.cpp's name, for what has no site.
        requires: key of the config → the values that llama.cpp takes for granted.
        capped: keys of the config that llama.cpp caps logits by, always.
        blocks: module path of the blocks.
        outside: module path → llama.cpp's name, for what has no site and lies outside the blocks.
        norm_shift: added to the weights of all norms: Gemma's are stored as differences from one.
        interleaved: whether the two rows that rotate together lie side by side, see
            :func:`tightfit.exporters.gguf.tensors.rotary_rows`.
        windows: every so many layers one attends to the whole context; 0 where llama.cpp knows no
            sliding windows.
        wide_attention: whether heads × head width may differ from the hidden size.
    """

    name: str
    sites: Mapping[str, str]
    norms: Mapping[str, str]
    requires: Mapping[str, tuple[Any, ...]]
    capped: tuple[str, ...] = ()
    blocks: str = "model.layers"
    outside: Mapping[str, str] = field(default_factory=lambda: {"model.norm": "output_norm"})
    norm_shift: float = 0.0
    interleaved: bool = False
    windows: int = 0
    wide_attention: bool = True


_LLAMA = Architecture("llama", _LLAMA_SITES, _LLAMA_NORMS, _SILU, interleaved=True)

ARCHITECTURES: dict[str, Architecture] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": Architecture("qwen2", _LLAMA_SITES, _LLAMA_NORMS, _SILU, wide_attention=False),
    "qwen3": Architecture(
        "qwen3", _LLAMA_SITES, {**_LLAMA_NORMS, **_HEAD_NORMS}, {**_SILU, **_NO_OUTPUT_BIAS}
    ),
    "gemma": Architecture(
        "gemma", _LLAMA_SITES, _LLAMA_NORMS, {**_GEMMA, **_TIED, "hidden_act": _GELU}, norm_shift=1.0
    ),
    "gemma2": Architecture(
        "gemma2",
        _LLAMA_SITES,
        _FOUR_NORMS,
        {**_GEMMA, **_TIED},
        capped=("attn_logit_softcapping", "final_logit_softcapping"),
        norm_shift=1.0,
        windows=2,
    ),
    "gemma3_text": Architecture(
        "gemma3",
        _LLAMA_SITES,
        {**_FOUR_NORMS, **_HEAD_NORMS},
        {**_GEMMA, "attn_logit_softcapping": (None,)},
        norm_shift=1.0,
        windows=6,
    ),
    "gpt2": Architecture(
        "gpt2",
        _GPT2_SITES,
        _GPT2_NORMS,
        {
            "activation_function": _GELU,
            "scale_attn_weights": (True,),
            "scale_attn_by_inverse_layer_idx": (False,),
            "add_cross_attention": (False,),
        },
        blocks="transformer.h",
        outside={"transformer.wpe": "position_embd", "transformer.ln_f": "output_norm"},
    ),
}
"""Family (``model_type``) → how llama.cpp stores it."""


def get_architecture(family: str) -> Architecture:
    """Return how llama.cpp stores a family.

    Raises:
        InputError: no file can be written for it.
    """
    if family not in ARCHITECTURES:
        allowed = ", ".join(ARCHITECTURES)
        raise InputError(
            f"models of family {family!r} cannot be written for llama.cpp (families: {allowed})."
        )
    return ARCHITECTURES[family]


def gguf_name(family: str, site: str) -> str:
    """Return llama.cpp's name of a site's matrix, such as ``blk.3.attn_q.weight``.

    Raises:
        InputError: the family is not supported, or has no such site.
    """
    return f"{gguf_stem(family, site)}.weight"


def gguf_stem(family: str, site: str) -> str:
    """Return :func:`gguf_name` without its ending, which a bias shares: ``blk.3.attn_q``."""
    architecture = get_architecture(family)
    if site in _OUTSIDE:
        return _OUTSIDE[site]
    layer, _, inside = site.removeprefix("layers.").partition(".")
    if not layer.isdecimal() or inside not in architecture.sites:
        raise InputError(f"llama.cpp has no tensor for the site {site!r} of family {family!r}.")
    return f"blk.{layer}.{architecture.sites[inside]}"
