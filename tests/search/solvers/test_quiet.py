from __future__ import annotations

import ctypes
import os
import sys

import pytest

from tightfit.search.solvers._quiet import quiet


@pytest.mark.skipif(os.name != "posix", reason="there is no C library to print with")
def test_what_c_code_prints_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    library = ctypes.CDLL(None)
    print("before")
    with quiet():
        library.puts(b"from within")
    print("after")
    sys.stdout.flush()
    out, err = capfd.readouterr()
    assert out == "before\nafter\n"
    assert err == ""


def test_the_standard_output_is_back_after_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="within"), quiet():
        raise ValueError("within")
    print("after")
    sys.stdout.flush()
    assert capfd.readouterr().out == "after\n"
