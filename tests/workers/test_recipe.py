from __future__ import annotations

import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tightfit.spaces import InputError
from tightfit.workers.crew import Alone
from tightfit.workers.evaluator import Evaluator
from tightfit.workers.recipe import describe_setup, digest_importance, write_importance

Bench = Any  # of conftest


def losses(bench: Bench, evaluator: Evaluator) -> list[Any]:
    jobs = [bench.job(f"plan {seed}", seed) for seed in range(3)]
    return [outcome.documents for _, outcome in Alone(evaluator, bench.recipe.texts).run(jobs)]


def files(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(file.relative_to(folder)): (file.stat().st_mtime_ns, file.stat().st_size)
        for file in folder.rglob("*")
        if file.is_file()
    }


def test_what_is_built_is_equal_and_writes_no_option(bench: Bench) -> None:
    alone = losses(bench, bench.evaluator)
    before = files(bench.recipe.options)
    recipe = pickle.loads(pickle.dumps(bench.recipe))
    built = recipe.build(1)
    assert losses(bench, built) == alone
    assert describe_setup(built) == describe_setup(bench.evaluator)
    built.packed("embed", next(iter(bench.options(77).values())))
    assert files(bench.recipe.options) == before


def test_a_machine_without_the_runs_folders_builds_the_same(bench: Bench, tmp_path: Path) -> None:
    away = replace(
        bench.recipe,
        importance=tmp_path / "none.safetensors",
        options=tmp_path / "options",
        reference=tmp_path / "reference",
    )
    content = bench.recipe.importance.read_bytes()
    assert losses(bench, away.build(1, content)) == losses(bench, bench.evaluator)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="is not on"):
        away.build(1)


def test_a_folder_that_is_gone_leaves_the_name(bench: Bench, tmp_path: Path) -> None:
    moved = replace(bench.recipe, folder=tmp_path / "gone")
    assert moved.build(1).key({}) == bench.evaluator.key({})
    with pytest.raises(InputError, match="no-such-model"):
        replace(moved, model="no-such-model").build(1)


def test_another_model_is_refused(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(bench.recipe.folder, folder)
    (weights,) = folder.glob("*.safetensors")
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # one bit
    weights.write_bytes(content)
    with pytest.raises(InputError, match=bench.recipe.digest) as error:
        replace(bench.recipe, folder=folder).build(1)
    assert str(folder) in str(error.value)


def test_other_importances_are_refused(bench: Bench, tmp_path: Path) -> None:
    changed = {site: values + 1 for site, values in bench.importance.items()}
    path = tmp_path / "importance.safetensors"
    write_importance(path, changed)
    with pytest.raises(InputError, match=digest_importance(changed)):
        replace(bench.recipe, importance=path).build(1)


def test_sites_may_share_their_importances(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    one = torch.arange(6.0)
    write_importance(tmp_path / "new" / "i.safetensors", {"a": one, "b": one, "c": one[::2]})
    back = load_file(tmp_path / "new" / "i.safetensors")
    assert {site: values.tolist() for site, values in back.items()} == {
        "a": one.tolist(),
        "b": one.tolist(),
        "c": [0.0, 2.0, 4.0],
    }
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["i.safetensors"]
