"""Sizes as people write them. Inside Tightfit a size is always an integer number of bytes."""

from __future__ import annotations

import re

from tightfit.spaces.errors import InputError, suggest

_UNITS = {
    "B": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")


def parse_size(text: str | int) -> int:
    """Read a size such as ``90MiB``, ``1.5GB`` or ``1048576B`` as bytes, rounded down.

    Rounding down keeps a budget an upper bound. A plain number is refused: it does not say
    whether bytes or megabytes are meant.

    Raises:
        InputError: the text is no number followed by a unit, or the unit is unknown.
    """
    allowed = ", ".join(_UNITS)
    match = _SIZE.fullmatch(str(text))
    if match is None:
        raise InputError(
            f"{text!r} is not a size: write a number and a unit, such as 90MiB (units: {allowed})."
        )
    number, unit = match.groups()
    if unit not in _UNITS:
        by_fold = {name.lower(): name for name in _UNITS}
        nearest = by_fold.get(unit.lower()) or by_fold.get(unit.lower() + "b")
        hint = f" Did you mean {nearest!r}?" if nearest else suggest(unit, _UNITS)
        raise InputError(f"{text!r} has the unknown unit {unit!r} (units: {allowed}).{hint}")
    whole, _, fraction = number.partition(".")
    scale: int = 10 ** len(fraction)
    return int(whole + fraction) * _UNITS[unit] // scale


def format_size(size: int) -> str:
    """Write bytes for people, in binary units with two decimals: ``76.00 MiB``."""
    value = float(size)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024 or unit == "GiB":
            return f"{size} B" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    raise AssertionError("unreachable: the last unit always returns")
