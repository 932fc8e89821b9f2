"""A Ray cluster that somebody else started."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running_head(log: Path, *options: str) -> Iterator[str]:
    """Start a head node with one CPU, and yield its address; what it prints goes into ``log``."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
    command += ["--node-ip-address=127.0.0.1", "--num-cpus=1", "--include-dashboard=false"]
    command += ["--object-store-memory=80000000", "--disable-usage-stats", *options]
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as folder, log.open("w") as said:
        process = subprocess.Popen([*command, f"--temp-dir={folder}"], stdout=said, stderr=said)
        try:
            end = time.monotonic() + 60
            while "Ray runtime started" not in log.read_text():
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.05)
            yield f"127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(60)
