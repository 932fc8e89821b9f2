import sysconfig
from pathlib import Path

import pytest

from tightfit.spaces import InputError
from tightfit.workers.corpus import MODULES, read_modules

SOURCE = '''#!/usr/bin/env python
# A module
#   about things.

"""What it is for.

    Indented text.
"""

import os  # not a block of its own

# Separate.

NAME = """no docstring"""


def double(x):
    r"""Return \\d twice."""
    return f(  # trailing
        """an argument""",
        x,
    )


class Thing:
    \'\'\'A thing.\'\'\'

    size = 3
    """Its size."""
'''


@pytest.fixture
def library(tmp_path, monkeypatch):
    """Pretend that the standard library is a folder of the test's own."""
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    return tmp_path


def test_docstrings_and_comment_blocks_are_read_in_order(library):
    (library / "thing.py").write_text(SOURCE, encoding="utf-8")
    (document,) = read_modules(["thing"])
    assert document.id == "thing.py"
    assert document.text.split("\n\n") == [
        "!/usr/bin/env python\nA module\n  about things.",
        "What it is for.",
        "Indented text.",
        "Separate.",
        "Return \\d twice.",
        "A thing.",
        "Its size.",
    ]


def test_every_file_of_a_package_is_a_document_and_silent_ones_are_left_out(library):
    for name in ("z.py", "sub/a.py"):
        path = library / "package" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('"""Says something."""\n', encoding="utf-8")
    (library / "package" / "__init__.py").write_text("x = 1\n", encoding="utf-8")
    assert [d.id for d in read_modules(["package"])] == ["package/sub/a.py", "package/z.py"]


def test_missing_source_is_refused(library):
    with pytest.raises(InputError, match="nowhere"):
        read_modules(["nowhere"])


def test_every_listed_module_is_in_this_python():
    library = Path(sysconfig.get_path("stdlib"))
    missing = [m for m in MODULES if not ((library / f"{m}.py").is_file() or (library / m).is_dir())]
    assert not missing
    assert list(MODULES) == sorted(set(MODULES))
