from __future__ import annotations

from collections.abc import Callable

import pytest

from tightfit.spaces import Geometry, InputError, Load, kv_bytes, read_geometry

# One layer in three attends in full, the others over 100 tokens. Heads are 10 wide,
# which is neither hidden / heads (16) nor any other size in the config.
SLIDING = {
    "model_type": "gemma3_text",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "sliding_window": 100,
    "sliding_window_pattern": 3,
}


@pytest.mark.parametrize(
    ("context", "batch", "size"),
    [
        # keys and values × KV heads × head width × tokens × 2 bytes, layer by layer
        (50, 1, 2 * 2 * 10 * (50 + 50 + 50) * 2),
        (100, 1, 2 * 2 * 10 * (100 + 100 + 100) * 2),
        (1000, 1, 2 * 2 * 10 * (100 + 100 + 1000) * 2),
        (1000, 4, 4 * 2 * 2 * 10 * (100 + 100 + 1000) * 2),
        (1, 1, 240),
    ],
)
def test_cache_is_counted_by_head_width_and_capped_at_each_window(
    context: int, batch: int, size: int
) -> None:
    assert kv_bytes(read_geometry(SLIDING), Load(context, batch)) == size


def test_head_width_is_the_configs_own_not_hidden_by_heads() -> None:
    wide = read_geometry({**SLIDING, "head_dim": 40})
    assert kv_bytes(wide, Load(1000)) == 4 * kv_bytes(read_geometry(SLIDING), Load(1000))


def test_a_cache_does_not_depend_on_the_base_dtype(llama: Callable[..., Geometry]) -> None:
    size = 3 * 2 * 2 * 16 * 64 * 2
    assert kv_bytes(llama(dtype="float32"), Load(64)) == kv_bytes(llama(), Load(64)) == size


def test_seventy_billion_weights_need_a_third_of_a_mebibyte_per_token(llama_70b_geometry: Geometry) -> None:
    assert kv_bytes(llama_70b_geometry, Load(1)) == 327_680


@pytest.mark.parametrize(("context", "batch"), [(0, 1), (1, 0), (-5, 1)])
def test_an_empty_cache_is_refused(llama: Callable[..., Geometry], context: int, batch: int) -> None:
    with pytest.raises(InputError, match=rf"context \({context}\) and batch \({batch}\)"):
        kv_bytes(llama(), Load(context, batch))
