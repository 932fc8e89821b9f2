"""Spreading the bits of keys over rotary pairs of channels.

A uniform quantizer of b bits leaves noise in proportion to energy · 4^(−b), so equal bits waste some on
pairs that hardly vary. Giving each next bit to the pair whose noise it lowers most is reverse water-filling
in whole bits (Cover & Thomas, *Elements of Information Theory*, 2nd ed., section 10.3.3).
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST, MOST = 1, 8


def spread_bits(keys: Tensor, bits: int) -> Tensor:
    """Choose the bits of each rotary pair, channels i and i + width / 2, per sequence and head.

    Args:
        keys: (batch, heads, tokens, width), the tokens that are quantized.
        bits: the mean, held exactly.

    Returns:
        uint8 (batch, heads, width / 2), between 1 and 8, of sum ``bits`` · width / 2. Ties go to the lower
        channel.
    """
    x = keys.double()
    variance = (x - x.mean(2, keepdim=True)).square().mean(2)
    energy = torch.unflatten(variance, -1, (2, -1)).mean(-2)
    pairs = energy.shape[-1]
    # What the step from b to b + 1 bits saves is 3/4 · energy · 4^(-b). It falls with b, so the largest
    # savings overall are the ones a greedy choice makes.
    savings = energy.unsqueeze(-1) * 4.0 ** -torch.arange(LEAST, MOST, device=x.device)
    order = savings.flatten(-2).argsort(dim=-1, descending=True, stable=True)
    taken = torch.zeros_like(order).scatter_(-1, order[..., : (bits - LEAST) * pairs], 1)
    return torch.unflatten(taken, -1, (pairs, -1)).sum(-1).add(LEAST).to(torch.uint8)
