"""Reading a GGUF file back: what every tensor really is, beside what the plan says.

Types, shapes and places come from the file's own tensor table, bytes from the data it points to; what
the metadata says about the file is not believed. The names of the tensors come from the tables of the
``gguf`` package, and not from our writer, so that the two can disagree.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tightfit.exporters.base import Shipment
from tightfit.exporters.beside import ROPE, compare_beside
from tightfit.exporters.expected import Expected, expected_tensors
from tightfit.spaces import InputError, format_size

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

PLAN_KEY, MODEL_KEY = "tightfit.plan", "tightfit.model"
"""Metadata of a file that name the digests of its plan and model; used to find the run, never as proof."""


@dataclass(frozen=True)
class Finding:
    """One tensor.

    Attributes:
        name: llama.cpp's name of it.
        site: of the matrix that it holds; None for what no decision changes.
        expected, found: its type; None where it should not be there, or is not.
        bytes: it takes in the file.
        problems: what is wrong with it, in words; empty where all agrees.
    """

    name: str
    site: str | None
    expected: str | None
    found: str | None
    bytes: int
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReadBack:
    """What a file really holds.

    Attributes:
        plan: digest of the plan that it was compared with.
        findings: one per tensor that is in the plan or in the file.
        predicted: weight bytes of the plan by the formula.
        weight_bytes: bytes of the file's tensors.
        metadata_bytes: everything else in the file: metadata, tensor table, padding.
        compared: how many tensors were compared byte by byte with what was measured.
        warnings: what is odd, but proves nothing.
        beside: what is wrong beside the weights, in words: with the tokenizer, with rotary factors.
    """

    file: str
    plan: str
    findings: tuple[Finding, ...]
    predicted: int
    weight_bytes: int
    metadata_bytes: int
    compared: int
    warnings: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    @property
    def file_bytes(self) -> int:
        """Bytes of the file."""
        return self.weight_bytes + self.metadata_bytes

    @property
    def mismatches(self) -> tuple[Finding, ...]:
        """Tensors with which something is wrong."""
        return tuple(finding for finding in self.findings if finding.problems)

    @property
    def agrees(self) -> bool:
        """Whether the file carries the plan out to the byte, and speaks the model's tokens."""
        return not self.mismatches and not self.beside and self.weight_bytes == self.predicted

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data."""
        derived = {"agrees": self.agrees, "file_bytes": self.file_bytes, "ratio": self.ratio}
        return {**asdict(self), **derived}

    @property
    def ratio(self) -> float:
        """Predicted bytes per real one."""
        return self.predicted / self.weight_bytes if self.weight_bytes else 0.0

    def render(self) -> str:
        """Return everything as text."""
        wrong = self.mismatches
        bytewise = f"{self.compared} of them byte by byte" if self.compared else "types and shapes only"
        head = f"{len(self.findings)} tensors read back from {self.file}, {bytewise}: "
        lines = [head + (f"{len(wrong)} differ" if wrong else f"all as plan {self.plan[:12]} says")]
        lines += [f"  {finding.name}: {'; '.join(finding.problems)}" for finding in wrong]
        lines += [f"wrong: {words}" for words in self.beside]
        lines.append(
            f"weights {self.weight_bytes:,} B ({format_size(self.weight_bytes)}), "
            f"predicted {self.predicted:,} B (ratio {self.ratio:.4f}); "
            f"metadata {self.metadata_bytes:,} B; file {self.file_bytes:,} B"
        )
        return "\n".join([*lines, *(f"warning: {warning}" for warning in self.warnings)])


def read_back(file: Path, shipment: Shipment, reader: GGUFReader | None = None) -> ReadBack:
    """Compare every tensor of a GGUF file with a plan.

    Where the shipment has a source, the bytes of every tensor are compared with those that were measured,
    and the tokenizer with the model's.

    Args:
        file: what was exported.
        shipment: the plan, with its source where there is one.
        reader: of the file, from :func:`open_gguf`, which takes a while where the vocabulary is large.

    Raises:
        InputError: this is no whole GGUF file, the plan is not one of the space, or llama.cpp does not
            know the family.
    """
    reader = reader or open_gguf(file)
    expected = {tensor.name: tensor for tensor in expected_tensors(shipment)}
    found = {tensor.name: tensor for tensor in reader.tensors if tensor.name not in ROPE}
    findings = [_judge(reader, tensor, found.get(name)) for name, tensor in expected.items()]
    findings += [_unplanned(shipment, tensor) for name, tensor in found.items() if name not in expected]
    folder = shipment.source.folder if shipment.source else None
    beside, unknown = compare_beside(reader, folder, shipment.space.geometry) if folder else ([], [])
    weight_bytes = sum(int(tensor.n_bytes) for tensor in found.values())
    return ReadBack(
        str(file),
        shipment.plan.digest,
        tuple(findings),
        shipment.space.weight_bytes(shipment.plan),
        weight_bytes,
        file.stat().st_size - weight_bytes,
        sum(name in found and tensor.content is not None for name, tensor in expected.items()),
        (*_warnings(reader, shipment), *unknown),
        tuple(beside),
    )


def open_gguf(file: Path) -> GGUFReader:
    """Open a GGUF file.

    Raises:
        InputError: it cannot be read, or is no whole GGUF file.
    """
    from gguf import GGUFReader

    class Whole(GGUFReader):
        """Never reads on behind the end, where a damaged count of values would lead it."""

        def _get(self, offset: int, dtype: Any, count: int = 1, override_order: Any = None) -> Any:
            if int(offset) + np.dtype(dtype).itemsize * int(count) > len(self.data):
                raise ValueError("ends too early")
            return super()._get(offset, dtype, count, override_order)

    if not file.is_file():
        raise InputError(f"{file}: there is no such file.")
    try:
        reader = Whole(file)
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}).") from error
    except (ValueError, IndexError, KeyError, OverflowError, TypeError, MemoryError) as error:
        # What the reader trips over depends on where the file ends.
        raise InputError(f"{file} is no whole GGUF file: export it again.") from error
    return reader


def stated(reader: GGUFReader, key: str) -> str | None:
    """Return a text of the metadata, or None where it has none of this name."""
    field = reader.get_field(key)
    content = field.contents() if field is not None else None
    return content if isinstance(content, str) else None


def _judge(reader: GGUFReader, expected: Expected, found: ReaderTensor | None) -> Finding:
    if found is None:
        return Finding(expected.name, expected.site, expected.type, None, 0, ("is not in the file",))
    kind, nbytes = found.tensor_type.name, int(found.n_bytes)
    shape = tuple(int(size) for size in reversed(found.shape))
    problems = []
    if kind != expected.type:
        problems.append(f"is {kind}, planned is {expected.type}")
    if shape != expected.shape:
        problems.append(f"has the shape {_shape(shape)}, the model has {_shape(expected.shape)}")
    if not problems and nbytes != expected.bytes:
        problems.append(f"takes {nbytes:,} B, planned are {expected.bytes:,} B")
    if not problems and expected.content is not None:
        problems += _compare(reader, found, expected.content())
    return Finding(expected.name, expected.site, expected.type, kind, nbytes, tuple(problems))


def _compare(reader: GGUFReader, found: ReaderTensor, measured: np.ndarray[Any, Any]) -> Iterator[str]:
    start, nbytes = int(found.data_offset), int(found.n_bytes)
    differ = int(np.count_nonzero(np.asarray(reader.data[start : start + nbytes]) != measured))
    if differ:
        yield f"{differ:,} of its {nbytes:,} bytes are not those that were measured"


def _unplanned(shipment: Shipment, found: ReaderTensor) -> Finding:
    """Judge a tensor of which the plan says nothing: what no decision changes is float32."""
    kind, nbytes = found.tensor_type.name, int(found.n_bytes)
    problems = []
    if shipment.source is not None:  # then everything that the model has is known
        problems.append("is in the file, but not in the model")
    elif kind != "F32":
        problems.append(f"is {kind}, planned is F32")
    return Finding(found.name, None, None if problems else "F32", kind, nbytes, tuple(problems))


def _warnings(reader: GGUFReader, shipment: Shipment) -> Iterator[str]:
    names: Mapping[str, tuple[str, str]] = {
        PLAN_KEY: ("plan", shipment.plan.digest),
        MODEL_KEY: ("model", str(shipment.model.get("digest", ""))),
    }
    for key, (what, meant) in names.items():
        said = stated(reader, key)
        if said and not meant.startswith(said):
            yield f"the metadata names the {what} {said[:12]}, but it was compared with {meant[:12]}"


def _shape(shape: tuple[int, ...]) -> str:
    return " × ".join(map(str, shape))
