"""Typed settings: what ``search.yaml`` may say, with defaults, checks and their JSON schema.

``load_settings`` reads a file and the command line's ``-s key=value`` overrides, and reports every
problem at once with the line it stands on. The committed ``search/search.schema.json`` is what
:func:`json_schema` returns; ``docs/settings.md`` explains every key.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from tightfit.search.overrides import apply_override
from tightfit.search.schema import Schema, problems_of, schema_of
from tightfit.search.setting_types import (
    AgentList,
    BenchList,
    BitsList,
    Count,
    Duration,
    GroupList,
    KeepList,
    KvBitsList,
    KvGroup,
    KvOptionName,
    OptionName,
    Pattern,
    PatternList,
    PlanCount,
    RunName,
    Section,
    Size,
    TargetName,
    Text,
    TypeList,
    ZeroList,
    refusing,
)
from tightfit.search.yaml_reader import KeyPath, Place, Problem, SettingsError, read_yaml
from tightfit.spaces import Budget, KvRules, Target, WeightRules, get_target

_RULES, _KV = WeightRules(), KvRules()


class BudgetSettings(Section):
    """Upper bounds that the plan must keep."""

    weights: Size | None = None
    """Most bytes of all weights."""
    total: Size | None = None
    """Most bytes of weights and KV cache together; needs `context`."""
    kv: Size | None = None
    """Most bytes of the KV cache; needs `context`."""
    effective_bits: Annotated[float, Field(gt=0, le=32)] | None = None
    """Most stored bits per compressible weight, scales and zero points included."""
    context: Annotated[int, Field(ge=1, le=2**24)] | None = None
    """Tokens per sequence in the KV cache."""
    batch: Annotated[int, Field(ge=1, le=2**16)] = 1
    """Sequences in the KV cache."""
    shared_prefix: Annotated[int, Field(ge=0, le=2**24)] = 0
    """First tokens that all sequences of the batch have in common, which are stored once."""
    tokens_per_second: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Least speed of generation, in the tool of the target, on one thread of this machine."""
    latency: Duration | None = None
    """Most time to the first token of a prompt of `validate.prompt` tokens, such as 200ms."""

    @model_validator(mode="after")
    def _bounded(self) -> BudgetSettings:
        refusing(BudgetSettings.to_budget)(self)
        return self

    def to_budget(self) -> Budget:
        """Return the budget.

        Raises:
            InputError: no bound is given, or total without context.
        """
        return Budget(**dict(self))


class WeightSettings(Section):
    """Formats of the weight matrices: every combination of `bits`, `groups` and `zeros`."""

    bits: BitsList = _RULES.bits
    """Bits per weight on offer; 16 and 32 are plain floats without groups."""
    groups: GroupList = _RULES.groups
    """Consecutive weights that share a scale; 0 is one scale per output row."""
    zeros: ZeroList = _RULES.zeros
    """How a group is shifted: not at all, by an integer zero point, or by its minimum as a float."""
    only: dict[Pattern, BitsList] = Field(default={})
    """Per site pattern, the bits that matching sites may take instead of `bits`."""
    pin: dict[Pattern, OptionName] = Field(default={})
    """Per site pattern, the one format that matching sites take."""
    exclude: PatternList = ()
    """Patterns of sites that keep the base dtype of the model."""
    types: TypeList | None = None
    """Types on offer where the target is llama.cpp; null: its K-quants and IQ4_XS with these `bits`."""
    strict: bool = False
    """Refuse a type whose blocks do not divide a width, instead of offering what llama.cpp falls back to."""


class KvSettings(Section):
    """Ways to store the KV cache of a layer: every combination of `bits` and `keep`."""

    bits: KvBitsList | None = _KV.bits
    """Bits per cached value on offer, of keys and of values; null: the usual ones of the target."""
    keep: KeepList = _KV.keep
    """Shares of the context's tokens that may be kept, chosen by attention mass."""
    separate: bool = _KV.separate
    """Whether keys and values choose their bits apart from one another."""
    group: KvGroup = _KV.group
    """Tokens that share a scale of a channel of keys."""
    residual: Annotated[int, Field(ge=0, le=2**16)] = _KV.residual
    """Most recent tokens that stay 16-bit floats."""
    sinks: Annotated[int, Field(ge=0, le=2**16)] = _KV.sinks
    """First tokens that stay 16-bit floats and are never evicted."""
    spread: bool = _KV.spread
    """Also offer keys whose bits are spread over rotary pairs by their energy."""
    share: bool = _KV.share
    """Also offer to read the cache of the layer below."""
    cutoff: bool = _KV.cutoff
    """Also offer to keep only the sinks of the prompt."""
    pin: dict[Pattern, KvOptionName] = Field(default={})
    """Per pattern of caches, which are called `layers.3.kv`, the one option that they take."""


class SpaceSettings(Section):
    """What may be chosen."""

    weights: WeightSettings = Field(default_factory=WeightSettings)
    """Formats of the weight matrices."""
    kv: KvSettings | None = None
    """Ways to store the KV cache; null leaves it uncompressed."""


class DatasetSettings(Section):
    """A Hugging Face dataset; needs the extra `tightfit[data]`."""

    id: Annotated[Text, Field(examples=["Salesforce/wikitext"])]
    """Hub id of the dataset."""
    config: Annotated[Text, Field(examples=["wikitext-2-raw-v1"])] | None = None
    """Configuration of the dataset, where it has several."""
    split: Annotated[Text, Field(examples=["train"])] = "train"
    """Split of the dataset."""
    column: Annotated[Text, Field(examples=["text"])] = "text"
    """Column that holds the text."""


class TextSettings(Section):
    """The text that losses are measured on, and how many tokens each of its four parts has."""

    source: Annotated[Text, Field(examples=["python-docs"])] | None = "python-docs"
    """`python-docs`, or a `.txt` file, a `.jsonl` file or a folder of them."""
    dataset: DatasetSettings | None = None
    """A Hugging Face dataset, in place of `source`."""
    sequence: Annotated[int, Field(ge=8, le=2**20)] = 128
    """Most tokens per window, those of the prefix not counted."""
    prefix: Annotated[int, Field(ge=0, le=2**20)] | None = None
    """Tokens read before them; null is 0, and with `space.kv` up to 1024 of `budget.context`."""
    calibration: Count = 2048
    """Tokens that the statistics of the quantizer are taken from."""
    selection: Count = 2048
    """Tokens that the search measures on."""
    validation: Count = 2048
    """Tokens that pick the winner among the finalists."""
    holdout: Count = 4096
    """Tokens that the chosen plan and its baselines are judged on, once."""
    allow_shortfall: bool = False
    """Whether to go on where the text has fewer tokens than asked for."""

    @model_validator(mode="before")
    @classmethod
    def _no_default_beside_dataset(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("dataset") is not None and "source" not in data:
            return {**data, "source": None}
        return data

    @model_validator(mode="after")
    def _one_origin(self) -> TextSettings:
        if (self.source is None) == (self.dataset is None):
            given = "neither source nor dataset is" if self.source is None else "both source and dataset are"
            raise ValueError(f"{given} given; give one of them (null unsets the other).")
        return self

    @field_validator("calibration", "selection", "validation", "holdout")
    @classmethod
    def _holds_a_window(cls, tokens: int, info: ValidationInfo) -> int:
        sequence = info.data.get("sequence", 0)
        if tokens < sequence:
            raise ValueError(f"{tokens} tokens are fewer than one window of text.sequence ({sequence}).")
        return tokens


class SenseSettings(Section):
    """How much is measured before solving."""

    prescreen_tokens: Count = 2048
    """Selection tokens of the backward pass that scores every option."""
    marginals: Count = 64
    """Measurements of one matrix' option alone."""
    kv_marginals: Count = 48
    """Measurements of one cache's option alone, with `space.kv`."""
    pairs: Annotated[int, Field(ge=0, le=10**6)] = 16
    """Measurements of few bits in a block's keys and values together with a small cache, with `space.kv`."""
    marginal_tokens: Count = 512
    """Selection tokens of each of them."""
    fit_plans: PlanCount = 32
    """Measurements of whole plans that the loss model is fitted on."""
    fit_tokens: Count = 1024
    """Selection tokens of each of them, and of each certificate plan."""
    certificate_plans: PlanCount = 32
    """Measurements of whole plans that only test the loss model."""


class SearchSettings(Section):
    """Who proposes plans."""

    agents: AgentList = ("uniform", "mix", "greedy", "exact", "relinearize")
    """Agents that propose plans; `uniform` and `mix` are in the race even where they are not listed."""
    mode: Literal["budget", "front"] = "budget"
    """Whether agents seek the best plan of the budget, or good plans of every size up to it."""
    evaluations: Annotated[int, Field(ge=0, le=10**6)] = 32
    """Most plans that agents which learn from measurements may measure, all of them together."""
    batch: Annotated[int, Field(ge=1, le=1024)] = 4
    """Plans that such an agent proposes at a time."""
    sensitivity_tokens: Count | None = None
    """Calibration tokens of the backward passes of `relinearize`; null is at most 1024."""
    time: Duration | None = None
    """Time of the whole run after which no agent is asked for further plans."""
    finalists: Annotated[int, Field(ge=1, le=64)] = 6
    """Best plans that are measured on the validation text."""


class ValidateSettings(Section):
    """How the finalists and their baselines are run in the tool that the plan is for."""

    hardware: BenchList = ()
    """Tools to run them in: `llama.cpp`, or none."""
    prompt: Annotated[int, Field(ge=1, le=2**20)] = 128
    """Tokens of the prompt whose speed is measured."""
    generate: Annotated[int, Field(ge=1, le=2**20)] = 32
    """Tokens that are generated after it."""
    rounds: Annotated[int, Field(ge=3, le=1000)] = 5
    """Times that every file is run, in turn with the others."""


class WorkerSettings(Section):
    """Processes that measure plans side by side, started through Ray; losses do not depend on them."""

    count: Annotated[int, Field(ge=0, le=4096)] | None = None
    """Workers for the whole run; null is none, or with `address` as many as the cluster has CPUs."""
    validation: Annotated[int, Field(ge=0, le=4096)] | None = None
    """Workers for the last stage where `count` is none; null is one per physical core."""
    address: Annotated[Text, Field(examples=["auto"])] | None = None
    """A running Ray cluster to use: `auto` or host:port; null starts one on this machine alone."""


class LimitSettings(Section):
    """Limits on what the search itself uses."""

    option_cache: Size = Field(default="4GiB", validate_default=True)
    """Most bytes of packed options that are kept on disk, in the run's folder."""


class Settings(Section):
    """Everything a run is told."""

    name: RunName = "search"
    """Name of the run; its folder is this name inside `runs`."""
    model: Annotated[Text, Field(examples=["smollm2-135m-offgrid"])] = "smollm2-135m-offgrid"
    """An alias, a local folder or a Hugging Face id."""
    seed: Annotated[int, Field(ge=0, le=2**32 - 1)] = 0
    """Every random draw of the run derives from it."""
    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Torch threads; null is one per physical core. Recorded with the run."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where the model runs."""
    target: TargetName = "any"
    """The tool that the plan is for; it decides which formats exist and which sites must agree."""
    budget: BudgetSettings
    """Upper bounds; any of them together, at least one."""
    space: SpaceSettings = Field(default_factory=SpaceSettings)
    """What may be chosen."""
    text: TextSettings = Field(default_factory=TextSettings)
    """The text that losses are measured on."""
    sense: SenseSettings = Field(default_factory=SenseSettings)
    """What is measured before solving."""
    search: SearchSettings = Field(default_factory=SearchSettings)
    """Who proposes plans."""
    validation: ValidateSettings = Field(default_factory=ValidateSettings, alias="validate")
    """How finalists are run on this machine."""
    workers: WorkerSettings = Field(default_factory=WorkerSettings)
    """Processes that measure plans side by side."""
    limits: LimitSettings = Field(default_factory=LimitSettings)
    """Limits on what the search itself uses."""
    runs: Annotated[Text, Field(examples=["runs"])] = "runs"
    """Folder of the run folders."""

    @field_validator("sense", "search")
    @classmethod
    def _within_text(cls, section: Section, info: ValidationInfo) -> Section:
        """Refuse measurements on more tokens than there will be, rather than shorten them silently."""
        if "text" not in info.data:
            return section
        part = "selection" if info.field_name == "sense" else "calibration"
        available = getattr(info.data["text"], part)
        asked = {key: tokens for key, tokens in section if key.endswith("_tokens")}
        over = [_too_many(key, n, part, available) for key, n in asked.items() if n and n > available]
        if over:
            raise ValidationError.from_exception_data(str(info.field_name), over)
        return section

    @model_validator(mode="after")
    def _runs_what_it_can(self) -> Settings:
        """Refuse what only a tool can tell where the plan is not for that tool."""
        asked = {f"validate.hardware: {name}": name for name in self.validation.hardware}
        if self.budget.tokens_per_second is not None:
            asked["budget.tokens_per_second"] = "llama.cpp"
        if self.budget.latency is not None:
            asked["budget.latency"] = "llama.cpp"
        if self.space.kv is not None:
            if self.budget.context is None:
                raise ValueError("space.kv: also give budget.context, since the KV cache grows with it.")
            if self.budget.shared_prefix and not get_target(self.target).kv.shares_prefixes:
                raise ValueError(
                    f"budget.shared_prefix: target {self.target} keeps a whole cache for every sequence, so "
                    "nothing that they share is stored once; leave it out."
                )
            if self.budget.tokens_per_second is not None or self.budget.latency is not None:
                raise ValueError("space.kv: it cannot go with bounds on speed, which know plain caches only.")
        for key, tool in asked.items():
            if self.target != tool:
                raise ValueError(f"{key} needs target: {tool}, but the target is {self.target}.")
        return self

    def weight_rules(self) -> WeightRules:
        """Return which weight options the space offers."""
        weights = self.space.weights
        return WeightRules(
            weights.bits,
            weights.groups,
            weights.zeros,
            weights.only,
            weights.pin,
            weights.exclude,
            weights.types,
            weights.strict,
        )

    def kv_rules(self) -> KvRules | None:
        """Return which KV options the space offers; None where caches stay as they are."""
        return None if self.space.kv is None else KvRules(**dict(self.space.kv))

    def target_rules(self) -> Target:
        """Return what the target allows."""
        return get_target(self.target)

    def to_dict(self) -> dict[str, Any]:
        """Return every setting, defaults included, as plain JSON data; sizes in bytes (``1024B``).

        The order of the patterns in ``only`` and ``pin`` has a meaning, so do not sort the keys.
        """
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], source: str = "settings") -> Settings:
        """Read settings from plain data.

        Args:
            data: as from :meth:`to_dict`; missing keys take their defaults.
            source: what to call the data in messages.

        Raises:
            InputError: lists everything that is wrong, one a line.
        """
        return _validated(dict(data), {(): Place(source)}, [])


def load_settings(path: str | Path, overrides: Sequence[str] = ()) -> Settings:
    """Read a settings file.

    Args:
        path: a YAML file.
        overrides: ``key=value`` each; the key dotted, the value YAML. Of two for one key the last wins.

    Raises:
        InputError: lists everything that is wrong with file and overrides, one a line with its place.
    """
    tree = read_yaml(Path(path))
    places = {**tree.places, (): Place(str(path))}
    problems = list(tree.problems)
    schema = json_schema()
    for text in overrides:
        problems += apply_override(text, tree.value, places, schema)
    return _validated(tree.value, places, problems)


def json_schema() -> Schema:
    """Return the JSON schema of ``search.yaml`` (draft 2020-12), for editors."""
    return schema_of(Settings, "Tightfit search settings")


def _validated(data: dict[str, Any], places: Mapping[KeyPath, Place], problems: list[Problem]) -> Settings:
    try:
        settings = Settings.model_validate(data)
    except ValidationError as error:
        raise SettingsError([*problems, *problems_of(error, json_schema(), places)]) from error
    if problems:
        raise SettingsError(problems)
    return settings


def _too_many(key: str, tokens: int, part: str, available: int) -> InitErrorDetails:
    # The form in which a check of a whole section can blame a key inside it.
    text = f"{tokens} tokens are more than text.{part} has ({available})."
    kind = PydanticCustomError("value_error", "{error}", {"error": text})
    return InitErrorDetails(type=kind, loc=(key,), input=tokens)
