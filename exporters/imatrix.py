"""The importance matrix of llama.cpp: which input features matter, for whoever quantizes again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor


def write_imatrix(out: Path, importance: Mapping[str, Tensor], dataset: str) -> Path:
    """Write the file that ``llama-quantize --imatrix`` reads, and return its path.

    The format is that of llama.cpp's ``llama-imatrix``: per tensor the sum of the squares of its inputs,
    and how many were added up. Here all counts are one, so that the quotient, which is what
    quantizers use, is the importance to the last bit.

    Args:
        out: where to write.
        importance: name of a tensor → mean square of each of its input features, float32 (cols,).
        dataset: what it was measured on; ``llama-quantize`` copies it into the models it makes.

    Raises:
        OSError: the file cannot be written.
    """
    from gguf import GGUFWriter

    writer = GGUFWriter(out, arch="imatrix")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", [dataset])
    writer.add_uint32("imatrix.chunk_count", 1)
    writer.add_uint32("imatrix.chunk_size", 1)
    for name, values in importance.items():
        sums = np.ascontiguousarray(values.cpu().numpy(), dtype=np.float32)
        writer.add_tensor(f"{name}.in_sum2", sums.reshape(1, -1))
        writer.add_tensor(f"{name}.counts", np.ones((1, 1), np.float32))
    try:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
    finally:
        writer.close()
    return out
