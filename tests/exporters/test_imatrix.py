from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from gguf import GGUFReader

from tightfit.exporters.imatrix import write_imatrix


def test_it_reads_back_to_the_last_bit_in_the_way_that_llama_quantize_reads_it(tmp_path: Path) -> None:
    rng = np.random.default_rng([1, 53])
    importance = {
        "blk.0.attn_q.weight": torch.from_numpy(rng.gamma(0.2, 7, 96).astype(np.float32)),
        "output.weight": torch.tensor([0.0, 1e-30, 1e30, 1 / 3]),
    }
    reader = GGUFReader(write_imatrix(tmp_path / "imatrix.gguf", importance, "a text"))
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.datasets"].contents() == ["a text"]
    assert {reader.fields[f"imatrix.chunk_{part}"].contents() for part in ("count", "size")} == {1}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert set(tensors) == {f"{name}.{part}" for name in importance for part in ("in_sum2", "counts")}
    for name, values in importance.items():
        sums, counts = tensors[f"{name}.in_sum2"], tensors[f"{name}.counts"]
        assert (list(sums.shape), list(counts.shape)) == ([len(values), 1], [1, 1])
        assert {sums.tensor_type.name, counts.tensor_type.name} == {"F32"}
        np.testing.assert_array_equal((sums.data / counts.data).reshape(-1), values.numpy())


def test_the_same_importances_give_the_same_bytes(tmp_path: Path) -> None:
    importance = {"output.weight": torch.tensor([0.5, 2.0])}
    one, two = (write_imatrix(tmp_path / name, importance, "a text") for name in ("one", "two"))
    assert one.read_bytes() == two.read_bytes()
