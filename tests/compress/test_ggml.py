"""llama.cpp's kernels behind our quantizer: bytes, values, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, dequantize

from tightfit.compress import compress_matrix
from tightfit.spaces import GGML_TYPES, GgmlOption, InputError

ROWS, COLS = 5, 512
WEIGHT = torch.from_numpy(np.random.default_rng(3).normal(size=(ROWS, COLS)).astype(np.float32))
IMPORTANCE = torch.from_numpy(np.random.default_rng(4).random(COLS).astype(np.float32)) + 0.1


@pytest.mark.parametrize("name", GGML_TYPES)
def test_packed_bytes_are_those_of_the_formula(name: str) -> None:
    option = GgmlOption(name)
    packed = compress_matrix(WEIGHT, option, IMPORTANCE)
    assert packed.nbytes == option.tensor_bytes(ROWS, COLS)
    values = packed.dequantize()
    assert values.shape == WEIGHT.shape
    assert values.dtype == torch.float32
    error = ((values - WEIGHT).square() * IMPORTANCE).sum() / (WEIGHT.square() * IMPORTANCE).sum()
    assert error < 1.2 * 4.0 ** (1 - min(option.bits, 9))


@pytest.mark.parametrize("name", [name for name in GGML_TYPES if not name.startswith(("F", "BF"))])
def test_values_are_those_that_the_gguf_package_reads(name: str) -> None:
    packed = compress_matrix(WEIGHT, GgmlOption(name), IMPORTANCE)
    expected = dequantize(packed.codes.numpy(), GGMLQuantizationType[name])
    np.testing.assert_allclose(packed.dequantize().numpy(), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q4_K", "Q4_0", "IQ4_XS", "IQ3_XXS"])
def test_importances_change_what_is_stored(name: str) -> None:
    option = GgmlOption(name)
    skewed = IMPORTANCE.clone()
    skewed[::4] *= 100
    stored = [compress_matrix(WEIGHT, option, h).dequantize() for h in (IMPORTANCE, skewed)]
    errors = [((values - WEIGHT).square() * skewed).sum() for values in stored]
    assert errors[1] < errors[0]


@pytest.mark.parametrize("name", ["Q4_K", "Q8_0", "IQ4_NL", "IQ3_S"])
def test_rows_do_not_depend_on_each_other(name: str) -> None:
    # Rows of queries and keys are written in another order than they are searched in.
    order = [3, 0, 4, 2, 1]
    whole = compress_matrix(WEIGHT, GgmlOption(name), IMPORTANCE).codes
    assert torch.equal(compress_matrix(WEIGHT[order], GgmlOption(name), IMPORTANCE).codes, whole[order])


def test_many_rows_are_those_of_each_chunk() -> None:
    tall = torch.from_numpy(np.random.default_rng(5).normal(size=(1100, 256)).astype(np.float32))
    codes = compress_matrix(tall, GgmlOption("Q4_0"), None).codes
    assert torch.equal(codes[900:], compress_matrix(tall[900:], GgmlOption("Q4_0"), None).codes)


@pytest.mark.parametrize(
    ("weight", "name", "importance", "words"),
    [
        (torch.full((2, 256), float("nan")), "Q4_K", None, "not finite"),
        (torch.full((2, 256), 1e6), "F16", None, "too large for F16"),
        (torch.ones(2, 576), "Q4_K", None, "do not divide 576"),
        (WEIGHT, "IQ2_XS", None, "needs importances"),
    ],
)
def test_what_cannot_be_stored_is_refused(
    weight: torch.Tensor, name: str, importance: torch.Tensor | None, words: str
) -> None:
    with pytest.raises(InputError, match=words):
        compress_matrix(weight, GgmlOption(name), importance)
