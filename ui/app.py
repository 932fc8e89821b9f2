"""Where the app starts: what can be refused is refused before Gradio is imported, which takes seconds."""

from __future__ import annotations

import os
import signal
import socket
import sys
import tempfile
from pathlib import Path

from tightfit.spaces import InputError
from tightfit.ui.runs import check_path


def serve(path: Path, port: int | None = None, host: str = "127.0.0.1", open_browser: bool = False) -> None:
    """Show runs in the browser until interrupted.

    Args:
        path: a run's folder, or a folder of runs; the default one need not be there yet.
        port: where to listen; the first free one from 7860 on unless given.
        host: address to listen on; this machine alone unless given.
        open_browser: whether to open the page in a browser.

    Raises:
        InputError: there is no such folder, or nobody can listen at this address.
    """
    path = check_path(path)
    check_address(host, port or 0)
    # Ended either way, what was written for the browser is removed.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="tightfit-ui-") as private:
        # Gradio reads these when it is imported. Files for the browser go where nobody else looks.
        os.environ["GRADIO_TEMP_DIR"] = str(Path(private) / "served")
        os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
        os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
        from tightfit.ui.server import launch
        from tightfit.ui.window import Window

        exports = Path(private) / "exports"
        exports.mkdir()
        launch(Window(path, exports).blocks, exports, port, host, open_browser)


def check_address(host: str, port: int) -> None:
    """Refuse an address that nobody can listen at; port 0 is any.

    Raises:
        InputError: the host is unknown, or the port is taken or not allowed.
    """
    try:
        with socket.socket() as attempt:
            attempt.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            attempt.bind((host, port))
    except OSError as error:
        where = f"{host}:{port}" if port else host
        raise InputError(f"cannot listen at {where} ({error.strerror}): name another address.") from error
