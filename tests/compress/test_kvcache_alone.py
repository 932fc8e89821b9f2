"""The package stands on its own, since its files are shipped beside plans."""

from __future__ import annotations

import ast
import importlib
import shutil
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tightfit.compress import kvcache

FOLDER = Path(kvcache.__file__).parent


def test_it_imports_nothing_but_torch_transformers_and_itself() -> None:
    for path in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                assert node.level == 1, path
                assert (FOLDER / f"{node.module}.py").exists(), path
            elif isinstance(node, (ast.Import, ast.ImportFrom)):
                names = (
                    [node.module]
                    if isinstance(node, ast.ImportFrom)
                    else [alias.name for alias in node.names]
                )
                roots = {str(name).partition(".")[0] for name in names}
                assert roots <= {"torch", "transformers", *sys.stdlib_module_names}, path


def test_a_copy_of_it_works_beside_the_original(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(FOLDER, tmp_path / "shipped_cache", ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.syspath_prepend(tmp_path)
    shipped = importlib.import_module("shipped_cache")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2
    )
    model = LlamaForCausalLM(config).eval()
    ids = torch.randint(0, 50, (1, 120))
    found = []
    for package in (kvcache, shipped, kvcache):
        state = package.prefill(model, ids[:, :80])
        cache = package.PlanCache.from_prefill(state, [package.CacheFormat(4, 4, residual=8), None])
        found.append(package.continue_with(model, cache, ids[:, 80:]))
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
