"""Model folders of every family, each made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.exporters.gguf.tiny import write_folder


@pytest.fixture(scope="session")
def folder_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The model folder of a variant by name."""
    folders: dict[str, Path] = {}

    def make(variant: str) -> Path:
        if variant not in folders:
            folders[variant] = write_folder(variant, tmp_path_factory.mktemp("model"))
        return folders[variant]

    return make
