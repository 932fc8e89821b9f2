"""Carrying a plan out on a torch model, and taking it back exactly."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tightfit.spaces import Geometry, InputError, Linear


class Replica:
    """A model whose matrices can be replaced and put back, bit for bit.

    The original tensors are kept aside and never written to; replacing a matrix only points its
    parameter at other memory. A tied embedding and head share one parameter, so they change together.

    Args:
        model: causal LM in Transformers' module layout, in evaluation mode.
        geometry: its shape.

    Raises:
        InputError: the model lacks a matrix that the geometry names, or has it in another shape.
    """

    def __init__(self, model: nn.Module, geometry: Geometry) -> None:
        self.model = model
        self.geometry = geometry
        self._linears = {x.site: x for x in geometry.linears if x.tied_to is None}
        self._parameters = {site: _parameter(model, x) for site, x in self._linears.items()}
        self._originals = {site: parameter.data for site, parameter in self._parameters.items()}

    @property
    def sites(self) -> tuple[str, ...]:
        """Sites that own a matrix, in depth order."""
        return tuple(self._linears)

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return next(iter(self._originals.values())).device

    @property
    def dtype(self) -> torch.dtype:
        """Data type of the weights."""
        return next(iter(self._originals.values())).dtype

    def original(self, site: str) -> Tensor:
        """Return the untouched matrix of a site, shape (rows, cols)."""
        data = self._originals[site]
        return data.t() if self._linears[site].transposed else data

    def apply(self, matrices: Mapping[str, Tensor]) -> None:
        """Replace the matrices of these sites, each of shape (rows, cols); leave all others.

        Raises:
            ValueError: a matrix has another shape than the one it replaces; the sites before it stay.
        """
        for site, matrix in matrices.items():
            parameter = self._parameters[site]
            stored = matrix.t().contiguous() if self._linears[site].transposed else matrix
            if stored.shape != parameter.shape:
                raise ValueError(f"{site} is {tuple(self.original(site).shape)}, not {tuple(matrix.shape)}")
            parameter.data = stored.to(dtype=parameter.dtype, device=parameter.device)

    def restore(self, *sites: str) -> None:
        """Put the original matrices of these sites back; of every site if none is named."""
        for site in sites or self.sites:
            self._parameters[site].data = self._originals[site]


def _parameter(model: nn.Module, linear: Linear) -> nn.Parameter:
    try:
        weight = model.get_submodule(linear.path).weight
    except AttributeError:
        raise InputError(
            f"the model has no matrix at {linear.path}, which its config.json promises."
        ) from None
    expected = (linear.cols, linear.rows) if linear.transposed else (linear.rows, linear.cols)
    if not isinstance(weight, nn.Parameter) or tuple(weight.shape) != expected:
        shape = tuple(weight.shape) if isinstance(weight, Tensor) else "no tensor"
        raise InputError(f"{linear.path}.weight is {shape}, but config.json says {expected}.")
    return weight
