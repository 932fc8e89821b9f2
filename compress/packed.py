"""Packed tensors: integer codes really stored at their width, and read back.

Codes are packed least significant bit first into a byte stream: 8 codes of b bits fill exactly b
bytes, so every width from 1 to 8 packs without waste and one rule serves all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tightfit.spaces import WeightOption


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
    padded = torch.nn.functional.pad(flat, (0, -count % 8)).view(-1, 8).to(torch.int64)
    # Eight codes fit one 64-bit word; its low `bits` bytes are the stream.
    word = torch.zeros(padded.shape[0], dtype=torch.int64, device=codes.device)
    for position in range(8):
        word |= padded[:, position] << (bits * position)
    stream = word.view(-1, 1).view(torch.uint8)[:, :bits].reshape(-1)
    return stream[: -(-count * bits // 8)].clone()


def unpack_codes(stream: Tensor, bits: int, count: int) -> Tensor:
    """Read ``count`` integers of ``bits`` bits back from a stream of :func:`pack_codes`."""
    if bits == 8:
        return stream.clone()
    words = -(-count // 8)
    padded = torch.zeros(words, 8, dtype=torch.uint8, device=stream.device)
    padded[:, :bits] = torch.nn.functional.pad(stream, (0, words * bits - stream.numel())).view(words, bits)
    word = padded.view(torch.int64).view(-1, 1)
    shifts = torch.arange(0, 8 * bits, bits, device=stream.device)
    codes: Tensor = (word >> shifts) & (2**bits - 1)
    return codes.to(torch.uint8).view(-1)[:count]


@dataclass(frozen=True)
class PackedTensor:
    """A rows × cols matrix in the bytes that its option charges.

    Attributes:
        option: how it is stored.
        rows, cols: shape of the matrix it stands for.
        codes: uint8 stream of packed codes; for 16- and 32-bit options the float matrix itself.
        scales: float16 (rows, groups), or None for floats.
        zeros: float16 minima (rows, groups), a uint8 stream of packed zero points, or None.
    """

    option: WeightOption
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
        if self.scales is None:
            return self.codes.to(device).float()
        option = self.option
        scales = self.scales.to(device).float()
        codes = unpack_codes(self.codes.to(device), option.bits, self.rows * self.cols)
        grouped = codes.view(*scales.shape, -1).float()
        offset = self._offset(scales, device)
        return torch.addcmul(offset.unsqueeze(-1), grouped, scales.unsqueeze(-1)).view(self.rows, self.cols)

    def _offset(self, scales: Tensor, device: torch.device | str) -> Tensor:
        """Return what is added to scale · code, per group."""
        if self.zeros is None:
            symmetric: Tensor = scales * -(2 ** (self.option.bits - 1))
            return symmetric
        if self.option.zero == "float":
            return self.zeros.to(device).float()
        zeros = unpack_codes(self.zeros.to(device), self.option.bits, scales.numel())
        return scales * -zeros.view(scales.shape).float()
