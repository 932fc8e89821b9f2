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
        InputError: the model is not what the geometry says (see :func:`check_geometry`).
    """

    def __init__(self, model: nn.Module, geometry: Geometry) -> None:
        check_geometry(model, geometry)
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


def check_geometry(model: nn.Module, geometry: Geometry) -> None:
    """Check that every matrix of a geometry is in a model, with its shape and its tying.

    Raises:
        InputError: a matrix is missing, has another shape, or is not tied where the config says it is.
    """
    for linear in geometry.linears:
        weight = _parameter(model, linear)
        if linear.tied_to and weight is not _parameter(model, geometry.linear(linear.tied_to)):
            raise InputError(
                f"{linear.path}: the config says it is tied to {linear.tied_to}, but the weights are not."
            )


def _parameter(model: nn.Module, linear: Linear) -> nn.Parameter:
    try:
        weight = model.get_parameter(f"{linear.path}.weight")
    except AttributeError as error:
        raise InputError(
            f"{linear.path}: the loaded model has no such layer, though its config says so."
        ) from error
    expected = (linear.cols, linear.rows) if linear.transposed else (linear.rows, linear.cols)
    if tuple(weight.shape) != expected:
        raise InputError(
            f"{linear.path}: the loaded weight is {tuple(weight.shape)}, the config says {expected}."
        )
    return weight
