"""Putting a file together: header first, then one tensor after the other, and its exact size beforehand."""

from __future__ import annotations

import errno
import io
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tightfit import __version__
from tightfit.exporters.base import put_in_place
from tightfit.exporters.gguf.architectures import get_architecture
from tightfit.exporters.gguf.checks import load_config
from tightfit.exporters.gguf.metadata import check_config, write_metadata
from tightfit.exporters.gguf.refusals import ggml_options
from tightfit.exporters.gguf.rotary import write_rotary
from tightfit.exporters.gguf.tensors import GgufTensor, list_tensors
from tightfit.exporters.gguf.tokenizer import read_vocabulary, write_vocabulary
from tightfit.spaces import Geometry, GgmlOption, InputError

if TYPE_CHECKING:
    from tightfit.exporters.base import Shipment

_ALIGNMENT = 32
# Version of the block layouts, ``GGML_QNT_VERSION`` in ggml.h.
_QUANTIZATION_VERSION = 2


def export(shipment: Shipment, out: Path) -> Path:
    """Write the model as a plan compresses it into one GGUF file, whole or not at all.

    Raises:
        InputError: the plan is not one of the space or not one that llama.cpp can store, llama.cpp would
            compute the model differently, or there cannot be such a file.
    """
    # The place first, since what follows takes a while.
    with put_in_place(out) as partial, partial.open("wb") as file:
        prepare(shipment).write(file)
    return out


def predicted_bytes(shipment: Shipment) -> int:
    """Return the exact bytes of the file that :func:`export` writes, without packing any matrix.

    Raises:
        InputError: as :func:`export`.
    """
    return prepare(shipment).nbytes


@dataclass(frozen=True)
class GgufFile:
    """A file before it is written.

    Attributes:
        header: everything before the tensors, padded.
        tensors: in the order of the file.
    """

    header: bytes
    tensors: Sequence[GgufTensor]

    @cached_property
    def nbytes(self) -> int:
        """Exact bytes of the file."""
        return file_bytes(len(self.header), [tensor.nbytes for tensor in self.tensors])

    def write(self, file: IO[bytes]) -> None:
        """Write to an empty file and wait until it is on the disk; one tensor at a time is in memory.

        Raises:
            OSError: the disk is full, which is found out before any matrix is packed where that is possible.
        """
        _reserve(file, self.nbytes)
        file.write(self.header)
        for tensor in self.tensors:
            values = tensor.read()
            if values.nbytes != tensor.nbytes:
                raise ValueError(f"{tensor.name} has {values.nbytes} bytes, not the {tensor.nbytes} charged.")
            file.write(values.reshape(-1).view("u1").data)
            file.write(bytes(-tensor.nbytes % _ALIGNMENT))
        file.flush()
        os.fsync(file.fileno())


def _reserve(file: IO[bytes], size: int) -> None:
    """Take the disk space of a file at once, where the system can."""
    if not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        # Some file systems cannot; then the disk turns out to be full while writing, if it is.


def file_bytes(header: int, tensors: Sequence[int]) -> int:
    """Return the bytes of a file, from those of its header and of every tensor: each is padded to 32."""
    return sum(size + -size % _ALIGNMENT for size in (header, *tensors))


def prepare(shipment: Shipment) -> GgufFile:
    """Return the file of a plan, ready to be written; no weight has been read yet.

    Raises:
        InputError: as :func:`export`, but for the disk.
    """
    space, source = shipment.space, shipment.source
    space.levels(shipment.plan)  # refuses a plan of another space
    options = ggml_options(space.geometry, space.site_options(shipment.plan))
    if source is None:
        raise InputError("a GGUF file holds the weights, and this plan comes without its model.")
    config = load_config(source.folder)
    check_config(config, space.geometry)
    tensors = list_tensors(source, space.geometry, options, config)
    return GgufFile(_header(shipment, config, options, tensors), tensors)


def _header(
    shipment: Shipment, config: Any, options: Mapping[str, GgmlOption], tensors: Sequence[GgufTensor]
) -> bytes:
    """Return magic, metadata and the list of tensors, padded to where the first tensor begins."""
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.gguf_writer import WriterState

    geometry = shipment.space.geometry
    writer = GGUFWriter(None, get_architecture(geometry.family).name)
    _write_origin(writer, shipment, _file_type(geometry, options))
    write_metadata(writer, config, geometry)
    write_rotary(writer, config, geometry)
    assert shipment.source is not None
    write_vocabulary(writer, read_vocabulary(shipment.source.folder, config, geometry.vocab))
    for tensor in tensors:
        kind = GGMLQuantizationType[tensor.option.type]
        _add_tensor_info(writer, tensor, kind)
    buffer = io.BytesIO()
    sink: list[Any] = [buffer]  # the library would open a file of its own
    writer.fout, writer.state = sink, WriterState.EMPTY
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    return buffer.getvalue() + bytes(-buffer.tell() % _ALIGNMENT)


def _add_tensor_info(writer: Any, tensor: GgufTensor, kind: Any) -> None:
    import numpy as np

    # Shapes of quantized tensors are given to the library in bytes, and it counts the weights.
    quantized = tensor.option.quantized
    shape = (
        (*tensor.shape[:-1], tensor.option.tensor_bytes(1, tensor.shape[-1])) if quantized else tensor.shape
    )
    writer.add_tensor_info(
        tensor.name, shape, np.dtype("u1" if quantized else "f4"), tensor.nbytes, raw_dtype=kind
    )


def _write_origin(writer: Any, shipment: Shipment, file_type: int) -> None:
    """Add what the file is and where it comes from: nothing that depends on the machine or the time."""
    writer.add_type("model")
    name = str(shipment.model.get("name", ""))
    writer.add_name(Path(name).name or name)  # where a folder lies is nobody's business
    writer.add_file_type(file_type)
    writer.add_quantization_version(_QUANTIZATION_VERSION)
    writer.add_string("tightfit.plan", shipment.plan.digest)
    writer.add_string("tightfit.model", str(shipment.model.get("digest", "")))
    writer.add_string("tightfit.version", __version__)


def _file_type(geometry: Geometry, options: Mapping[str, GgmlOption]) -> int:
    """Return llama.cpp's number for the type of most weights, which is all that it can say of a mix."""
    from gguf import LlamaFileType

    weights: Counter[str] = Counter()
    for site, option in options.items():
        weights[option.type] += geometry.linear(site).weights
    name = weights.most_common(1)[0][0]
    small = f"MOSTLY_{name}_S" if name in ("Q3_K", "Q4_K", "Q5_K") else f"MOSTLY_{name}"
    return int(LlamaFileType["ALL_F32" if name == "F32" else small])
