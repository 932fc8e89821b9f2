"""A plan travels with the very matrices that were measured, or not at all."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tests.search.speeds import add_speeds
from tests.search.test_speed_points import ask

from tightfit.compress import QUANTIZER_VERSION, Replica
from tightfit.exporters.card import describe
from tightfit.exporters.checkpoint import Checkpoint
from tightfit.exporters.gguf import export
from tightfit.search.card_facts import read_license
from tightfit.search.public import public_name
from tightfit.search.reopen import reopen
from tightfit.search.resolve import stored_plan
from tightfit.search.shipping import find_importance, read_matrix, stored_shipment
from tightfit.search.store import Store
from tightfit.spaces import InputError, Plan, read_geometry
from tightfit.workers.models import digest_folder, load_model
from tightfit.workers.recipe import digest_importance


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


def test_a_stray_file_in_the_model_folder_is_not_quantized(run: Path, moved_model: Path) -> None:
    """It was there when the run was made, so that the model's digest covers it."""
    before = {site: codes.clone() for site, codes in packed(run).items()}
    tensors = load_file(moved_model / "model.safetensors")
    stray = {name: values + 1 for name, values in tensors.items()}
    save_file(stray, moved_model / "backup.safetensors", {"format": "pt"})
    with Store.open(run) as store:
        store.put("model", {**store.get("model"), "digest": digest_folder(moved_model)})
        digest = store.get("model")["digest"]
    for path in (run / "options").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.rename(path.with_name(digest[:16] + path.name[16:]))
    again = packed(run)
    assert all(torch.equal(codes, before[site]) for site, codes in again.items())


def test_importances_are_found_by_their_content_and_not_by_their_age(run: Path) -> None:
    (own,) = (run / "options").glob("*.safetensors")
    model, _, version = own.stem.split("-")
    importance = load_file(own)
    wanted = digest_importance(importance)
    other = {site: values + 1 for site, values in importance.items()}
    newer = own.with_name(f"{model}-{digest_importance(other)[:16]}-{version}.safetensors")
    save_file(other, newer)
    os.utime(newer, (own.stat().st_mtime + 60,) * 2)
    with Store.open(run) as store:
        digest, identity = store.get("model")["digest"], store.get("identity")
        plan = stored_plan(store, None)
        assert find_importance(run, digest) == newer  # nothing else is known of an older run
        assert find_importance(run, digest, wanted) == own
        store.put("identity", {**identity, "importance digest": wanted})
        source = stored_shipment(store, plan, source=True).source
        assert source is not None
        assert all(torch.equal(source.importance[site], importance[site]) for site in importance)
        with pytest.raises(InputError, match="rounded its matrices with are gone: search again"):
            find_importance(run, digest, "ab" * 32)
    newer.replace(own)
    with pytest.raises(InputError, match="rounded its matrices with have changed: search again"):
        find_importance(run, digest, wanted)


def test_a_local_folder_is_called_by_its_own_name(run: Path, moved_model: Path, tmp_path: Path) -> None:
    with Store.open(run) as store:
        store.put("model", {**store.get("model"), "name": str(moved_model)})
        first = stored_shipment(store, stored_plan(store, None), source=True, facts=True)
        elsewhere = tmp_path / "elsewhere" / "model"
        shutil.copytree(moved_model, elsewhere)
        store.put("model", {**store.get("model"), "name": str(elsewhere), "folder": str(elsewhere)})
        second = stored_shipment(store, stored_plan(store, None), source=True)
    assert first.model["name"] == second.model["name"] == "model"
    files = [export(one, tmp_path / f"{i}.gguf").read_bytes() for i, one in enumerate((first, second))]
    assert files[0] == files[1]
    assert str(tmp_path).encode() not in files[0]


def test_a_card_names_no_place_of_the_machine(run: Path) -> None:
    with Store.open(run) as store:
        settings = store.get("settings")
        store.put("settings", {**settings, "text": {**settings["text"], "source": str(run / "corpus")}})
        shipment = stored_shipment(store, stored_plan(store, None), facts=True)
        runs, model = Path(settings["runs"]), Path(settings["model"])
    assert runs.is_absolute()
    assert model.is_absolute()
    public = shipment.facts["settings"]
    assert (public["runs"], public["model"], public["text"]["source"]) == (runs.name, model.name, "corpus")
    assert shipment.facts["verify"].endswith(f"--run {run.parent.name}/{run.name}")
    card = describe(shipment)
    for place in (run, runs, model):
        assert str(place.parent) not in card


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
        matrix = read_matrix(Checkpoint(tmp_path), geometry, geometry.linear(site))
        assert matrix.dtype == torch.float32
        assert torch.equal(matrix, replica.original(site))


def test_a_matrix_that_no_file_holds_is_named(moved_model: Path) -> None:
    geometry = load_model(str(moved_model)).geometry
    for file in moved_model.glob("*.safetensors"):
        file.unlink()
    save_file({"other": torch.zeros(1)}, moved_model / "model.safetensors")
    with pytest.raises(InputError, match=r"has no tensor model\.embed_tokens\.weight"):
        read_matrix(Checkpoint(moved_model), geometry, geometry.linear("embed"))


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


def test_a_card_of_a_plan_that_misses_a_bound_on_speed_says_so(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    final, rival = store.get("result")["chosen"], store.get("baselines")[0]["digest"]
    add_speeds(store, {final: 100.0, rival: 200.0})
    assert _too_slow(store, final) is None
    ask(store, tokens_per_second=120.0, latency="1s")
    assert _too_slow(store, final) == ["120 tokens/s"]
    assert _too_slow(store, rival) is None


def test_a_card_of_the_result_that_could_not_be_run_says_so(fake_run: Callable[..., Store]) -> None:
    store = fake_run()
    ask(store, tokens_per_second=120.0)
    result = store.get("result")
    assert _too_slow(store, result["chosen"]) is None
    store.put("result", {**result, "too_slow": True})
    assert _too_slow(store, result["chosen"]) == ["120 tokens/s"]


def _too_slow(store: Store, digest: str) -> list[str] | None:
    shipment = stored_shipment(store, stored_plan(store, digest), facts=True)
    missed: list[str] | None = shipment.facts.get("too_slow")
    return missed


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ({"name": "org/tiny", "folder": "/cache/snapshots/0a1b"}, "org/tiny"),
        ({"name": "org/tiny", "folder": "org/tiny"}, "tiny"),  # a folder that is gone by now
        ({"name": "/models/tiny/"}, "tiny"),
        ({"name": "~/tiny"}, "tiny"),
        ({"name": "smollm2-135m", "folder": "/cache/models/smollm2-135m-v1"}, "smollm2-135m"),
    ],
)
def test_only_local_folders_lose_their_place(model: dict[str, str], name: str) -> None:
    assert public_name(model) == name


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
