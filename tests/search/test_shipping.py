"""A plan travels with the very matrices that were measured, or not at all."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tightfit.compress import QUANTIZER_VERSION, Replica
from tightfit.search.card_facts import read_license
from tightfit.search.reopen import reopen
from tightfit.search.resolve import stored_plan
from tightfit.search.shipping import find_importance, read_matrix, stored_shipment
from tightfit.search.store import Store
from tightfit.spaces import InputError, Plan, read_geometry
from tightfit.workers.models import load_model


@pytest.fixture
def run(shipped_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, to be changed."""
    return Path(shutil.copytree(shipped_run, tmp_path / "run"))


@pytest.fixture
def moved_model(run: Path, tmp_path: Path) -> Path:
    """A copy of the run's model, which the run takes for its own."""
    with Store.open(run) as store:
        model = store.get("model")
        folder = Path(shutil.copytree(model["folder"], tmp_path / "model"))
        store.put("model", {**model, "folder": str(folder)})
    return folder


def packed(run: Path) -> dict[str, torch.Tensor]:
    """Codes of every site of the run's plan."""
    with Store.open(run, mode="ro") as store:
        shipment = stored_shipment(store, stored_plan(store, None), source=True)
    assert shipment.source is not None
    options = shipment.space.site_options(shipment.plan)
    return {site: shipment.source.packed(site, option).codes for site, option in options.items()}


def test_a_plan_goes_to_an_exporter_with_its_space_and_its_model(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    plan = stored_plan(store, None)
    shipment = stored_shipment(store, plan)
    assert shipment.plan == plan
    assert shipment.space.decisions == store.decisions()
    assert shipment.model == {"name": "smollm2-135m-offgrid", "digest": "5f" * 32, "family": "llama"}
    assert shipment.source is None
    assert shipment.facts == {}


def test_a_plan_of_a_run_that_has_not_loaded_its_model_is_refused(tmp_path: Path) -> None:
    with (
        Store.open(tmp_path / "empty" / "run.db") as store,
        pytest.raises(InputError, match="does not say of which model yet"),
    ):
        stored_shipment(store, Plan(()))


def test_matrices_are_those_that_the_evaluator_measured(shipped_run: Path) -> None:
    with Store.open(shipped_run, mode="ro") as store:
        reopened, options = reopen(store), _options(store)
    codes = packed(shipped_run)
    assert codes.keys() == options.keys()
    for site, option in options.items():
        assert torch.equal(codes[site], reopened.evaluator.packed(site, option).codes)


def test_without_the_option_cache_the_same_bytes_are_quantized_again(run: Path) -> None:
    before = {site: codes.clone() for site, codes in packed(run).items()}
    for folder in (run / "options").iterdir():
        if folder.is_dir():
            shutil.rmtree(folder)
    again = packed(run)
    assert again.keys() == before.keys()
    assert all(torch.equal(codes, before[site]) for site, codes in again.items())
    assert [path.suffix for path in (run / "options").iterdir()] == [".safetensors"]  # only read


def test_a_run_that_moved_with_its_model_still_ships(run: Path, moved_model: Path) -> None:
    assert packed(run).keys()
    assert moved_model.is_dir()


def test_a_model_that_has_changed_is_refused_with_both_digests(run: Path, moved_model: Path) -> None:
    file = next(moved_model.glob("*.safetensors"))
    tensors = load_file(file)
    name = sorted(tensors)[0]
    tensors[name].view(-1)[0] += 1
    save_file(tensors, file, {"format": "pt"})
    with Store.open(run, mode="ro") as store:
        held = store.get("model")["digest"]
        with pytest.raises(InputError) as refusal:
            stored_shipment(store, stored_plan(store, None), source=True)
        assert stored_shipment(store, stored_plan(store, None)).source is None  # the plan alone still goes
    words = str(refusal.value)
    assert held in words
    assert f"the model in {moved_model} has the digest" in words
    assert words.endswith("put that model back, or search again.")


def test_a_model_that_is_gone_is_refused(run: Path, moved_model: Path) -> None:
    shutil.rmtree(moved_model)
    with Store.open(run) as store:
        store.put("model", {**store.get("model"), "name": str(moved_model)})
        with pytest.raises(InputError, match="does not exist"):
            stored_shipment(store, stored_plan(store, None), source=True)


@pytest.mark.parametrize("other", [True, False])
def test_importances_that_are_gone_or_of_another_version_are_refused(run: Path, other: bool) -> None:
    for path in (run / "options").glob("*.safetensors"):
        if other:
            path.rename(path.with_name(path.name.replace(f"-v{QUANTIZER_VERSION}.", "-v0.")))
        else:
            path.unlink()
    with Store.open(run, mode="ro") as store, pytest.raises(InputError) as refusal:
        find_importance(run, store.get("model")["digest"])
    words = "were made by another version of Tightfit" if other else "are gone"
    assert f"rounded its matrices with {words}: search again" in str(refusal.value)


@pytest.mark.parametrize("bare", [True, False])
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_matrix_reads_as_it_is_loaded_for_measuring(family: str, bare: bool, tmp_path: Path) -> None:
    """Tied and transposed ones too, and under the names of a decoder without its head."""
    import transformers

    sizes: dict[str, Any] = {"vocab_size": 96, "tie_word_embeddings": True}
    if family == "gpt2":
        sizes |= {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 64}
    else:
        sizes |= {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
        sizes |= {"num_attention_heads": 2, "num_key_value_heads": 1}
    config = transformers.AutoConfig.for_model(family, dtype="bfloat16", **sizes)
    model: Any = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    (model.base_model if bare else model).save_pretrained(tmp_path)
    geometry = read_geometry(json.loads((tmp_path / "config.json").read_text()))
    replica = Replica(model.float(), geometry)
    for site in replica.sites:
        matrix = read_matrix(tmp_path, geometry, geometry.linear(site))
        assert matrix.dtype == torch.float32
        assert torch.equal(matrix, replica.original(site))


def test_a_matrix_that_no_file_holds_is_named(moved_model: Path) -> None:
    geometry = load_model(str(moved_model)).geometry
    for file in moved_model.glob("*.safetensors"):
        file.unlink()
    with pytest.raises(InputError, match=r"none of its safetensors files holds model\.embed_tokens\.weight"):
        read_matrix(moved_model, geometry, geometry.linear("embed"))


def test_facts_are_those_of_the_report(shipped_run: Path) -> None:
    with Store.open(shipped_run, mode="ro") as store:
        plan = stored_plan(store, None)
        facts = stored_shipment(store, plan, facts=True).facts
        (held,) = [m for m in store.measurements("holdout") if m.plan == plan.digest]
        limit = store.get("budget")["limit"]
    own, *rivals = facts["losses"]
    assert (own["digest"], own["kl"], own["kl_se"]) == (plan.digest, held.kl, held.kl_se)
    assert rivals
    assert all("more" in rival and rival["digest"] != plan.digest for rival in rivals)
    assert [rival["kl"] for rival in rivals] == sorted(rival["kl"] for rival in rivals)
    assert facts["limit"] == limit
    assert facts["text"]["tokens"] == held.tokens
    assert facts["settings"]["target"] == "llama.cpp"
    assert json.loads(json.dumps(facts)) == facts


def test_a_plan_that_was_not_measured_has_no_losses(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    space = stored_shipment(store, stored_plan(store, None)).space
    levels = [len(decision.options) - 1 for decision in space.decisions]
    levels[1] = 0
    facts = stored_shipment(store, space.plan(levels), facts=True).facts
    assert "losses" not in facts
    assert "text" not in facts
    assert facts["trust"]


@pytest.mark.parametrize(
    ("text", "license_name"),
    [
        ("---\nlanguage: en\nlicense: apache-2.0\n---\n# A model\n", "apache-2.0"),
        ('---\r\nlicense: "mit"\r\n---\r\n', "mit"),
        ("# A model\nlicense: mit\n", None),
        ("---\nlanguage: en\n---\nlicense: mit\n", None),
        ("", None),
        (None, None),
    ],
)
def test_the_license_is_what_the_front_matter_says(
    text: str | None, license_name: str | None, tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / "README.md").write_bytes(text.encode())
    assert read_license(tmp_path) == license_name


def _options(store: Store) -> dict[str, Any]:
    shipment = stored_shipment(store, stored_plan(store, None))
    return shipment.space.site_options(shipment.plan)
