from __future__ import annotations

import inspect
import subprocess
import sys

import pytest

from tightfit.proxies import kv


def test_everything_announced_is_there():
    assert all(hasattr(kv, name) for name in kv.__all__)
    assert list(kv.__all__) == sorted(kv.__all__, key=lambda name: (not name.isupper(), name))


@pytest.mark.parametrize("heavy", ["torch", "transformers", "sklearn"])
def test_allocating_needs_no_heavy_library(heavy):
    code = f"import sys, tightfit.proxies.kv; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("name", kv.ALLOCATORS)
def test_every_rule_takes_menu_and_budget_and_says_where_it_comes_from(name):
    rule = kv.ALLOCATORS[name]
    names = list(inspect.signature(rule.allocate).parameters)
    assert names[:2] == ["menu", "budget"]
    assert not rule.needs or names[2] == rule.needs
    assert rule.allocate.__name__ == name
    assert rule.citation
