"""The kinds of values that settings hold, each with its check and its JSON schema."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Annotated, Any, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    WithJsonSchema,
)

from tightfit.search.agents import AGENTS
from tightfit.search.yaml_reader import shown
from tightfit.spaces import (
    BITS,
    GGML_TYPES,
    GROUPS,
    KV_BITS,
    KV_GROUPS,
    TARGETS,
    InputError,
    KvOption,
    Zero,
    get_target,
    parse_size,
    read_option,
    suggest,
)

T = TypeVar("T")

BENCHES = ("llama.cpp",)

_MAX_SIZE = 2**63 - 1  # the largest integer that SQLite stores
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|min|h)\s*")
_SECONDS = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600}
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Section(BaseModel):
    """A mapping of known keys: frozen, nothing converted silently, unknown keys refused.

    The docstring below a field is its description in the JSON schema.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        use_attribute_docstrings=True,
    )


def refusing(read: Callable[[Any], T]) -> Callable[[Any], T]:
    """Let a model collect what a reader of ours refuses: pydantic catches ValueError only."""

    def checked(value: Any) -> T:
        try:
            return read(value)
        except InputError as error:
            raise ValueError(str(error)) from error

    return checked


def _size(value: Any) -> int:
    # The length is bounded because Python refuses to convert thousands of digits.
    if not isinstance(value, str | int) or len(str(value)) > 40:
        raise InputError(f"{shown(value)} is not a size such as 90MiB.")
    size = parse_size(value)
    if not 0 < size <= _MAX_SIZE:
        raise InputError(f"{value!r} is not a size from 1B to {_MAX_SIZE // 2**40}TiB.")
    return size


def _member(allowed: Collection[T]) -> Callable[[T], T]:
    def check(value: T) -> T:
        if value not in allowed:
            names = list(map(str, allowed))
            raise ValueError(f"{shown(value)} is not one of {', '.join(names)}.{suggest(str(value), names)}")
        return value

    return check


def _distinct(values: tuple[T, ...]) -> tuple[T, ...]:
    twice = [value for position, value in enumerate(values) if value in values[:position]]
    if twice:
        raise ValueError(f"{shown(twice[0])} is listed twice.")
    return values


def _run_name(value: str) -> str:
    if not _RUN_NAME.fullmatch(value):
        raise ValueError(
            f"{shown(value)} is not a folder name: use at most 64 letters, digits, '.', '_' and '-', "
            "beginning with a letter or digit."
        )
    return value


def _option_name(value: str) -> str:
    # Bounded for the same reason as sizes.
    if len(value) > 40:
        raise InputError(f"{shown(value)} is not an option name (examples: 4b-g64-float, 3b-row-sym, 16b).")
    return read_option(value).name


def _kv_option_name(value: str) -> str:
    if len(value) > 80:
        raise InputError(f"{shown(value)} is not a KV option (examples: k4v4-g32-r32-s4, k16v16, shared).")
    return KvOption.from_name(value).name


def _duration(value: Any) -> float:
    match = _DURATION.fullmatch(value) if isinstance(value, str) and len(value) <= 40 else None
    if match is None:
        raise InputError(
            f"{shown(value)} is not a duration: write a number and a unit, such as 20min (ms, s, min, h)."
        )
    seconds = float(match[1]) * _SECONDS[match[2]]
    if not 0 < seconds < 1e9:
        raise InputError(f"{value!r} is not a duration above zero and below 30 years.")
    return seconds


def _keep(value: float) -> float:
    if not 0 < value <= 1:
        raise InputError(f"{value:g} is not a share of the tokens: give more than 0 and at most 1.")
    return value


def _target_name(value: str) -> str:
    return get_target(value).name


_DURATION_SCHEMA = {
    "type": "string",
    "format": "duration",
    "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*(ms|s|min|h)\s*$",
    "examples": ["90s", "20min", "2h"],
}
_SIZE_SCHEMA = {
    "type": "string",
    "format": "size",
    "pattern": r"^\s*[0-9]+(\.[0-9]+)?\s*(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)\s*$",
    "examples": ["90MiB", "1.5GB"],
}
_OPTION_SCHEMA = {
    "type": "string",
    "pattern": rf"^(16b|32b|[234568]b-(g[1-9][0-9]*|row)-(sym|int|float)|{'|'.join(GGML_TYPES)})$",
    "examples": ["8b-g64-float", "3b-row-sym", "16b", "Q6_K"],
}
_KEEP_SCHEMA = {"type": "number", "exclusiveMinimum": 0, "maximum": 1}
_TUPLE = Field(strict=False, min_length=1, json_schema_extra={"uniqueItems": True})

Size = Annotated[
    int,
    BeforeValidator(refusing(_size)),
    PlainSerializer(lambda size: f"{size}B", return_type=str),
    WithJsonSchema(_SIZE_SCHEMA),
]
"""Bytes, written with a unit."""

Duration = Annotated[
    float,
    BeforeValidator(refusing(_duration)),
    PlainSerializer(lambda seconds: f"{seconds:g}s", return_type=str),
    WithJsonSchema(_DURATION_SCHEMA),
]
"""Seconds, written with a unit."""

Count = Annotated[int, Field(ge=1, le=10**9)]
"""A number of tokens or of measurements."""

PlanCount = Annotated[int, Field(ge=4, le=10**6)]
"""A number of whole plans to measure; fewer than four say nothing about a loss model."""

Text = Annotated[str, Field(min_length=1, max_length=1024)]

RunName = Annotated[
    str,
    AfterValidator(_run_name),
    WithJsonSchema({"type": "string", "pattern": f"^{_RUN_NAME.pattern}$", "examples": ["demo"]}),
]

TargetName = Annotated[
    str, AfterValidator(refusing(_target_name)), WithJsonSchema({"type": "string", "enum": list(TARGETS)})
]

Bits = Annotated[int, AfterValidator(_member(BITS)), WithJsonSchema({"enum": list(BITS)})]
Group = Annotated[int, AfterValidator(_member(GROUPS)), WithJsonSchema({"enum": list(GROUPS)})]
BitsList = Annotated[tuple[Bits, ...], _TUPLE, AfterValidator(_distinct)]
GroupList = Annotated[tuple[Group, ...], _TUPLE, AfterValidator(_distinct)]
TypeName = Annotated[
    str, AfterValidator(_member(GGML_TYPES)), WithJsonSchema({"type": "string", "enum": list(GGML_TYPES)})
]
TypeList = Annotated[tuple[TypeName, ...], _TUPLE, AfterValidator(_distinct)]
"""Tensor types of llama.cpp."""

ZeroList = Annotated[tuple[Zero, ...], _TUPLE, AfterValidator(_distinct)]

Pattern = Annotated[str, Field(min_length=1, max_length=256, examples=["*.down_proj"])]
"""A shell glob over site names."""

OptionName = Annotated[str, AfterValidator(refusing(_option_name)), WithJsonSchema(_OPTION_SCHEMA)]
KvOptionName = Annotated[
    str,
    AfterValidator(refusing(_kv_option_name)),
    WithJsonSchema({"type": "string", "examples": ["k16v16", "k4v4-g32-r32-s4-keep0.5", "k8v8-block"]}),
]
KvBits = Annotated[
    int, AfterValidator(_member(KV_BITS["channel"])), WithJsonSchema({"enum": list(KV_BITS["channel"])})
]
KvBitsList = Annotated[tuple[KvBits, ...], _TUPLE, AfterValidator(_distinct)]
KvGroup = Annotated[int, AfterValidator(_member(KV_GROUPS)), WithJsonSchema({"enum": list(KV_GROUPS)})]
Keep = Annotated[float, Field(strict=False), AfterValidator(refusing(_keep)), WithJsonSchema(_KEEP_SCHEMA)]
KeepList = Annotated[tuple[Keep, ...], _TUPLE, AfterValidator(_distinct)]
"""Shares of the tokens that a KV cache keeps."""

PatternList = Annotated[
    tuple[Pattern, ...],
    Field(strict=False, json_schema_extra={"uniqueItems": True}),
    AfterValidator(_distinct),
]

BenchName = Annotated[
    str, AfterValidator(_member(BENCHES)), WithJsonSchema({"type": "string", "enum": list(BENCHES)})
]
BenchList = Annotated[tuple[BenchName, ...], Field(strict=False), AfterValidator(_distinct)]
"""Tools that finalists are run in."""

AgentName = Annotated[
    str, AfterValidator(_member(AGENTS)), WithJsonSchema({"type": "string", "enum": list(AGENTS)})
]
AgentList = Annotated[tuple[AgentName, ...], _TUPLE, AfterValidator(_distinct)]
