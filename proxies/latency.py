"""How long a plan takes, from a table of how long every kind of matrix product takes.

Generating one token multiplies every matrix once. So its time is about

    t(plan) = fixed + Σ over matrices κ(type, rows, cols) · work(type, rows, cols)

with a time per unit of work κ for every *class* of products: one format at one shape. It is a table of
operators as in hardware-aware architecture search (Cai, Zhu & Han, *ProxylessNAS*, ICLR 2019,
https://arxiv.org/abs/1812.00332; Wang et al., *HAQ*, CVPR 2019, https://arxiv.org/abs/1811.08886), but
fitted to whole plans as they run (:mod:`tightfit.proxies.latency_fit`) rather than to operators alone:
what is fused, cached or overlapped is in it. Nothing assumes that fewer bits are faster, which is false.

Work is counted in stored bytes for generating, which reads every weight once per token, and in weights for
reading a prompt, which computes more than it reads. An embedding is looked up, which costs nothing; where
it is tied to the head it is multiplied all the same, as the head. A prompt needs the head only for its
last token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tightfit.spaces import EMBED, HEAD, Decision, Geometry, InputError, Option, read_option

Floats = NDArray[np.float64]

Class = tuple[str, int, int]
"""Products that take equally long per unit of work: name of the format, rows, columns."""

Phase = Literal["generate", "prompt"]
"""What is timed: one token of an answer, or a whole prompt up to the first token."""


@dataclass(frozen=True)
class Products:
    """The matrix products of one model in one phase.

    Attributes:
        geometry: the model's shape.
        phase: what is timed.
        tokens: of a prompt; all but the head are multiplied for each.
    """

    geometry: Geometry
    phase: Phase = "generate"
    tokens: int = 1

    def shape(self, site: str) -> tuple[int, int] | None:
        """Return rows and columns of the product at a site; None where nothing is multiplied.

        A head that is tied to the embedding is not a site of its own here: the embedding stands for it.
        """
        linear = self.geometry.linear(site)
        looked_up = site == EMBED and not self.geometry.tied
        return None if looked_up or linear.tied_to is not None else (linear.rows, linear.cols)

    def classes(self, options: Mapping[str, Option]) -> list[Class]:
        """Return the class of every product of a plan.

        Args:
            options: format of every site that owns its bytes, as :meth:`Space.site_options` gives them.
        """
        shapes = ((self.shape(site), option) for site, option in options.items())
        return [(option.name, *shape) for shape, option in shapes if shape is not None]

    def work(self, product: Class) -> float:
        """Return the work of one product: bytes per token, or weights per token of a prompt."""
        name, rows, cols = product
        if self.phase == "generate":
            return float(read_option(name).tensor_bytes(rows, cols))
        head = rows == self.geometry.vocab and cols == self.geometry.linear(HEAD).cols
        return rows * cols / (self.tokens if head else 1)


@dataclass(frozen=True)
class LatencyTable:
    """Seconds of every class of products, with what is known about classes that were never seen.

    Attributes:
        phase: what was timed.
        tokens: of the prompt, 1 for generating.
        fixed: seconds that no plan changes.
        rate: seconds per unit of work of a format that was never seen.
        types: seconds per unit of work by format, for shapes it was never seen at.
        shapes: seconds per unit of work that a shape adds, whatever the format.
        classes: seconds per unit of work by class, of those that were seen.
        plans: number of measured plans.
        error: root mean square of the relative errors of mixed plans that were left out of the fit, one by
            one; the noise of timing them is in it.
    """

    phase: Phase
    tokens: int
    fixed: float
    rate: float
    types: Mapping[str, float]
    shapes: Mapping[tuple[int, int], float]
    classes: Mapping[Class, float]
    plans: int
    error: float

    def products(self, geometry: Geometry) -> Products:
        """Return how the products of a model are counted in this table."""
        return Products(geometry, self.phase, self.tokens)

    def seconds(self, products: Products, product: Class) -> float:
        """Return the seconds of one product, seen or not."""
        name, rows, cols = product
        rate = self.classes.get(product)
        if rate is None:
            rate = self.types.get(name, self.rate) + self.shapes.get((rows, cols), 0.0)
        return max(rate, 0.0) * products.work(product)

    def predict(self, geometry: Geometry, options: Mapping[str, Option]) -> float:
        """Return the seconds of a plan: per generated token, or of a prompt.

        Args:
            geometry: the model's shape.
            options: format of every site that owns its bytes (:meth:`Space.site_options`).
        """
        products = self.products(geometry)
        return self.fixed + sum(self.seconds(products, each) for each in products.classes(options))

    def seconds_of(self, geometry: Geometry, decisions: Sequence[Decision]) -> list[Floats]:
        """Return the seconds of every option of every decision; with ``fixed`` they add up to a plan's."""
        products = self.products(geometry)
        rows = []
        for decision in decisions:
            each = [
                products.classes(dict.fromkeys(decision.sites, option)) for option in decision.matrix_options
            ]
            rows.append(
                np.array([sum(self.seconds(products, x) for x in classes) for classes in each], float)
            )
        return rows

    def to_dict(self) -> dict[str, Any]:
        """Return the table as plain data, as the store keeps it."""
        data = asdict(self)
        data["shapes"] = [[*shape, rate] for shape, rate in self.shapes.items()]
        data["classes"] = [[*each, rate] for each, rate in self.classes.items()]
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> LatencyTable:
        """Read a table from plain data.

        Raises:
            InputError: this is no table.
        """
        try:
            shapes = {(int(rows), int(cols)): float(rate) for rows, cols, rate in data["shapes"]}
            classes = {(str(t), int(r), int(c)): float(rate) for t, r, c, rate in data["classes"]}
            return cls(**{**data, "types": dict(data["types"]), "shapes": shapes, "classes": classes})
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"this is no table of times: {error}.") from error
