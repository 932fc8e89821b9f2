"""Plans: one option for every decision, written as canonical JSON and named by its digest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tightfit.spaces.errors import InputError

PLAN_VERSION = 1


@dataclass(frozen=True)
class Plan:
    """One option for every decision of a space.

    Attributes:
        choices: (decision name, option name) pairs in the order of the space.
    """

    choices: tuple[tuple[str, str], ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data, as it is written to files."""
        return {"tightfit_plan": PLAN_VERSION, "choices": dict(self.choices)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """Read a plan from plain data.

        Raises:
            InputError: this is no plan, or one of an unknown version.
        """
        version, choices = data.get("tightfit_plan"), data.get("choices")
        if version != PLAN_VERSION:
            raise InputError(f"tightfit_plan is {version!r}, this version reads {PLAN_VERSION}.")
        if not isinstance(choices, Mapping) or not all(isinstance(value, str) for value in choices.values()):
            raise InputError("choices must map decision names to option names.")
        return cls(tuple(choices.items()))

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the canonical JSON (sorted keys, no spaces); equal plans have equal digests."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    @property
    def short(self) -> str:
        """First twelve characters of the digest, for people."""
        return self.digest[:12]
