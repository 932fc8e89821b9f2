from __future__ import annotations

import subprocess
import sys

import pytest

from tightfit import proxies


def test_everything_announced_is_there():
    assert all(hasattr(proxies, name) for name in proxies.__all__)
    assert list(proxies.__all__) == sorted(proxies.__all__, key=lambda name: (not name.isupper(), name))


@pytest.mark.parametrize("heavy", ["torch", "transformers", "sklearn", "scipy.stats"])
def test_reading_a_stored_fit_needs_no_heavy_library(heavy):
    code = f"import sys; from tightfit.proxies import LinkAdditive; sys.exit({heavy!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
