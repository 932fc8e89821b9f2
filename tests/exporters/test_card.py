"""The model card says what is known, leaves out what is not, and lets nobody's words become markup."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import yaml
from tests.exporters.conftest import LLAMA

from tightfit.exporters import Shipment
from tightfit.exporters.card import describe
from tightfit.spaces import WeightRules, build_space, get_target, read_geometry

FACTS: dict[str, Any] = {
    "run": "runs/demo",
    "budget": "76MiB",
    "limit": 79_691_776,
    "parameters": 134_515_008,
    "license": "apache-2.0",
    "text": {
        "split": "holdout",
        "source": "python-docs",
        "tokens": 4096,
        "documents": 60,
        "reference_perplexity": "26.30",
    },
    "losses": [
        {
            "label": "exact",
            "digest": "aa" * 32,
            "weight_bytes": 79_000_000,
            "effective_bits": 4.123,
            "kl": 0.0311,
            "kl_se": 0.0012,
            "loss": "0.0311 ± 0.0012",
            "perplexity": "27.10",
            "agreement": 0.912,
        },
        {
            "label": "uniform Q4_K",
            "digest": "bb" * 32,
            "weight_bytes": 79_100_000,
            "effective_bits": 4.5,
            "kl": 0.0402,
            "kl_se": 0.0015,
            "loss": "0.0402 ± 0.0015",
            "perplexity": "27.60",
            "agreement": 0.897,
            "more": "0.0091 ± 0.0004",
        },
    ],
    "trust": [["Solver", "The plan is proven the lowest."]],
    "versions": {"torch version": "2.13.0"},
    "settings": {"model": "smollm2-135m-offgrid", "seed": 0},
    "verify": "--plan aaaa --run runs/demo",
    "files": [{"name": "model.gguf", "bytes": 81_000_000, "sha256": "cc" * 32}],
    "hardware": {
        "header": ["run in llama.cpp", "tokens/s"],
        "rows": [["exact (chosen)", "41.2 ± 0.3"], ["uniform Q4_K", "38.0 ± 0.2"]],
        "setting": "one thread of a laptop",
    },
}
HEADINGS = [
    "What is stored how",
    "What it loses",
    "How sure that is",
    "How fast it is",
    "Files",
    "Make it again, and check it",
]


def headings(card: str) -> list[str]:
    return re.findall(r"^## (.+)$", card, re.MULTILINE)


def cells(card: str, first: str) -> list[str]:
    """Cells of the table row that begins with a text."""
    (row,) = [line for line in card.splitlines() if line.startswith(f"| {first} |")]
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]


@pytest.fixture
def gguf_shipment() -> Shipment:
    """A plan for llama.cpp, without its model."""
    rules = WeightRules(types=("Q4_0", "Q8_0"))
    space = build_space(read_geometry(LLAMA), rules, get_target("llama.cpp"))
    levels = [i % 2 for i in range(len(space.decisions))]
    model = {"name": "org/tiny", "digest": "5f" * 32, "family": "llama"}
    return Shipment(space, space.plan(levels), model, facts=FACTS)


def test_a_card_with_everything_has_every_section_in_order(gguf_shipment: Shipment) -> None:
    assert headings(describe(gguf_shipment)) == HEADINGS


@pytest.mark.parametrize(
    ("missing", "heading"),
    [
        ("losses", "What it loses"),
        ("text", "What it loses"),
        ("trust", "How sure that is"),
        ("hardware", "How fast it is"),
        ("files", "Files"),
        ("settings", "Make it again, and check it"),
    ],
)
def test_what_was_not_found_out_is_left_out(gguf_shipment: Shipment, missing: str, heading: str) -> None:
    facts = {key: value for key, value in FACTS.items() if key != missing}
    card = describe(replace(gguf_shipment, facts=facts))
    assert headings(card) == [name for name in HEADINGS if name != heading]
    assert "None" not in card


def test_front_matter_is_yaml_that_hubs_read(gguf_shipment: Shipment) -> None:
    _, front, body = describe(gguf_shipment).split("---\n", 2)
    assert yaml.safe_load(front) == {
        "license": "apache-2.0",
        "base_model": "org/tiny",
        "tags": ["tightfit", "gguf"],
    }
    assert body.startswith("\n# tiny, compressed to ")


def test_a_license_that_is_not_known_is_not_made_up(shipment: Shipment) -> None:
    card = describe(shipment)
    assert yaml.safe_load(card.split("---\n")[1]).keys() == {"tags"}
    assert cells(card, "license of the base model")[1] == "not stated in its folder"


def test_bytes_by_kind_of_layer_add_up_to_the_weights(shipment: Shipment) -> None:
    card = describe(shipment)
    table = card.split("## What is stored how")[1].splitlines()[4:]
    rows = [line for line in table if line.startswith("| ")]
    sizes = [int(row.split("|")[3].replace(",", "")) for row in rows]
    weight_bytes = shipment.space.weight_bytes(shipment.plan)
    assert sum(sizes) == weight_bytes
    assert cells(card, "weights")[1].startswith(f"{weight_bytes:,} B, ")
    counted = sum(int(n) for row in rows for n in re.findall(r"(\d+) × ", row))
    assert counted == len(shipment.space.site_options(shipment.plan))


def test_losses_stand_beside_the_baselines_with_their_errors(gguf_shipment: Shipment) -> None:
    card = describe(gguf_shipment)
    losses = card.split("## What it loses")[1].split("##")[0]
    assert cells(losses, "**this plan**")[3:] == ["0.0311 ± 0.0012", "", "27.10", "91.2%"]
    assert cells(losses, r"uniform Q4\_K")[1:] == [
        "79,100,000", "4.500", "0.0402 ± 0.0015", "0.0091 ± 0.0004", "27.60", "89.7%",
    ]  # fmt: skip


def test_speeds_stand_beside_those_of_the_baselines(gguf_shipment: Shipment) -> None:
    section = describe(gguf_shipment).split("## How fast it is\n")[1].split("##")[0]
    assert section.strip().splitlines()[2:] == [
        "| **this plan** | 41.2 ± 0.3 |",
        r"| uniform Q4\_K | 38.0 ± 0.2 |",
        "",
        "one thread of a laptop.",
    ]


def test_a_missed_bound_on_speed_is_said_at_the_top(gguf_shipment: Shipment) -> None:
    assert "too slow" not in describe(gguf_shipment)
    facts = {**FACTS, "too_slow": ["120 tokens/s", "300 ms to the first token"]}
    head = describe(replace(gguf_shipment, facts=facts)).split("## ")[0]
    words = "it misses the bound on speed: 120 tokens/s and 300 ms to the first token"
    assert cells(head, "**too slow**")[1] == words


def test_it_says_whether_the_file_or_only_the_plan_was_measured(
    gguf_shipment: Shipment, make_shipment: Callable[..., Shipment]
) -> None:
    assert "The GGUF file is an **artefact**" in describe(gguf_shipment)
    assert "The plan is a **recipe**" in describe(make_shipment("tied"))


def test_commands_and_settings_are_those_of_the_run(gguf_shipment: Shipment) -> None:
    card = describe(gguf_shipment)
    assert "tightfit verify model.gguf --plan aaaa --run runs/demo" in card
    settings = card.split("```yaml\n")[1].split("```")[0]
    assert yaml.safe_load(settings) == FACTS["settings"]
    assert json.dumps(FACTS["settings"], indent=2) in card
    assert cells(card, "`model.gguf`")[1:] == ["81,000,000", f"`{'cc' * 32}`"]


@pytest.mark.parametrize("nasty", ["a|b", "<script>x</script>", "`x`", "**x**", "a\n# b\n---", "```\n# x"])
def test_words_of_others_stay_words(gguf_shipment: Shipment, nasty: str) -> None:
    model = {**gguf_shipment.model, "name": nasty, "family": nasty}
    facts = {
        **FACTS,
        "license": nasty,
        "budget": nasty,
        "text": {**FACTS["text"], "source": nasty},
        "losses": [{**row, "label": nasty} for row in FACTS["losses"]],
        "trust": [[nasty, nasty]],
        "hardware": {**FACTS["hardware"], "rows": [[nasty, nasty]] * 2, "setting": nasty},
        "settings": {"model": nasty},
    }
    card = describe(replace(gguf_shipment, model=model, facts=facts))
    assert headings(card) == HEADINGS
    assert "<script>" not in card.split("```yaml")[0]
    assert len(re.findall(r"^---$", card, re.MULTILINE)) == 2
    assert len(re.findall(r"^```", card, re.MULTILINE)) == 4
    assert len(re.findall(r"^# ", card, re.MULTILINE)) == 2  # the title, and the comment in the settings
    columns = {len(re.split(r"(?<!\\)\|", line)) for line in card.splitlines() if line.startswith("| **this")}
    assert columns == {9, 4}
    assert yaml.safe_load(card.split("---\n")[1]).keys() == {"tags"}
