"""The rows of a store as dataclasses, and what may not enter it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from tightfit.spaces import Plan
from tightfit.workers.measurement import Measurement


@dataclass(frozen=True)
class Site:
    """A compressible matrix, as the store keeps it (see :class:`tightfit.spaces.Linear`)."""

    name: str
    layer: int | None
    module: str
    rows: int
    cols: int
    tied_to: str | None
    decision: str


@dataclass(frozen=True)
class Score:
    """What a proxy says about one option of one decision.

    Attributes:
        value: for ``prescreen``, ``marginal`` and ``calibrated`` the loss in nats per token when
            only this decision takes this option; for ``loss_model`` its term in the fitted model.
        se: standard error of ``value``, where known.
    """

    decision: str
    option: str
    value: float
    se: float | None = None


@dataclass(frozen=True)
class StoredPlan:
    """A plan with its exact bytes and the agent (or baseline) that first proposed it.

    Attributes:
        bytes: of its weights, and of its KV caches where it decides about them; those are ``cache_bytes``.
    """

    plan: Plan
    bytes: int
    source: str
    first_seen: float
    cache_bytes: int = 0


@dataclass(frozen=True)
class StoredTrial:
    """A proposal of an agent: in which of its turns and at which place of it, and with what note."""

    agent: str
    round: int
    position: int
    plan: str
    label: str
    kind: str
    note: dict[str, Any]


@dataclass(frozen=True)
class Event:
    """Something that happened in a run, at a Unix time in seconds."""

    id: int
    time: float
    stage: str
    kind: str
    data: dict[str, Any]


def measurement_record(measurement: Measurement) -> dict[str, Any]:
    """Return the row of a measurement, without its documents.

    Raises:
        ValueError: it scored no token, or a number in it is not finite.
    """
    what = f"measurement of plan {measurement.plan[:12]} on {measurement.split}"
    if not measurement.documents or measurement.tokens < 1:
        raise ValueError(f"{what}: no token was scored")
    for document in measurement.documents:
        check_finite(asdict(document), f"{what}, document {document.document}")
    se = measurement.kl_se if len(measurement.documents) > 1 else None
    try:
        perplexity, reference = measurement.perplexity, measurement.reference_perplexity
    except OverflowError as error:
        raise ValueError(f"{what}: the perplexity is not finite") from error
    record = {
        "plan": measurement.plan,
        "split": measurement.split,
        "protocol": measurement.protocol,
        "kl": measurement.kl,
        "kl_se": se,
        "delta_nll": measurement.delta_nll,
        "perplexity": perplexity,
        "reference_perplexity": reference,
        "agreement": measurement.agreement,
        "kl_p99": measurement.kl_p99,
        "tokens": measurement.tokens,
        "seconds": measurement.seconds,
        "created": time.time(),
    }
    check_finite(record, what)
    return record


def check_finite(row: Mapping[str, Any], what: str) -> None:
    """Raise a ValueError that names the first number of a row that is not finite."""
    for key, value in row.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{what}: {key} is {value}, and only finite numbers may enter the store")


def encode(value: Any) -> str:
    """Write a value as JSON; NumPy numbers and arrays become plain ones.

    Raises:
        ValueError: the value holds a number that is not finite.
    """
    try:
        return json.dumps(value, allow_nan=False, ensure_ascii=False, default=_plain)
    except ValueError as error:
        raise ValueError(f"only finite numbers may enter the store: {error}") from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} cannot be stored as JSON")
