"""How much a model has read before the tokens that a loss is measured on."""

from __future__ import annotations

from typing import Any

import pytest

from tightfit.search.contexts import LONGEST, context_note, prefix_of
from tightfit.search.settings import Settings
from tightfit.spaces import InputError, Space, build_space, read_geometry

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "tie_word_embeddings": True,
}


def asked(
    context: int | None = None, kv: bool = True, longest: int = 4096, **text: int | None
) -> tuple[Settings, Space]:
    """Settings and space of a model with this longest context."""
    budget: dict[str, Any] = {"total": "1MiB", "context": context} if context else {"weights": "1MiB"}
    space = {"kv": {"bits": [4, 16]}} if kv else {}
    settings = Settings.from_dict({"model": "some", "budget": budget, "space": space, "text": text})
    geometry = read_geometry({**CONFIG, "max_position_embeddings": longest})
    load = settings.budget.to_budget().load
    rules = settings.weight_rules(), settings.target_rules(), settings.kv_rules(), load
    return settings, build_space(geometry, *rules)


@pytest.mark.parametrize(
    ("context", "longest", "sequence", "prefix"),
    [
        (700, 4096, 128, 700),  # as long as the budget's
        (LONGEST, 4096, 128, LONGEST),
        (3000, 4096, 128, LONGEST),  # no longer than is feasible
        (700, 800, 128, 672),  # what the windows leave of the model's
        (256, 256, 128, 128),
        (1, 256, 128, 1),
    ],
)
def test_prefixes_are_as_long_as_the_context_where_that_is_feasible(
    context: int, longest: int, sequence: int, prefix: int
) -> None:
    assert prefix_of(*asked(context, longest=longest, sequence=sequence)) == prefix


def test_without_decisions_about_caches_there_is_no_prefix_unless_asked_for() -> None:
    assert prefix_of(*asked(kv=False)) == 0
    assert prefix_of(*asked(2000, kv=False)) == 0
    assert prefix_of(*asked(kv=False, prefix=300)) == 300
    assert prefix_of(*asked(2000, kv=False, prefix=0)) == 0


@pytest.mark.parametrize("prefix", [72, 200, 700])
def test_a_prefix_that_is_asked_for_is_taken(prefix: int) -> None:
    assert prefix_of(*asked(700, prefix=prefix)) == prefix


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"longest": 100, "kv": False}, r"text\.sequence: windows of 128 tokens .* of some, 100\."),
        ({"longest": 512, "context": 200, "prefix": 400}, r"text\.prefix: 400 tokens .* of 128 .*, 512\."),
        ({"longest": 512, "kv": False, "prefix": 385}, r"text\.prefix: 385 tokens"),
        ({"context": 200, "prefix": 201}, r"1 to 200 tokens \(budget\.context\), not after 201"),
        ({"context": 200, "prefix": 0}, r"1 to 200 tokens \(budget\.context\), not after 0"),
        ({"longest": 128, "context": 100}, r"not after 0; a smaller text\.sequence leaves room"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_numbers(given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        prefix_of(*asked(**given))


def test_the_last_prefix_that_fits_is_taken() -> None:
    assert prefix_of(*asked(kv=False, longest=512, prefix=384)) == 384


def test_a_shorter_context_than_the_budget_counts_is_said() -> None:
    assert context_note(*asked(kv=False)) is None
    assert context_note(*asked(2000, kv=False)) is None
    assert context_note(*asked(700)) is None
    note = context_note(*asked(3000))
    assert note is not None
    assert "after 1024 tokens of context" in note
    assert "at the 3000 that the budget counts" in note
