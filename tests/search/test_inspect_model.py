from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tightfit.search.inspect_model import inspect_model
from tightfit.search.model_memory import ModelInspection, overhead_words
from tightfit.spaces import (
    PLAIN,
    InfeasibleError,
    InputError,
    KvOption,
    Load,
    format_size,
    get_target,
    kv_bytes,
    overhead_bytes,
    prefill_bytes,
)

LLAMA_70B = Path(__file__).parents[1] / "data" / "llama_70b"
CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
TOKEN = 3 * 2 * 32 * 2 * 2
"""Bytes of a token in the uncompressed cache of that model."""

WEIGHTS = 320 * 64 + 3 * (2 * 128 * 64 + 2 * 64 * 64 + 3 * 64 * 192)
NORMS = 7 * 64 * 2
AT_2, AT_3 = (WEIGHTS * (bits * 65 + 16) // (8 * 64) + NORMS for bits in (2, 3))
"""Bytes of its weights, groups of 64 with a scale of 16 bits and a zero point as wide as a weight."""


@pytest.fixture
def look(tmp_path: Path) -> Callable[..., ModelInspection]:
    """Inspect a model of which there is only a config.json."""

    def inspect(
        budget: str | None = None,
        total: int | None = None,
        context: int | None = None,
        batch: int = 1,
        target: str = "any",
        groups: str = "64",
        shared_prefix: int = 0,
        **changes: Any,
    ) -> ModelInspection:
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
        size = None if total is None else f"{total}B"
        return inspect_model(str(tmp_path), budget, context, batch, target, groups, size, shared_prefix)

    return inspect


Look = Callable[..., ModelInspection]


def test_a_model_is_inspected_at_every_uniform_format(look: Look) -> None:
    found = look(groups="32,64")
    space = found.space
    assert [name for name, _, _ in found.uniform][:2] == ["2b-g64-int", "2b-g32-int"]
    assert len(found.uniform) == 6 * 2 + 1
    assert found.uniform[0][2] == space.floor == AT_2
    assert found.uniform[-1] == ("16b", 16.0, 2 * space.geometry.parameters)
    assert found.load == Load(512)
    assert (found.budget, found.total, found.fits, found.verdict, found.notes) == (None,) * 4 + ((),)


def test_every_format_is_paired_with_every_cache(look: Look) -> None:
    found = look(context=500, batch=3)
    assert [cache.name for cache, _ in found.caches] == [
        "k16v16",
        "k8v8-g32-r32-s4",
        "k4v4-g32-r32-s4",
        "k2v2-g32-r32-s4",
    ]
    # 500 tokens are 36 floats, 14 groups of 32 and 16 over; heads of 32 channels in one group for values
    by_hand = [500 * TOKEN] + [52 * TOKEN + 3 * 2 * 14 * 2 * 32 * (4 * bits + 4) for bits in (8, 4, 2)]
    assert [size for _, size in found.caches] == [3 * size for size in by_hand]
    assert len(found.pairs) == 7 * 4
    for position, pair in enumerate(found.pairs):
        name, _, weights = found.uniform[position // 4]
        cache, size = found.caches[position % 4]
        assert (pair.option, pair.cache, pair.total, pair.longest) == (name, cache, weights + size, None)
    data = found.to_dict()
    assert data["plans"][5] == {
        "option": "3b-g64-int",
        "cache": "k8v8-g32-r32-s4",
        "total_bytes": AT_3 + 3 * by_hand[1],
    }


@pytest.mark.parametrize(
    ("target", "caches"),
    [("llama.cpp", ["k16v16", "k8v8-block", "k4v4-block"]), ("vllm", ["k16v16", "k8v8-token", "k4v4-token"])],
)
def test_caches_are_those_of_the_target(look: Look, target: str, caches: list[str]) -> None:
    assert [cache.name for cache, _ in look(target=target).caches] == caches


def test_caches_that_heads_do_not_fit_are_left_out_with_a_note(look: Look) -> None:
    found = look(target="llama.cpp", hidden_size=256, head_dim=80)
    assert [cache.name for cache, _ in found.caches] == ["k16v16"]
    notes = [note for note in found.notes if "head width 80" in note]
    assert [note.split(":")[0] for note in notes] == ["k8v8-block", "k4v4-block"]
    assert all(note in found.render() for note in notes)


# Does it fit, and up to which context?


def test_a_total_fits_up_to_the_last_token_that_it_has_room_for(look: Look) -> None:
    found = look(total=AT_2 + 300 * TOKEN + TOKEN - 1)
    plain = next(pair for pair in found.pairs if pair.option == "2b-g64-int" and pair.cache == PLAIN)
    assert plain.longest == 300
    for pair in found.pairs:
        room = found.total - pair.weights
        held = [kv_bytes(found.space.geometry, Load(context), [pair.cache] * 3) for context in range(1, 513)]
        assert pair.longest == next((n for n, size in enumerate(held) if size > room), 512)


def test_a_total_that_fits_says_with_what_and_up_to_where(look: Look) -> None:
    found = look(total=AT_2 + 600 * TOKEN, context=300, batch=2)
    fitting = [pair for pair in found.pairs if pair.total <= found.total]
    assert found.fits is True
    assert found.shown == max(fitting, key=lambda pair: pair.total)
    assert found.verdict == (
        f"fits: {found.shown.total / 1024:.2f} KiB of {found.total / 1024:.2f} KiB at 300 tokens × 2 with "
        f"{found.shown.name}, which goes up to {found.shown.longest:,} tokens "
        f"({len(fitting)} of 28 combinations fit)"
    )
    assert found.verdict in found.render()


def test_a_total_that_does_not_fit_says_what_goes_furthest(look: Look) -> None:
    found = look(total=AT_2 + 80 * TOKEN)
    assert found.fits is False
    furthest = max(pair.longest for pair in found.pairs)
    assert 80 < furthest < 512
    assert (
        found.verdict
        == f"does not fit at 512 tokens × 1; fits up to {furthest} tokens with 2b-g64-int + k2v2-g32-r32-s4"
    )


def test_weights_alone_can_be_too_large(look: Look) -> None:
    found = look(total=AT_2 - 1)
    assert (found.fits, found.shown.longest) == (False, 0)
    assert found.verdict.startswith("does not fit at any context: the smallest weights take ")
    assert found.verdict.split(" take ")[1] == f"{AT_2 / 1024:.2f} KiB of {(AT_2 - 1) / 1024:.2f} KiB"


def test_a_cache_fits_at_a_context_and_always_up_to_another(look: Look) -> None:
    """At 68 tokens a group is quantized, so that 67 of them take more."""
    option = KvOption(2, 2)
    geometry = look().space.geometry
    now, before = (kv_bytes(geometry, Load(tokens), [option] * 3) for tokens in (68, 67))
    assert now < before == 67 * TOKEN
    assert look(total=AT_2 + before, context=68).fits is True
    found = look(total=AT_2 + before - 1, context=68)
    assert (found.fits, found.shown.longest) == (True, 66)
    assert look(total=AT_2 + now - 1, context=68).fits is False


def test_a_budget_of_weights_and_a_total_hold_together(look: Look) -> None:
    found = look(budget=f"{AT_2}B", total=10**9)
    assert found.fits
    assert found.shown.name == "2b-g64-int + k16v16"
    assert "(4 of 28 combinations fit)" in found.verdict


def test_a_common_prefix_goes_further(look: Look) -> None:
    alone, together = (
        look(total=AT_2 + 400 * TOKEN, batch=4),
        look(total=AT_2 + 400 * TOKEN, batch=4, shared_prefix=100),
    )
    plain = [next(p for p in found.pairs if p.cache == PLAIN) for found in (alone, together)]
    assert [pair.longest for pair in plain] == [100, 100 + 300 // 4]
    assert together.to_dict()["kv_cache"] == {
        "context": 512,
        "batch": 4,
        "shared_prefix": 100,
        "bytes": (100 + 4 * 412) * TOKEN,
    }
    assert "512 tokens × 4, the first 100 in common" in together.render()


# What is shown


def test_what_people_and_scripts_see_is_the_same(look: Look) -> None:
    found = look(budget="100KiB", context=64, batch=2, target="vllm", total=200 * 1024)
    data = json.loads(json.dumps(found.to_dict()))
    assert data["parameters"] == found.space.geometry.parameters
    assert data["kv_cache"] == {"context": 64, "batch": 2, "shared_prefix": 0, "bytes": 2 * 64 * TOKEN}
    assert (data["budget_bytes"], data["total_bytes"]) == (100 * 1024, 200 * 1024)
    assert data["fits"] is True
    text = found.render()
    totals, contexts = text.split("longest context within 200.00 KiB, × 2\n")
    width = len(data["caches"])
    for row, option in enumerate(data["uniform"]):
        plans = data["plans"][row * width : (row + 1) * width]
        sizes = [f"{plan['total_bytes'] / 1024:.2f} KiB" for plan in plans]
        start = f"{option['option']} +{option['effective_bits']:.3f} "
        assert re.search(rf"^{start}.*{' +'.join(sizes)}$", totals, re.MULTILINE)
        longest = [f"{plan['longest_context']:,}" for plan in plans]
        assert re.search(rf"^{option['option']} +{' +'.join(longest)}$", contexts, re.MULTILINE)
    assert f"{data['parameters']:,} parameters, head tied to the embedding" in text
    assert "64 tokens × 2" in text
    assert data["verdict"] in text


def test_without_a_total_no_context_is_said_to_fit(look: Look) -> None:
    found = look(context=64)
    assert all("longest_context" not in plan for plan in found.to_dict()["plans"])
    assert "longest context" not in found.render()
    assert found.shown.name == "16b + k16v16"


@pytest.mark.parametrize("target", ["any", "vllm", "llama.cpp"])
def test_memory_is_split_and_labelled(look: Look, target: str) -> None:
    found = look(total=300_000, context=300, batch=2, target=target)
    geometry, load = found.space.geometry, Load(300, 2)
    memory = found.to_dict()["memory"]
    assert memory == {
        "option": found.shown.option,
        "cache": found.shown.cache.name,
        "weight_bytes": found.shown.weights,
        "kv_bytes": found.shown.cache_bytes,
        "overhead_bytes": overhead_bytes(geometry, load, get_target(target)),
        "overhead_formula": overhead_words(geometry, load, get_target(target)),
        "prefill_kv_bytes": prefill_bytes(geometry, load),
    }
    sizes = {"weights": "weight_bytes", "KV cache": "kv_bytes", "overhead": "overhead_bytes"}
    for part, key in {**sizes, "prefill peak": "prefill_kv_bytes"}.items():
        assert re.search(rf"^{part} +{format_size(memory[key])}$", found.render(), re.MULTILINE)
    assert f"with {2 if target == 'any' else 300} tokens at once" in memory["overhead_formula"]
    assert ("written out in bfloat16" in memory["overhead_formula"]) == (target == "any")
    tables = found.render().split("weights + KV cache at ")[1].split(found.verdict)[0]
    assert max(len(line) for line in tables.splitlines()) <= 110


def test_what_the_target_does_not_store_is_noted(look: Look) -> None:
    assert "target vllm does not store 5 and 6 bits" in look(context=64, target="vllm").render()
    assert look(context=64).notes == ()


def test_an_inspection_under_a_budget_of_one_plan_says_so(look: Look) -> None:
    found = look(budget=f"{AT_2}B")
    (note,) = found.notes
    assert note.startswith("the budget leaves a single plan, 2b-g64-int everywhere")
    assert note in found.render()
    assert note in found.to_dict()["notes"]
    more = re.search(r"(\d+) B more give a choice", note)
    assert more
    assert look(budget=f"{AT_2 + int(more[1])}B").notes == ()


def test_an_inspection_above_the_ceiling_says_so(look: Look) -> None:
    note = "the budget fits at the largest option everywhere, so it forces no choice."
    assert look(budget="1GiB").notes == (note,)


# What is refused


def test_an_inspection_below_the_floor_is_refused(look: Look) -> None:
    with pytest.raises(InfeasibleError, match="below the floor of this space"):
        look(budget="1KiB")


@pytest.mark.parametrize("groups", ["", "48", "64,", "64;32", "all", "-64", "64,48"])
def test_wrong_groups_are_refused_with_the_allowed_ones(look: Look, groups: str) -> None:
    with pytest.raises(InputError, match=r"--groups '.*': give group sizes .*allowed: 32, 64, 128, 0"):
        look(groups=groups)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context": 513}, r"--context: 513 tokens are more than .* was made for \(512\)\."),
        ({"context": 64, "shared_prefix": 65}, r"--shared-prefix: 65 tokens are more than .* has \(64\)\."),
        ({"shared_prefix": 513}, r"--shared-prefix: 513 tokens are more than the context has \(512\)\."),
    ],
)
def test_tokens_that_no_context_has_are_refused(look: Look, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        look(total=10**6, **arguments)


def test_seventy_billion_weights_are_inspected_exactly() -> None:
    found = inspect_model(str(LLAMA_70B), "40GiB", 8192, 1, "vllm", "128", "38GiB")
    governed = 80 * (2 * 8192**2 + 2 * 1024 * 8192 + 3 * 8192 * 28672) + 2 * 128256 * 8192
    norms = (2 * 80 + 1) * 8192
    sizes = {name: size for name, _, size in found.uniform}
    assert sizes["4b-g128-int"] == governed * (4 * 128 + 16 + 4) // (8 * 128) + 2 * norms
    assert sizes["16b"] == 2 * (governed + norms)
    caches = {cache.name: size for cache, size in found.caches}
    assert caches["k16v16"] == 2**20 * 2560  # 320 KiB for each of 8,192 tokens
    assert caches["k8v8-token"] == 80 * 8192 * 8 * 2 * (128 + 4)
    assert found.fits
    plain = next(p for p in found.pairs if (p.option, p.cache) == ("4b-g128-int", PLAIN))
    assert plain.longest == (38 * 2**30 - sizes["4b-g128-int"]) // 327_680


def test_a_look_at_a_model_needs_nothing_heavy() -> None:
    code = f"""
import sys
from tightfit.search.inspect_model import inspect_model
inspect_model({str(LLAMA_70B)!r}, None, None, 1, "any", "128", "48GiB").render()
heavy = ("torch", "transformers", "scipy", "sklearn", "plotly", "sqlite_utils")
print([m for m in heavy if m in sys.modules])
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"
