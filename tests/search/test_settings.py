from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tightfit.search.settings import Settings, load_settings
from tightfit.spaces import BITS, GROUPS, ZEROS, Budget, InputError, KvRules, WeightRules, get_target

ROOT = Path(__file__).parents[2]
BUDGET = "budget: {weights: 76MiB}\n"
CACHED = "budget: {total: 1MiB, context: 64}\nspace: {kv: {"


@pytest.fixture
def refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[str]]:
    """Load settings that are wrong; return the lines of the error."""
    monkeypatch.chdir(tmp_path)

    def load(text: str, *overrides: str) -> list[str]:
        Path("search.yaml").write_text(text, encoding="utf-8")
        with pytest.raises(InputError) as caught:
            load_settings("search.yaml", overrides)
        assert caught.value.exit_code == 2
        return str(caught.value).splitlines()

    return load


def from_text(folder: Path, text: str) -> Settings:
    path = folder / "search.yaml"
    path.write_text(text, encoding="utf-8")
    return load_settings(path)


def test_the_demo_settings_convert() -> None:
    settings = load_settings(ROOT / "search.yaml")
    assert settings.name == "demo"
    assert settings.budget.to_budget() == Budget(weights=76 * 2**20)
    assert settings.weight_rules() == WeightRules(
        bits=(3, 4, 5, 6), groups=(64,), zeros=("integer", "float"), pin={"embed": "8b-g64-float"}
    )
    assert settings.target_rules() is get_target("any")
    assert settings.limits.option_cache == 4 * 2**30


def test_a_budget_is_enough() -> None:
    settings = Settings.from_dict({"budget": {"effective_bits": 4}})
    assert settings.weight_rules() == WeightRules()
    assert settings.budget.to_budget() == Budget(effective_bits=4.0)
    assert settings.text.source == "python-docs"
    assert settings.threads is None


def test_every_setting_arrives_where_it_is_used(tmp_path: Path) -> None:
    settings = from_text(
        tmp_path,
        """
        target: vllm
        budget: {total: 1.5GB, context: 4096, batch: 2, weights: 1GiB, effective_bits: 4.25}
        space:
          weights:
            bits: [8, 2]
            groups: [0, 128]
            zeros: [none, integer]
            only: {"*.down_proj": [4, 8], "layers.0.*": [8]}
            pin: {head: 16b, embed: 8b-row-sym}
            exclude: ["layers.1.*"]
        """,
    )
    assert settings.budget.to_budget() == Budget(
        weights=2**30, total=15 * 10**8, effective_bits=4.25, context=4096, batch=2
    )
    rules = settings.weight_rules()
    assert rules == WeightRules(
        bits=(8, 2),
        groups=(0, 128),
        zeros=("none", "integer"),
        only={"*.down_proj": (4, 8), "layers.0.*": (8,)},
        pin={"head": "16b", "embed": "8b-row-sym"},
        exclude=("layers.1.*",),
    )
    # Where several patterns match, the last wins, so their order has to survive.
    assert list(rules.only) == ["*.down_proj", "layers.0.*"]
    assert list(rules.pin) == ["head", "embed"]
    assert settings.target_rules() is get_target("vllm")


def test_every_setting_about_caches_arrives_where_it_is_used(tmp_path: Path) -> None:
    settings = from_text(
        tmp_path,
        """
        budget: {kv: 60MiB, context: 4096, batch: 2}
        space:
          kv:
            bits: [16, 3]
            keep: [1, 0.25]
            separate: true
            group: 64
            residual: 16
            sinks: 8
            spread: true
            share: true
            cutoff: true
            pin: {"layers.0.kv": k8v8, "*.1.kv": shared}
        """,
    )
    assert settings.budget.to_budget() == Budget(kv=60 * 2**20, context=4096, batch=2)
    rules = settings.kv_rules()
    assert rules == KvRules(
        bits=(16, 3),
        keep=(1.0, 0.25),
        separate=True,
        group=64,
        residual=16,
        sinks=8,
        spread=True,
        share=True,
        cutoff=True,
        pin={"layers.0.kv": "k8v8-g32-r32-s4", "*.1.kv": "shared"},
    )
    assert Settings.from_dict(settings.to_dict()) == settings


def test_caches_stay_as_they_are_unless_asked_for(tmp_path: Path) -> None:
    assert from_text(tmp_path, "budget: {total: 1MiB, context: 64}").kv_rules() is None
    assert from_text(tmp_path, "budget: {total: 1MiB, context: 64}\nspace: {kv: {}}").kv_rules() == KvRules()


NO_BOUND = "budget: give at least one of weights, total, kv, effective_bits, tokens_per_second or latency."
WRONG_VALUES = [
    # Sizes.
    ("budget: {weights: 76}", "budget.weights: 76 is not a size: write a number and a unit"),
    ("budget: {weights: '76'}", "budget.weights: '76' is not a size: write a number and a unit"),
    ("budget: {weights: -5MiB}", "budget.weights: '-5MiB' is not a size"),
    ("budget: {weights: 76Mib}", "unknown unit 'Mib' (units: B, kB"),
    ("budget: {weights: 76 mb}", "Did you mean 'MB'?"),
    ("budget: {weights: true}", "budget.weights: True is not a size"),
    ("budget: {weights: 1.5}", "budget.weights: 1.5 is not a size"),
    ("budget: {weights: .inf}", "budget.weights: inf is not a size"),
    ("budget: {weights: .nan}", "budget.weights: nan is not a size"),
    ("budget: {weights: [76MiB]}", "budget.weights: a list is not a size such as 90MiB"),
    ("budget: {weights: {MiB: 76}}", "budget.weights: a mapping is not a size such as 90MiB"),
    ("budget: {weights: 0B}", "budget.weights: '0B' is not a size from 1B"),
    ("budget: {weights: 0.4B}", "budget.weights: '0.4B' is not a size from 1B"),
    ("budget: {weights: 9999999999TiB}", "budget.weights: '9999999999TiB' is not a size from 1B to"),
    (f"budget: {{weights: {'9' * 5000}MiB}}", "is not a size such as 90MiB"),
    (f"{BUDGET}limits: {{option_cache: null}}", "limits.option_cache: null is not a size such as 90MiB"),
    # Numbers.
    ("budget: {effective_bits: .nan}", "budget.effective_bits: nan is not a number above 0 and at most 32"),
    ("budget: {effective_bits: .inf}", "budget.effective_bits: inf is not a number"),
    ("budget: {effective_bits: 0}", "budget.effective_bits: 0 is not a number above 0"),
    ("budget: {effective_bits: -3.5}", "budget.effective_bits: -3.5 is not a number above 0"),
    ("budget: {effective_bits: 33}", "budget.effective_bits: 33 is not a number"),
    ("budget: {effective_bits: true}", "budget.effective_bits: true is not a number"),
    ("budget: {effective_bits: '4'}", "budget.effective_bits: '4' is not a number"),
    (f"{BUDGET}seed: -1", "seed: -1 is not a whole number from 0 to 4294967295"),
    (f"{BUDGET}seed: true", "seed: true is not a whole number"),
    (f"{BUDGET}seed: 1.0", "seed: 1.0 is not a whole number"),
    (f"{BUDGET}seed: 1:30", "seed: '1:30' is not a whole number"),
    (f"{BUDGET}seed: {'9' * 19}", "seed: 9999999999999999999 is not a whole number"),
    (f"{BUDGET}seed: {'9' * 10000}", "seed: inf is not a whole number"),
    (f"{BUDGET}seed: null", "seed: null is not a whole number"),
    (f"{BUDGET}seed: [1]", "seed: a list is not a whole number"),
    (f"{BUDGET}seed: yes", "seed: 'yes' is not a whole number"),
    (f"{BUDGET}threads: 0", "threads: 0 is not a whole number from 1 to 1024, or null"),
    (f"{BUDGET}text: {{sequence: 4}}", "text.sequence: 4 is not a whole number from 8"),
    (f"{BUDGET}sense: {{fit_plans: 1}}", "sense.fit_plans: 1 is not a whole number from 4"),
    (f"{BUDGET}search: {{finalists: 1000}}", "search.finalists: 1000 is not a whole number from 1 to 64"),
    # Switches.
    (f"{BUDGET}text: {{allow_shortfall: yes}}", "text.allow_shortfall: 'yes' is not true or false"),
    (f"{BUDGET}text: {{allow_shortfall: 1}}", "text.allow_shortfall: 1 is not true or false"),
    # Words.
    (f"{BUDGET}device: gpu", "device: 'gpu' is not one of auto, cpu, cuda, mps. Did you mean 'cpu'?"),
    (f"{BUDGET}device: off", "device: 'off' is not one of auto, cpu, cuda, mps."),
    (
        f"{BUDGET}target: vlm",
        "target: no target is called 'vlm' (targets: any, vllm, llama.cpp). Did you mean 'vllm'?",
    ),
    (f"{BUDGET}target: 3", "target: 3 is not one of any, vllm, llama.cpp."),
    # Text.
    (f"{BUDGET}model: ''", "model: '' is not text such as smollm2-135m-offgrid"),
    (f"{BUDGET}model: null", "model: null is not text"),
    (f"{BUDGET}model: 2024", "model: 2024 is not text such as smollm2-135m-offgrid. Quote it"),
    (f"{BUDGET}name: 2024", "name: 2024 is not text such as demo. Quote it"),
    (f"{BUDGET}name: -1", "name: -1 is not text such as demo."),
    (f"{BUDGET}model: [a]", "model: a list is not text"),
    *[
        (f"{BUDGET}name: {name}", f"name: '{name}' is not a folder name: use at most 64 letters")
        for name in ("a/b", "..", ".", ".hidden", "-s", "first try", "C:demo", "naïve", "a" * 50 + "/")
    ],
    (f"{BUDGET}name: 'a\\b'", "is not a folder name"),
    (f"{BUDGET}name: {'a' * 65}", "is not a folder name"),
    (f"{BUDGET}name: /etc", "is not a folder name"),
    # Lists.
    (f"{BUDGET}space: {{weights: {{bits: 4}}}}", "space.weights.bits: 4 is not a non-empty list, each item"),
    (f"{BUDGET}space: {{weights: {{bits: []}}}}", "space.weights.bits: an empty list is not a non-empty"),
    (f"{BUDGET}space: {{weights: {{bits: {{}}}}}}", "space.weights.bits: an empty mapping is not a non-"),
    (f"{BUDGET}space: {{weights: {{bits: null}}}}", "space.weights.bits: null is not a non-empty list"),
    (f"{BUDGET}space: {{weights: {{bits: '34'}}}}", "space.weights.bits: '34' is not a non-empty list"),
    (f"{BUDGET}space: {{weights: {{bits: [4, 7]}}}}", "space.weights.bits[1]: 7 is not one of 2, 3, 4, 5"),
    (f"{BUDGET}space: {{weights: {{bits: [4.0]}}}}", "space.weights.bits[0]: 4.0 is not one of 2, 3"),
    (f"{BUDGET}space: {{weights: {{bits: ['4']}}}}", "space.weights.bits[0]: '4' is not one of 2, 3"),
    (f"{BUDGET}space: {{weights: {{bits: [[4]]}}}}", "space.weights.bits[0]: a list is not one of 2, 3"),
    (f"{BUDGET}space: {{weights: {{bits: [4, 3, 4]}}}}", "space.weights.bits: 4 is listed twice."),
    (f"{BUDGET}space: {{weights: {{groups: [256]}}}}", "space.weights.groups[0]: 256 is not one of 32, 64"),
    (f"{BUDGET}space: {{weights: {{groups: [false]}}}}", "space.weights.groups[0]: false is not one of 32"),
    (f"{BUDGET}space: {{weights: {{zeros: [int]}}}}", "Did you mean 'integer'?"),
    (f"{BUDGET}space: {{weights: {{zeros: [null]}}}}", "space.weights.zeros[0]: null is not one of none"),
    (f"{BUDGET}search: {{agents: [exakt]}}", "search.agents[0]: 'exakt' is not one of uniform, mix, greedy"),
    (f"{BUDGET}search: {{agents: []}}", "search.agents: an empty list is not a non-empty list"),
    # Patterns.
    (f"{BUDGET}space: {{weights: {{only: [3]}}}}", "space.weights.only: a list is not a mapping from site"),
    (f"{BUDGET}space: {{weights: {{only: {{head: 3}}}}}}", "space.weights.only.head: 3 is not a non-empty"),
    (f"{BUDGET}space: {{weights: {{only: {{head: [9]}}}}}}", "space.weights.only.head[0]: 9 is not one of"),
    (f"{BUDGET}space: {{weights: {{only: {{'': [3]}}}}}}", "only['']: '' is not a site pattern."),
    (f"{BUDGET}space: {{weights: {{pin: {{embed: 8}}}}}}", "space.weights.pin.embed: 8 is not text such as"),
    (f"{BUDGET}space: {{weights: {{pin: {{embed: 8b}}}}}}", "space.weights.pin.embed: '8b' is not an option"),
    (f"{BUDGET}space: {{weights: {{pin: {{embed: 7b-row-sym}}}}}}", "pin.embed: 7 bits are not offered"),
    (f"{BUDGET}space: {{weights: {{pin: {{'*.q': '{'4' * 5000}b-row-sym'}}}}}}", "is not an option name"),
    (f"{BUDGET}space: {{weights: {{exclude: head}}}}", "space.weights.exclude: 'head' is not a list"),
    (f"{BUDGET}space: {{weights: {{exclude: [head, head]}}}}", "exclude: 'head' is listed twice."),
    (f"{BUDGET}space: {{weights: {{exclude: [3]}}}}", "space.weights.exclude[0]: 3 is not text such as"),
    # Caches.
    (f"{CACHED}bits: [7]}}}}", "space.kv.bits[0]: 7 is not one of 2, 3, 4, 5, 6, 8, 16."),
    (f"{CACHED}bits: []}}}}", "space.kv.bits: an empty list"),
    (f"{CACHED}keep: [0]}}}}", "space.kv.keep[0]: 0 is not a share of the tokens: give more than 0"),
    (f"{CACHED}keep: [0.5, 1.1]}}}}", "space.kv.keep[1]: 1.1 is not a share"),
    (f"{CACHED}group: 48}}}}", "space.kv.group: 48 is not one of 32, 64, 128."),
    (f"{CACHED}sinks: -1}}}}", "space.kv.sinks: -1"),
    (f"{CACHED}pin: {{'*.kv': k8}}}}}}", "'k8' is not a KV option (examples: k4v4-g32-r32-s4-keep0.5"),
    (f"{CACHED}layout: block}}}}", "space.kv.layout: unknown key; known here: bits, keep"),
    ("budget: {kv: 1MiB}", "budget.kv: also give budget.context"),
    ("budget: {kv: 1MiB, context: 5, shared_prefix: 6}", "budget.shared_prefix (6) must be from 0 to"),
    ("budget: {weights: 1MiB, shared_prefix: 6}", "budget.shared_prefix: also give budget.context"),
    # Sections.
    ("budget: 76MiB", "budget: '76MiB' is not a mapping with keys among weights, total"),
    (f"{BUDGET}space:", "space: null is not a mapping with keys among weights"),
    (f"{BUDGET}text: []", "text: an empty list is not a mapping with keys among source"),
    # Several keys together.
    ("budget: {}", NO_BOUND),
    ("budget: {weights: null}", NO_BOUND),
    ("budget: {total: 1GB}", "budget.total: also give budget.context"),
    (f"{BUDGET}text: {{source: null}}", "text: neither source nor dataset is given"),
    (f"{BUDGET}text: {{source: a.txt, dataset: {{id: b}}}}", "text: both source and dataset are given"),
    (f"{BUDGET}text: {{dataset: {{split: a}}}}", "text.dataset.id: the key is missing; give text such as"),
    (f"{BUDGET}text: {{dataset: wikitext}}", "text.dataset: 'wikitext' is not a mapping with keys among id"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "words"), WRONG_VALUES, ids=range(len(WRONG_VALUES)))
def test_wrong_values_name_line_key_value_and_what_is_allowed(
    refused: Callable[..., list[str]], text: str, words: str
) -> None:
    (line,) = refused(f"# a comment\n{text}\n")
    assert words in line
    assert line.startswith(f"search.yaml:{1 + len(text.splitlines())}: ")
    assert line.endswith((".", "?"))
    assert len(line) < 400


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seeed: 3", "seeed: unknown key; known here: name, model, seed, .* Did you mean 'seed'\\?"),
        ("budget: {wieghts: 1MiB, weights: 1MiB}", "budget.wieghts: unknown .* Did you mean 'weights'\\?"),
        ("text: {dataset: {id: a, name: b}}", "text.dataset.name: unknown key; known here: id, config"),
        ("space: {weights: {bit: [3]}}", "space.weights.bit: unknown key; .* Did you mean 'bits'\\?"),
        ("bits: [3]", "bits: unknown key; .* Did you mean 'space.weights.bits'\\?"),
        ("space: {bits: [3]}", "space.bits: unknown key; .* Did you mean 'space.weights.bits'\\?"),
        ("<<: {seed: 1}", r"\['<<'\]: unknown key"),
        ("'': 1", r"\[''\]: unknown key"),
        ("null: 1", "null: unknown key"),
        ("model_config: {}", "model_config: unknown key"),
        ("__class__: x", "__class__: unknown key"),
        (f"? {'k' * 10000}\n: 1", r"\['k{49}… \(10002 characters\)\]: unknown key"),
    ],
)
def test_unknown_keys_name_the_nearest_known_one(
    refused: Callable[..., list[str]], text: str, message: str
) -> None:
    lines = refused(text if "budget" in text else BUDGET + text)
    assert len(lines) == 1
    assert re.search(message, lines[0])
    assert lines[0].startswith(f"search.yaml:{1 if 'budget' in text else 2}: ")


def test_a_file_without_budget_says_so(refused: Callable[..., list[str]]) -> None:
    assert refused("{}") == [
        "search.yaml: budget: the key is missing; give a mapping with keys among weights, total, kv, "
        "effective_bits, context, batch, shared_prefix, tokens_per_second, latency."
    ]


def test_all_errors_come_together_in_file_order(refused: Callable[..., list[str]]) -> None:
    lines = refused(
        "name: a/b\nseed: !x 1\nbudget:\n  weights: 76\n  weights: 77MiB\nspace:\n  weights:\n"
        "    bits: [3, 7, true]\n    grups: [64]\ntext: {sequence: 3}\n",
        "search.finalist=3",
        "threads=none",
    )
    assert [line.split(": ")[0] for line in lines] == [
        "search.yaml:1", "search.yaml:2", "search.yaml:4", "search.yaml:5", "search.yaml:8",
        "search.yaml:8", "search.yaml:9", "search.yaml:10", "-s threads", "-s search.finalist",
    ]  # fmt: skip


def test_a_part_shorter_than_one_window_names_both_numbers(refused: Callable[..., list[str]]) -> None:
    lines = refused(f"{BUDGET}text:\n  sequence: 2048\n  calibration: 1024\n  selection: 2048\n")
    assert lines == [
        "search.yaml:4: text.calibration: 1024 tokens are fewer than one window of text.sequence (2048)."
    ]


def test_defaults_are_checked_against_what_is_given(refused: Callable[..., list[str]]) -> None:
    assert refused(f"{BUDGET}text: {{sequence: 4096}}") == [
        f"search.yaml:2: text.{part}: {tokens} tokens are fewer than one window of text.sequence (4096)."
        for part, tokens in (("calibration", 2048), ("selection", 2048), ("validation", 2048))
    ]


def test_measuring_on_more_tokens_than_there_are_names_both_numbers(
    refused: Callable[..., list[str]],
) -> None:
    sense = "sense:\n  fit_tokens: 601\n  marginal_tokens: 600\n  prescreen_tokens: 599\n"
    lines = refused(f"{BUDGET}text: {{selection: 600}}\n{sense}")
    assert lines == ["search.yaml:4: sense.fit_tokens: 601 tokens are more than text.selection has (600)."]


def test_a_dataset_takes_the_place_of_the_default_source(tmp_path: Path) -> None:
    settings = from_text(tmp_path, f"{BUDGET}text: {{dataset: {{id: Salesforce/wikitext}}}}")
    assert settings.text.source is None
    assert settings.text.dataset is not None
    assert settings.text.dataset.split == "train"


def test_settings_are_frozen() -> None:
    settings = Settings.from_dict({"budget": {"weights": "1MiB"}})
    with pytest.raises(ValidationError, match="frozen"):
        settings.seed = 3  # type: ignore[misc]
    with pytest.raises(ValidationError, match="frozen"):
        settings.budget.weights = 3  # type: ignore[misc]


def test_stored_settings_that_are_wrong_name_their_source() -> None:
    with pytest.raises(InputError, match=r"^runs/demo/run\.db: budget\.weights: 3 is not a size"):
        Settings.from_dict({"budget": {"weights": 3}}, source="runs/demo/run.db")


patterns = st.text(st.characters(categories=["L", "N", "P"]), min_size=1, max_size=12)
bits = st.lists(st.sampled_from(BITS), min_size=1, unique=True)
names = st.sampled_from(["8b-g64-float", "3b-row-sym", "16b", "4b-g32-int"])
weights = st.fixed_dictionaries(
    {},
    optional={
        "bits": bits,
        "groups": st.lists(st.sampled_from(GROUPS), min_size=1, unique=True),
        "zeros": st.lists(st.sampled_from(ZEROS), min_size=1, unique=True),
        "only": st.dictionaries(patterns, bits, max_size=3),
        "pin": st.dictionaries(patterns, names, max_size=3),
        "exclude": st.lists(patterns, unique=True, max_size=3),
    },
)
budgets = st.fixed_dictionaries(
    {"weights": st.integers(1, 2**63 - 1).map(lambda size: f"{size}B")},
    optional={"effective_bits": st.floats(0.1, 32), "context": st.integers(1, 2**20)},
)


@given(budget=budgets, weights=weights, dataset=st.none() | st.just({"id": "a/b"}), seed=st.integers(0, 9))
def test_settings_survive_json(budget: Any, weights: Any, dataset: Any, seed: int) -> None:
    data = {"budget": budget, "space": {"weights": weights}, "seed": seed}
    if dataset:
        data["text"] = {"dataset": dataset}
    settings = Settings.from_dict(data)
    stored = json.dumps(settings.to_dict(), allow_nan=False)
    again = Settings.from_dict(json.loads(stored))
    assert again == settings
    assert json.dumps(again.to_dict()) == stored
    assert list(again.weight_rules().pin.items()) == list(weights.get("pin", {}).items())


def test_equal_sizes_are_stored_equally() -> None:
    stored = [Settings.from_dict({"budget": {"weights": size}}).to_dict() for size in ("1MiB", "1024 KiB")]
    assert stored[0] == stored[1]
    assert stored[0]["budget"]["weights"] == "1048576B"


def test_settings_need_no_heavy_library() -> None:
    code = (
        "import sys, tightfit.search.settings\n"
        "print([m for m in ('torch', 'transformers', 'scipy', 'sklearn', 'plotly') if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"
