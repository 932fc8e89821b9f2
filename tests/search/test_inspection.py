from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tightfit.search.inspection import (
    Inspection,
    budget_notes,
    inspect_settings,
    missing_bytes,
    smallest_plan,
)
from tightfit.search.settings import Settings, load_settings
from tightfit.spaces import (
    InfeasibleError,
    InputError,
    KvRules,
    Load,
    Space,
    WeightRules,
    build_space,
    get_target,
    read_geometry,
)

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}


@pytest.fixture
def model(tmp_path: Path) -> Callable[..., str]:
    """A folder with everything that a look at a model needs: its files are there, but never opened."""

    def write(**changes: Any) -> str:
        (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
        (tmp_path / "model.safetensors").touch()
        (tmp_path / "tokenizer.json").touch()
        return str(tmp_path)

    return write


@pytest.fixture
def inspected(model: Callable[..., str]) -> Callable[..., Inspection]:
    """Inspect that model under a budget; rules of the weights by keyword."""

    def inspect(budget: dict[str, Any], config: dict[str, Any] | None = None, **weights: Any) -> Inspection:
        data = {"model": model(**(config or {})), "budget": budget, "space": {"weights": weights}}
        return inspect_settings(Settings.from_dict(data))

    return inspect


def space_of(config: dict[str, Any] | None = None, **rules: Any) -> Space:
    return build_space(read_geometry({**CONFIG, **(config or {})}), WeightRules(**rules), get_target("any"))


def weights(size: int) -> dict[str, Any]:
    return {"weights": f"{size}B"}


def test_settings_give_their_space_with_its_limit(inspected: Callable[..., Inspection]) -> None:
    space = space_of(bits=(3, 4), pin={"embed": "8b-g64-float"})
    budget = {"weights": "90KiB", "total": "1MiB", "context": 64, "batch": 2}
    found = inspected(budget, bits=[3, 4], pin={"embed": "8b-g64-float"})
    assert found.space == space
    assert found.limit == 90 * 1024
    assert found.budget_text == "weights 90.00 KiB, total 1.00 MiB, context 64, batch 2"
    assert found.matches == {("pin", "embed"): 1}
    assert found.config == CONFIG
    assert found.notes == ()


def test_effective_bits_are_told_as_they_were_asked(inspected: Callable[..., Inspection]) -> None:
    assert inspected({"effective_bits": 4.0625}).budget_text == "effective_bits 4.0625"


@pytest.mark.parametrize(
    ("lacking", "added", "message"),
    [
        ("model.safetensors", None, r"needs weights in \*\.safetensors files; none was found"),
        ("model.safetensors", "pytorch_model.bin", r"pytorch_model\.bin is pickled and can run code"),
        ("tokenizer.json", None, "has no tokenizer"),
        ("config.json", None, r"has no config\.json"),
    ],
)
def test_a_folder_that_cannot_be_loaded_is_refused_before_anything_heavy(
    model: Callable[..., str], lacking: str, added: str | None, message: str
) -> None:
    folder = Path(model())
    (folder / lacking).unlink()
    if added:
        (folder / added).touch()
    with pytest.raises(InputError, match=message):
        inspect_settings(Settings.from_dict({"model": str(folder), "budget": {"effective_bits": 4}}))


def test_below_the_floor_is_refused_with_floor_ceiling_and_pins(inspected: Callable[..., Inspection]) -> None:
    space = space_of(pin={"embed": "8b-g64-float"})
    with pytest.raises(InfeasibleError) as refusal:
        inspected(weights(space.floor - 1), pin={"embed": "8b-g64-float"})
    for part in (f"({space.floor} B)", f"({space.ceiling} B)", "embed at 8b-g64-float"):
        assert part in str(refusal.value)


@pytest.mark.parametrize("place", ["the floor itself", "a byte below the first upgrade"])
def test_a_budget_that_leaves_one_plan_is_refused_with_that_plan(
    inspected: Callable[..., Inspection], place: str
) -> None:
    rules: dict[str, Any] = {"bits": (3, 4), "pin": {"embed": "8b-g64-float"}}
    space = space_of(**rules)
    # The cheapest upgrade is that of the smallest matrices: k_proj and v_proj, 32 × 64.
    step = 32 * 64 // 8 + math.ceil(32 * 4 / 8) - math.ceil(32 * 3 / 8)
    limit = space.floor if place == "the floor itself" else space.floor + step - 1
    with pytest.raises(InfeasibleError) as refusal:
        inspected(weights(limit), **rules)
    text = str(refusal.value)
    assert "leaves a single plan" in text
    assert (
        "8b-g64-float in embed; 3b-g64-int in layers.0.attn.q_proj, layers.0.attn.k_proj and 19 more" in text
    )
    assert f"{space.floor} B)" in text
    assert text.endswith(f"raise it by {space.floor + step - limit} B of weights to have a choice.")
    assert refusal.value.exit_code == 3


def test_raising_the_budget_by_what_was_said_leaves_a_choice(inspected: Callable[..., Inspection]) -> None:
    floor = space_of(bits=(3, 4)).floor
    with pytest.raises(InfeasibleError) as refusal:
        inspected(weights(floor), bits=[3, 4])
    raised = re.search(r"raise it by (\d+) B", str(refusal.value))
    assert raised
    found = inspected(weights(floor + int(raised[1])), bits=[3, 4])
    assert found.notes == ()


def test_a_uniform_budget_with_nothing_below_it_is_refused(inspected: Callable[..., Inspection]) -> None:
    """The best of 4 and 8 bits at 4.3125 effective bits is all of it at 4."""
    with pytest.raises(InfeasibleError, match=r"effective_bits 4\.3125\) leaves a single plan, 4b-g64-int"):
        inspected({"effective_bits": 4 + 20 / 64}, bits=[4, 8])


def test_rules_that_leave_nothing_to_choose_are_bad_input(inspected: Callable[..., Inspection]) -> None:
    message = r"space\.weights leaves one plan, 4b-g64-int everywhere \(.* B\), so there is nothing to search"
    with pytest.raises(InputError, match=message) as refusal:
        inspected(weights(10**9), bits=[4])
    assert refusal.value.exit_code == 2


def test_smallest_options_of_equal_bytes_are_a_choice() -> None:
    # A row of 64 weights is one group of 64, so the same bytes go by two options.
    space = space_of(bits=(4,), groups=(64, 0), zeros=("none",))
    assert space.size > 1
    assert missing_bytes(space, space.floor) == 0
    assert budget_notes(space, space.floor) == ()


def test_at_the_ceiling_the_budget_forces_nothing(inspected: Callable[..., Inspection]) -> None:
    space = space_of(bits=(3, 4))
    note = "the budget fits at the largest option everywhere, so it forces no choice."
    assert inspected(weights(space.ceiling), bits=[3, 4]).notes == (note,)
    assert inspected(weights(10**12), bits=[3, 4]).notes == (note,)
    assert inspected(weights(space.ceiling - 1), bits=[3, 4]).notes == ()
    assert budget_notes(space, space.ceiling - 1) == ()


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"bits": (3, 4)}, "3b-g64-int everywhere"),
        (
            {"bits": (3, 4), "only": {"layers.0.mlp.*": (6, 8)}},
            "3b-g64-int in embed, layers.0.attn.q_proj and 17 more; "
            "6b-g64-int in layers.0.mlp.gate_proj, layers.0.mlp.up_proj, layers.0.mlp.down_proj",
        ),
    ],
)
def test_the_smallest_plan_is_named_by_option_and_place(rules: dict[str, Any], words: str) -> None:
    space = space_of(**rules)
    assert smallest_plan(space).startswith(f"{words} (")
    assert smallest_plan(space).endswith(f", {space.floor} B)")


def test_a_group_that_is_not_offered_everywhere_is_noted(inspected: Callable[..., Inspection]) -> None:
    found = inspected({"effective_bits": 5}, {"hidden_size": 96, "head_dim": 16}, groups=[32, 64])
    (note,) = found.notes
    assert note == (
        "group 64 is not offered where it does not divide the input width: 96 (16 sites, such as embed)."
    )


def test_what_the_target_does_not_store_is_noted(model: Callable[..., str]) -> None:
    data = {"model": model(), "target": "vllm", "budget": {"effective_bits": 6}}
    rules = {"bits": [3, 4, 5], "zeros": ["float", "integer"], "only": {"*.up_proj": [6, 8]}}
    found = inspect_settings(Settings.from_dict({**data, "space": {"weights": rules}}))
    assert found.notes == (
        "target vllm does not store 5 and 6 bits: not offered.",
        "target vllm does not store float zeros: not offered.",
    )


def for_llamacpp(folder: str, **more: Any) -> Settings:
    weights = {"types": ["Q4_0", "Q8_0"]}
    data = {"model": folder, "target": "llama.cpp", "budget": {"effective_bits": 6}}
    return Settings.from_dict({**data, "space": {"weights": weights}, **more})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "llama.cpp takes hidden_act = 'silu' for granted, not 'gelu'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic' of a llama model cannot"),
    ],
)
def test_a_model_that_llama_cpp_cannot_take_is_refused_before_anything_heavy(
    model: Callable[..., str], changes: dict[str, Any], message: str
) -> None:
    assert inspect_settings(for_llamacpp(model())).space.target.name == "llama.cpp"
    folder = model(**changes)
    with pytest.raises(InputError, match=re.escape(message)):
        inspect_settings(for_llamacpp(folder))
    inspect_settings(Settings.from_dict({"model": folder, "budget": {"effective_bits": 4}}))


def test_files_that_do_not_fit_on_the_disk_are_said_before_anything_heavy(
    model: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1000))
    with pytest.raises(InputError, match=r"but only 1000 B are free in .*/runs: make room"):
        inspect_settings(
            for_llamacpp(model(), validate={"hardware": ["llama.cpp"]}, runs=str(tmp_path / "runs"))
        )


@pytest.mark.parametrize(
    "target", ["", ', "target": "llama.cpp", "space": {"weights": {"types": ["Q4_0", "Q8_0"]}}']
)
def test_settings_are_inspected_without_heavy_libraries(model: Callable[..., str], target: str) -> None:
    code = f"""
import sys
from tightfit.search.inspection import inspect_settings
from tightfit.search.settings import Settings
inspect_settings(Settings.from_dict({{"model": {model()!r}, "budget": {{"effective_bits": 6}}{target}}}))
print([m for m in ("torch", "transformers", "scipy", "sklearn", "plotly") if m in sys.modules])
"""
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert output.stdout.strip() == "[]"


# With KV caches in the space


CACHED: dict[str, Any] = {"bits": [4, 8], "zeros": ["float"]}
KV: dict[str, Any] = {"bits": [4, 16], "keep": [1.0, 0.5]}
TEXT = {"sequence": 64}
LOAD = Load(400, 2)


@pytest.fixture
def with_caches(model: Callable[..., str], tmp_path: Path) -> Callable[..., Inspection]:
    """Inspect that model under a budget and rules of its KV caches, from a file."""

    def inspect(budget: dict[str, Any], kv: dict[str, Any] | None = None, **more: Any) -> Inspection:
        space = {"weights": {**CACHED, **more.pop("weights", {})}, "kv": KV if kv is None else kv}
        data = {"model": model(head_dim=32), "budget": budget, "space": space, "text": TEXT, **more}
        (tmp_path / "search.yaml").write_text(json.dumps(data))
        return inspect_settings(load_settings(tmp_path / "search.yaml"))

    return inspect


def cached_space(kv: dict[str, Any] | None = None, load: Load = LOAD) -> Space:
    rules = KvRules(**{key: tuple(value) for key, value in (KV if kv is None else kv).items()})
    weights = WeightRules(bits=(4, 8), zeros=("float",))
    geometry = read_geometry({**CONFIG, "head_dim": 32})
    return build_space(geometry, weights, get_target("any"), rules, load)


def test_weights_and_caches_share_a_total(with_caches: Callable[..., Inspection]) -> None:
    space = cached_space()
    total = (space.floor + space.ceiling) // 2
    found = with_caches({"total": f"{total}B", "context": 400, "batch": 2})
    assert found.space == space
    assert found.limit == total
    assert found.budget_text == f"total {total / 1024:.2f} KiB, context 400, batch 2"
    assert found.prefix == 400
    assert found.notes == ()


def test_a_context_longer_than_what_is_measured_is_noted(with_caches: Callable[..., Inspection]) -> None:
    found = with_caches({"total": "300KiB", "context": 500})
    assert found.prefix == 448  # of 512, less a window
    (note,) = found.notes
    assert note.startswith(
        "losses are measured after 448 tokens of context; at the 500 that the budget counts"
    )


def test_a_common_prefix_is_told_as_it_was_asked(with_caches: Callable[..., Inspection]) -> None:
    budget = {"total": "2MiB", "context": 400, "batch": 2, "shared_prefix": 100}
    found = with_caches(budget, {"bits": [8, 16]}, target="vllm", weights={"zeros": ["integer"]})
    assert found.budget_text == "total 2.00 MiB, context 400, batch 2, shared_prefix 100"
    assert found.space.load == Load(400, 2, 100)


def test_a_common_prefix_is_refused_where_nothing_is_stored_once(
    with_caches: Callable[..., Inspection],
) -> None:
    budget = {"total": "400KiB", "context": 400, "batch": 2, "shared_prefix": 100}
    with pytest.raises(InputError, match=r"shared_prefix: target any keeps a whole cache for every sequence"):
        with_caches(budget)


def test_a_total_that_leaves_one_plan_is_refused_in_the_words_of_both(
    with_caches: Callable[..., Inspection],
) -> None:
    space = cached_space()
    with pytest.raises(InfeasibleError) as refusal:
        with_caches({"total": f"{space.floor}B", "context": 400, "batch": 2})
    text = str(refusal.value)
    assert "4b-g64-float in embed, layers.0.attn.q_proj and 20 more; k4v4-g32-r32-s4-keep0.5 in" in text
    raised = re.search(r"raise it by (\d+) B of weights and KV cache to have a choice\.$", text)
    assert raised
    found = with_caches({"total": f"{space.floor + int(raised[1])}B", "context": 400, "batch": 2})
    assert found.notes == ()


def test_a_total_below_the_floor_says_what_would_fit(with_caches: Callable[..., Inspection]) -> None:
    space = cached_space()
    with pytest.raises(InfeasibleError, match=r"of weights and KV cache .* below the floor .*context of \d+"):
        with_caches({"total": f"{space.floor - 1}B", "context": 400, "batch": 2})


def test_bounds_on_both_parts_that_leave_one_plan_are_refused(with_caches: Callable[..., Inspection]) -> None:
    space = cached_space()
    caches = sum(decision.costs[0] for decision in space.kv_decisions)
    budget = {"weights": f"{space.floor - caches}B", "kv": f"{caches}B", "context": 400, "batch": 2}
    with pytest.raises(InfeasibleError, match=r"leaves a single plan, .*raise it by \d+ B"):
        with_caches(budget)
    # With either of them alone, the other part still has a choice.
    for key in ("weights", "kv"):
        assert with_caches({k: v for k, v in budget.items() if k != key}).notes == ()


def test_only_bounds_that_leave_everything_force_nothing(with_caches: Callable[..., Inspection]) -> None:
    space = cached_space()
    most = sum(decision.costs[-1] for decision in space.kv_decisions)
    note = ("the budget fits at the largest option everywhere, so it forces no choice.",)
    at = {"context": 400, "batch": 2}
    assert with_caches({"total": f"{space.ceiling}B", **at}).notes == note
    assert with_caches({"kv": f"{most}B", **at}).notes == note
    found = with_caches({"kv": f"{most - 1}B", **at})
    assert (found.notes, found.limit) == ((), space.ceiling - 1)


def test_rules_that_leave_one_plan_of_both_are_bad_input(with_caches: Callable[..., Inspection]) -> None:
    with pytest.raises(InputError, match=r"^space leaves one plan, .*: offer more options, or pin less\.$"):
        with_caches({"total": "1MiB", "context": 400}, {"bits": [8]}, weights={"bits": [4]})


def test_pins_of_caches_say_how_many_they_match(with_caches: Callable[..., Inspection]) -> None:
    found = with_caches({"total": "500KiB", "context": 400, "batch": 2}, {**KV, "pin": {"*.[02].kv": "k8v8"}})
    assert found.notes == ("space.kv.pin '*.[02].kv' matches 2 of 3 caches.",)


@pytest.mark.parametrize(
    ("budget", "kv", "message"),
    [
        ({"weights": "1MiB"}, {}, r"space\.kv: also give budget\.context"),
        ({"kv": "1MiB"}, {}, r"budget\.kv: also give budget\.context"),
        ({"total": "1MiB", "context": 513}, {}, r"budget\.context: 513 tokens are more than .* \(512\)"),
        ({"total": "1MiB", "context": 64, "shared_prefix": 65}, {}, r"budget\.shared_prefix \(65\) must be"),
        ({"total": "1MiB", "context": 64}, {"keep": [0.0]}, r"space\.kv\.keep\[0\]: 0 is not a share"),
        ({"total": "1MiB", "context": 64}, {"pin": {"*.9.kv": "k8v8"}}, r"'\*\.9\.kv' matches none of the 3"),
        ({"total": "1MiB", "context": 64}, {"pin": {"*.kv": "k9v9"}}, "9 bits are not offered"),
    ],
)
def test_caches_that_cannot_be_are_refused(
    with_caches: Callable[..., Inspection], budget: dict[str, Any], kv: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        with_caches(budget, kv)
