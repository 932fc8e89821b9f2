"""What holds for every test."""

from __future__ import annotations

import os

from hypothesis import settings

# No deadline: a busy machine would fail a test that is right. On CI the examples are always the
# same ones, so that a change is blamed only for what it broke.
settings.register_profile("tightfit", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("tightfit")
