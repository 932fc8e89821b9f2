"""What an exporter is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tightfit.spaces import Plan, Space


@dataclass(frozen=True)
class Shipment:
    """A plan on its way to another tool.

    Attributes:
        model: name, digest and family of the model that the plan was found for.
    """

    space: Space
    plan: Plan
    model: Mapping[str, Any]
