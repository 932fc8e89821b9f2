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
    ModelInspection,
    budget_notes,
    inspect_model,
    inspect_settings,
    missing_bytes,
    smallest_plan,
)
from tightfit.search.settings import Settings
from tightfit.spaces import (
    InfeasibleError,
    InputError,
    Load,
    Space,
    WeightRules,
    build_space,
    get_target,
    kv_bytes,
    read_geometry,
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
    assert (
        "target vllm does not store 5 and 6 bits"
        in inspect_model(model(), None, 64, 1, "vllm", "64").render()
    )
    assert inspect_model(model(), None, 64, 1, "any", "64").notes == ()


def test_a_model_is_inspected_at_every_uniform_format(model: Callable[..., str]) -> None:
    found = inspect_model(model(), None, None, 1, "any", "32,64")
    space = found.space
    assert [name for name, _, _ in found.uniform][:2] == ["2b-g64-int", "2b-g32-int"]
    assert len(found.uniform) == 6 * 2 + 1
    assert found.uniform[0][2] == space.floor
    assert found.uniform[-1] == ("16b", 16.0, 2 * space.geometry.parameters)
    assert (found.context, found.kv) == (512, kv_bytes(space.geometry, Load(512)))
    assert (found.budget, found.fits, found.notes) == (None, None, ())


def test_what_people_and_scripts_see_is_the_same(model: Callable[..., str]) -> None:
    found = inspect_model(model(), "100KiB", 64, 2, "vllm", "64")
    data = json.loads(json.dumps(found.to_dict()))
    assert data["parameters"] == found.space.geometry.parameters
    size = kv_bytes(found.space.geometry, Load(64, 2))
    assert data["kv_cache"] == {"context": 64, "batch": 2, "bytes": size}
    assert data["budget_bytes"] == 100 * 1024
    assert data["fits"] is True
    text = found.render()
    for row in data["uniform"]:
        assert re.search(rf"^{row['option']} +{row['effective_bits']:.3f} ", text, re.MULTILINE)
    assert f"{data['parameters']:,} parameters, head tied to the embedding" in text
    assert "64 tokens × 2" in text


def test_an_inspection_under_a_budget_of_one_plan_says_so(model: Callable[..., str]) -> None:
    floor = inspect_model(model(), None, None, 1, "any", "64").space.floor
    found = inspect_model(model(), f"{floor}B", None, 1, "any", "64")
    (note,) = found.notes
    assert note.startswith("the budget leaves a single plan, 2b-g64-int everywhere")
    assert note in found.render()
    assert note in found.to_dict()["notes"]
    more = re.search(r"(\d+) B more give a choice", note)
    assert more
    assert inspect_model(model(), f"{floor + int(more[1])}B", None, 1, "any", "64").notes == ()


def test_an_inspection_above_the_ceiling_says_so(model: Callable[..., str]) -> None:
    found = inspect_model(model(), "1GiB", None, 1, "any", "64")
    assert found.notes == ("the budget fits at the largest option everywhere, so it forces no choice.",)


def test_an_inspection_below_the_floor_is_refused(model: Callable[..., str]) -> None:
    with pytest.raises(InfeasibleError, match="below the floor of this space"):
        inspect_model(model(), "1KiB", None, 1, "any", "64")


@pytest.mark.parametrize("groups", ["", "48", "64,", "64;32", "all", "-64", "64,48"])
def test_wrong_groups_are_refused_with_the_allowed_ones(model: Callable[..., str], groups: str) -> None:
    with pytest.raises(InputError, match=r"--groups '.*': give group sizes .*allowed: 32, 64, 128, 0"):
        inspect_model(model(), None, None, 1, "any", groups)


def test_seventy_billion_weights_are_inspected_exactly() -> None:
    found: ModelInspection = inspect_model(str(LLAMA_70B), "40GiB", 8192, 1, "vllm", "128")
    governed = 80 * (2 * 8192**2 + 2 * 1024 * 8192 + 3 * 8192 * 28672) + 2 * 128256 * 8192
    norms = (2 * 80 + 1) * 8192
    sizes = {name: size for name, _, size in found.uniform}
    assert sizes["4b-g128-int"] == governed * (4 * 128 + 16 + 4) // (8 * 128) + 2 * norms
    assert sizes["16b"] == 2 * (governed + norms)
    assert found.kv == 2**20 * 2560  # 320 KiB for each of 8,192 tokens
    assert found.fits


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
