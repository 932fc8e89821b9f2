"""The plan as JSON: every matrix's and every cache's format, with the exact bytes, for scripts and tools."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tightfit.exporters.base import Shipment, write_whole
from tightfit.exporters.kv.layers import layer_caches, load_of
from tightfit.spaces import GgmlOption, Option


def export(shipment: Shipment, out: Path) -> Path:
    """Write the plan to a file and return the path written.

    Raises:
        InputError: the file cannot be written, or the plan is not one of the space.
    """
    return write_whole(out, json.dumps(describe(shipment), indent=2) + "\n")


def describe(shipment: Shipment) -> dict[str, Any]:
    """Return the content of the file; :meth:`tightfit.spaces.Plan.from_dict` reads it back.

    ``fixed_bytes`` and the bytes of the sites add up to ``weight_bytes``. Sites go by their module
    path; a head that is tied to the embedding has no entry of its own. Where a plan decides about KV caches,
    those of the layers add up to the ``bytes`` of ``kv``, and these and the weights to ``total_bytes``.

    Raises:
        InputError: the plan is not one of the space.
    """
    space, plan = shipment.space, shipment.plan
    weight_bytes = space.weight_bytes(plan)
    return {
        **plan.to_dict(),
        "digest": plan.digest,
        "model": dict(shipment.model),
        "target": space.target.name,
        "weight_bytes": weight_bytes,
        "fixed_bytes": space.fixed_bytes,
        "effective_bits": round(space.effective_bits(weight_bytes), 6),
        **(_caches(shipment) if space.has_kv else {}),
        "sites": {
            space.geometry.linear(site).path: {
                **_format(option),
                "bytes": option.tensor_bytes(
                    space.geometry.linear(site).rows, space.geometry.linear(site).cols
                ),
            }
            for site, option in space.site_options(plan).items()
        },
    }


def _caches(shipment: Shipment) -> dict[str, Any]:
    """Return the part about KV caches: at which load, and what every layer is stored as."""
    load, size = load_of(shipment.space), shipment.space.cache_bytes(shipment.plan)
    layers = {
        f"layers.{layer}.kv": {"option": cache.option.name, **cache.option.to_dict(), "bytes": cache.bytes}
        for layer, cache in enumerate(layer_caches(shipment))
    }
    return {
        "total_bytes": shipment.space.weight_bytes(shipment.plan) + size,
        "kv": {**asdict(load), "bytes": size, "layers": layers},
    }


def _format(option: Option) -> dict[str, Any]:
    if isinstance(option, GgmlOption):
        return {"type": option.type, "bits": option.bits}
    return {"bits": option.bits, "group": option.group, "zero": option.zero}
