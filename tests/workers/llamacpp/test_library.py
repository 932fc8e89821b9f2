import ctypes.util
import subprocess
import sys

import pytest

from tightfit.spaces import InputError
from tightfit.workers.llamacpp.engine import Library, UnusableError
from tightfit.workers.llamacpp.library import LlamaError, find_library, library_version, load_library
from tightfit.workers.llamacpp.structs import TESTED


def test_the_library_is_found_without_importing_it():
    code = "import sys; from tightfit.workers.llamacpp.library import load_library as load"
    code += "; print(load().version())"
    code += "; print([name for name in ('torch', 'numpy', 'xllamacpp') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    version, heavy = done.stdout.splitlines()
    assert version
    assert heavy == "[]"
    assert done.stderr == ""


def test_a_missing_wheel_is_named_with_its_command(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    for ask in (find_library, library_version):
        with pytest.raises(InputError, match=f"xllamacpp is missing; pip install xllamacpp=={TESTED}"):
            ask()


@pytest.fixture
def other_wheel(monkeypatch, tmp_path):
    package = tmp_path / "xllamacpp"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    return package


def test_a_wheel_without_a_shared_object_is_a_missing_one(other_wheel):
    with pytest.raises(InputError, match="xllamacpp is missing"):
        find_library()


def test_a_build_that_cannot_be_called_is_named_with_the_tested_one(other_wheel):
    (other_wheel / "xllamacpp.abi3.so").write_bytes(b"no library")
    with pytest.raises(LlamaError, match="shared object cannot be used") as caught:
        load_library.__wrapped__()
    assert library_version() in str(caught.value)
    assert f"pip install xllamacpp=={TESTED}" in str(caught.value)


def test_a_library_without_llama_cpp_cannot_be_used():
    with pytest.raises(UnusableError, match="llama_"):
        Library(ctypes.util.find_library("m"))
