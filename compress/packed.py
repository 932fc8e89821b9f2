"""Packed tensors: integer codes really stored at their width, and read back.

Codes are packed least significant bit first into a byte stream: 8 codes of b bits fill exactly b
bytes, so every width from 1 to 8 packs without waste and one rule serves all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tightfit.compress.ggml import dequantize_ggml
from tightfit.spaces import GgmlOption, Option, WeightOption


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Pack integers in [0, 2^bits − 1] into a uint8 stream of ⌈n · bits / 8⌉ bytes.

    Args:
        codes: uint8 tensor of any shape, read in row-major order.
        bits: width of one code, 1 to 8.
    """
    flat = codes.reshape(-1)
    if bits == 8:
        return flat.clone()
    count = flat.numel()
    word = _words(flat.numel(), codes.device)
    word.view(torch.uint8)[:count] = flat
    for width in (8, 16, 32):
        used, low = _lanes(bits, width)
        word = (word & low) | (word >> (width - used) & (low << used))
    stream = word.view(-1, 1).view(torch.uint8)[:, :bits].reshape(-1)
    return stream[: -(-count * bits // 8)].clone()


def unpack_codes(stream: Tensor, bits: int, count: int) -> Tensor:
    """Read ``count`` integers of ``bits`` bits back from a stream of :func:`pack_codes`."""
    if bits == 8:
        return stream.clone()
    word = _words(count, stream.device)
    padded = torch.nn.functional.pad(stream, (0, word.numel() * bits - stream.numel()))
    word.view(-1, 1).view(torch.uint8)[:, :bits] = padded.view(-1, bits)
    for width in (32, 16, 8):
        used, low = _lanes(bits, width)
        word = (word & low) | ((word & (low << used)) << (width - used))
    return word.view(torch.uint8)[:count]


def _words(count: int, device: torch.device) -> Tensor:
    """Return 64-bit words of zeros with room for ``count`` codes, one byte each."""
    return torch.zeros(-(-count // 8), dtype=torch.int64, device=device)


def _lanes(bits: int, width: int) -> tuple[int, int]:
    """Return how many bits each lane of ``width`` bits holds, and a mask of them in every other lane.

    Eight codes start as the bytes of a 64-bit word. Each step of packing moves every other lane
    down to its neighbour: lanes of 8 bits become lanes of 16, 32, 64, and their codes close up.
    """
    used = bits * width // 8
    return used, sum((2**used - 1) << start for start in range(0, 64, 2 * width))


@dataclass(frozen=True)
class PackedTensor:
    """A rows × cols matrix in the bytes that its option charges.

    Attributes:
        option: how it is stored.
        rows, cols: shape of the matrix it stands for.
        codes: uint8 stream of packed codes; for 16- and 32-bit options the float matrix itself; for types
            of llama.cpp its bytes, uint8 (rows, bytes per row).
        scales: float16 (rows, groups), or None for floats.
        zeros: float16 minima (rows, groups), a uint8 stream of packed zero points, or None.
    """

    option: Option
    rows: int
    cols: int
    codes: Tensor
    scales: Tensor | None = None
    zeros: Tensor | None = None

    def tensors(self) -> dict[str, Tensor]:
        """Return the stored tensors by name, as they are written to a file."""
        named = {"codes": self.codes, "scales": self.scales, "zeros": self.zeros}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of the stored tensors."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors().values())

    def dequantize(self, device: torch.device | str = "cpu") -> Tensor:
        """Return the float32 matrix (rows, cols) that the stored bytes stand for."""
        option = self.option
        if isinstance(option, GgmlOption):
            return dequantize_ggml(self.codes, option, self.cols).to(device)
        if self.scales is None:
            return self.codes.to(device).float()
        scales = self.scales.to(device).float()
        codes = unpack_codes(self.codes.to(device), option.bits, self.rows * self.cols)
        grouped = codes.view(*scales.shape, -1).float()
        # Not addcmul: whether it rounds once or twice depends on the device.
        grouped.mul_(scales.unsqueeze(-1)).add_(self._offset(scales, option, device).unsqueeze(-1))
        return grouped.view(self.rows, self.cols)

    def _offset(self, scales: Tensor, option: WeightOption, device: torch.device | str) -> Tensor:
        """Return what is added to scale · code, per group."""
        if self.zeros is None:
            symmetric: Tensor = scales * -(2 ** (option.bits - 1))
            return symmetric
        if option.zero == "float":
            return self.zeros.to(device).float()
        zeros = unpack_codes(self.zeros.to(device), option.bits, scales.numel())
        return scales * -zeros.view(scales.shape).float()
