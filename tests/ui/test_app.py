from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tightfit.spaces import InputError
from tightfit.ui.app import check_address, serve


def test_a_bad_path_is_refused_before_anything_is_started(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="does not exist: name a run's folder or a folder of runs"):
        serve(tmp_path / "nowhere")


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"cannot listen at 127\.0\.0\.1:{port} "):
            serve(tmp_path, port)
    check_address("127.0.0.1", port)


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot listen at 192\.0\.2\.1 "):
        serve(tmp_path, host="192.0.2.1")


def test_what_can_be_refused_is_refused_without_gradio() -> None:
    code = (
        "import sys, tightfit.ui.app; print([n for n in ('gradio', 'plotly', 'torch') if n in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.stdout == "[]\n", run.stderr
