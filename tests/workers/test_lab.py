import dataclasses
import json

import pytest

from tightfit.spaces import read_geometry
from tightfit.workers.lab import LAB, TINY, read_training, split_corpus, train
from tightfit.workers.models import load_model
from tightfit.workers.sources import cache_folder, read_config

RECIPES = {"lab": LAB, "tiny": TINY}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)
def test_widths_suit_group_quantizers_and_heads_are_grouped(recipe):
    geometry = read_geometry(recipe.config())
    unit = 256 if recipe is LAB else 64
    assert all(linear.cols % unit == 0 for linear in geometry.linears)
    assert geometry.attention[0].kv_heads < recipe.heads
    assert recipe.hidden % recipe.heads == 0
    assert geometry.tied


def test_lab_is_small_enough_to_train_in_minutes():
    assert 5e6 < read_geometry(LAB.config()).parameters < 1e7


def test_digest_depends_on_everything_in_the_recipe():
    changed = [
        dataclasses.replace(TINY, seed=1),
        dataclasses.replace(TINY, steps=TINY.steps + 1),
        dataclasses.replace(TINY, modules=TINY.modules[1:]),
        dataclasses.replace(TINY, version=TINY.version + 1),
    ]
    assert len({TINY.digest(), *(recipe.digest() for recipe in changed)}) == 5
    assert TINY.digest() == dataclasses.replace(TINY).digest()


def test_held_out_documents_are_not_trained_on():
    training, heldout = split_corpus(TINY)
    assert len(heldout) == (len(training) + len(heldout)) // 20 > 3
    assert not {d.id for d in training} & {d.id for d in heldout}


def test_tiny_model_clearly_beats_a_bigram_model_on_unseen_text():
    training = read_training(train(TINY))
    assert [score.text for score in training.scores] == ["modules", "python-docs"]
    for score in training.scores:
        assert score.tokens > 10_000
        assert score.perplexity < 0.8 * score.bigram < TINY.vocab


def test_trained_folder_is_an_ordinary_model_folder():
    folder = train(TINY)
    assert read_config(str(folder)) == TINY.config()
    loaded = load_model(str(folder))
    assert loaded.geometry.parameters == read_geometry(TINY.config()).parameters
    assert len(loaded.tokenizer) == TINY.vocab
    assert loaded.tokenizer.eos_token_id == TINY.config()["eos_token_id"]


def test_trained_once_then_found(monkeypatch, tmp_path):
    monkeypatch.setenv("TIGHTFIT_CACHE", str(tmp_path))
    short = dataclasses.replace(TINY, modules=("difflib", "heapq"), blocks=1, steps=4, vocab=300)
    lines = []
    folder = train(short, lines.append)
    assert folder.is_relative_to(cache_folder())
    assert lines
    before = (folder / "model.safetensors").read_bytes()
    again = []
    assert train(short, again.append) == folder
    assert not again
    recipe_in_config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert recipe_in_config["num_hidden_layers"] == 1
    monkeypatch.setenv("TIGHTFIT_CACHE", str(tmp_path / "other"))
    assert (train(short) / "model.safetensors").read_bytes() == before
