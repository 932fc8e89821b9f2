"""The plan as JSON: every site's format, with the exact bytes, for scripts and other tools."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tightfit.exporters.base import Shipment


def export(shipment: Shipment, out: Path) -> Path:
    """Write the plan to a file, whole or not at all.

    Returns:
        The path written.
    """
    partial = out.with_name(f".{out.name}.{os.getpid()}")
    partial.write_text(json.dumps(describe(shipment), indent=2) + "\n", encoding="utf-8")
    os.replace(partial, out)
    return out


def describe(shipment: Shipment) -> dict[str, Any]:
    """Return the content of the file; :meth:`tightfit.spaces.Plan.from_dict` reads it back."""
    space, plan = shipment.space, shipment.plan
    weight_bytes = space.weight_bytes(plan)
    return {
        **plan.to_dict(),
        "digest": plan.digest,
        "model": dict(shipment.model),
        "target": space.target.name,
        "weight_bytes": weight_bytes,
        "effective_bits": round(space.effective_bits(weight_bytes), 6),
        "sites": {
            space.geometry.linear(site).path: {
                "bits": option.bits,
                "group": option.group,
                "zero": option.zero,
                "bytes": option.tensor_bytes(
                    space.geometry.linear(site).rows, space.geometry.linear(site).cols
                ),
            }
            for site, option in space.site_options(plan).items()
        },
    }
