"""The Ray that workers live in: one of our own on this machine, or one that is there already.

Ray is imported only here and where a connection exists, since that takes a while.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import socket
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from tightfit.spaces import InputError, TightfitError
from tightfit.workers.guard import MARK, Guard
from tightfit.workers.scratch import drop_scratch, make_scratch

_LOOPBACK = "127.0.0.1"
# Ray refuses less than 75 MiB. Windows and importances are all that goes through it.
_OBJECT_STORE = 80 * 2**20
# The path of a Unix socket holds 103 bytes at most, and Ray appends 69 to its folder.
_LONGEST_ROOT = 34
_SCRATCH_NAME = len("/tightfit-12345678")
_REACHABLE = 5.0  # seconds
_ADDRESS = re.compile(r"(?P<host>[\w.-]+):(?P<port>\d{1,5})")
# Off, the processes that Ray starts take this machine for the only one.
_CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"


class WorkerError(TightfitError):
    """Workers cannot be started, or are not fit to measure."""


class Cluster:
    """A connection of this process to Ray.

    A process has one such connection. Where there is one already, it is used as it is and left open.

    Args:
        cpus: CPUs that are needed; a local Ray gets exactly so many. None takes all that a cluster has.
        address: ``auto`` for the cluster that runs on this machine, ``host:port`` for any other, None to
            start a local one.
        gpus: GPUs that are needed.
        resources: custom resources that are needed, of which a local Ray gets so many.

    Attributes:
        cpus: CPUs that may be used.

    Raises:
        InputError: the address is none.
        WorkerError: Ray does not start, is not there, or is too small.
    """

    def __init__(
        self,
        cpus: int | None,
        address: str | None = None,
        gpus: int = 0,
        resources: Mapping[str, int] | None = None,
    ) -> None:
        self._leave: list[Callable[[], None]] = []
        if address is not None and address != "auto" and not _ADDRESS.fullmatch(address):
            raise InputError(f"workers.address: {address!r} must be auto or host:port.")
        import ray

        self._ray: Any = ray
        if not ray.is_initialized():
            self._connect(address, num_cpus=cpus or 1, num_gpus=gpus, resources=dict(resources or {}))
        self.cpus = cpus or max(1, int(self._ray.cluster_resources().get("CPU", 0)))
        self._check("CPU", self.cpus)
        self._check("GPU", gpus)
        for name, needed in (resources or {}).items():
            self._check_resource(name, needed)

    def close(self) -> None:
        """Disconnect; a local Ray ends with all of its processes, any other one goes on."""
        while self._leave:
            self._leave.pop()()

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self, address: str | None, **amounts: Any) -> None:
        quiet = {"log_to_driver": False, "configure_logging": True, "logging_level": logging.CRITICAL}
        try:
            if address is None:
                self._start(**amounts, **quiet)
            else:
                self._join(quiet, address)
        except BaseException:
            self.close()
            raise

    def _start(self, **settings: Any) -> None:
        folder = make_scratch(_short_folder())
        self._leave.append(lambda: drop_scratch(folder))
        guard = Guard(str(folder))
        self._leave.append(guard.close)
        self._leave.append(_bind_to_loopback())
        # A token of its own: nobody else on this machine can send work, and no home folder is written.
        token = folder / "token"
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
        self._leave.append(
            _set_environment(
                {
                    "RAY_AUTH_MODE": "token",
                    "RAY_AUTH_TOKEN_PATH": str(token),
                    "RAY_AUTH_TOKEN": None,
                    "RAY_ADDRESS": None,
                    "RAY_REDIS_ADDRESS": None,
                    _CLUSTERS: "0",
                    "RAY_USAGE_STATS_ENABLED": "0",
                    "OMP_NUM_THREADS": "1",
                }
            )
        )
        unmark = _set_environment({MARK: str(folder)})  # for what Ray starts, and nothing else
        try:
            self._init(
                "workers: Ray could not be started on this machine",
                address="local",
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE,
                _temp_dir=str(folder),
                _node_ip_address=_LOOPBACK,
                **settings,
            )
        finally:
            unmark()

    def _join(self, quiet: Mapping[str, Any], address: str) -> None:
        if found := _ADDRESS.fullmatch(address):
            try:
                socket.create_connection((found["host"], int(found["port"])), _REACHABLE).close()
            except (OSError, OverflowError) as error:
                raise WorkerError(f"workers.address: nothing answers at {address} ({error}).") from error
            # Ray would let it overrule the address that was asked for.
            self._leave.append(_set_environment({"RAY_ADDRESS": None}))
        self._init(f"workers.address: could not join the cluster at {address!r}", address=address, **quiet)

    def _init(self, failure: str, **settings: Any) -> None:
        _refresh_authentication()
        handled = signal.getsignal(signal.SIGTERM)
        try:
            self._ray.init(**settings)
        except Exception as error:
            self._ray.shutdown()
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
            raise WorkerError(f"{failure}: {reason}.") from error
        finally:
            with suppress(ValueError, TypeError):  # not the main thread, or a handler from outside Python
                signal.signal(signal.SIGTERM, handled)  # Ray put its own there
        self._leave.append(_hush())
        self._leave.append(self._ray.shutdown)

    def _check(self, kind: str, needed: int) -> None:
        there = int(self._ray.cluster_resources().get(kind, 0))
        if there < needed:
            self.close()
            raise WorkerError(
                f"workers.count: {needed} workers need a {kind} each, but Ray has {there}; ask for fewer."
            )

    def _check_resource(self, name: str, needed: int) -> None:
        if self._ray.cluster_resources().get(name, 0) < needed:
            self.close()
            raise WorkerError(
                f"workers.address: no machine of the cluster has the resource {name}; start Ray on one with "
                f"--resources='{{\"{name}\": {needed}}}'."
            )


def _bind_to_loopback() -> Callable[[], None]:
    """Let Ray bind what it starts to the loopback address alone; return what undoes it.

    It does so by itself where it knows no clusters, and finds out about that when it is imported.
    """
    from ray._private import ray_constants

    constants: Any = ray_constants
    before = constants.ENABLE_RAY_CLUSTER
    constants.ENABLE_RAY_CLUSTER = False
    return lambda: setattr(constants, "ENABLE_RAY_CLUSTER", before)


def _hush() -> Callable[[], None]:
    """Keep Ray from printing into the user's terminal that a worker died; return what undoes it.

    Whoever uses the workers hears of it and says what matters.
    """
    from ray._private import worker

    module: Any = worker
    before = module._worker_logs_enabled
    module._worker_logs_enabled = False
    return lambda: setattr(module, "_worker_logs_enabled", before)


def _refresh_authentication() -> None:
    """Make Ray read the environment again: it remembers what an earlier connection used."""
    from ray import _raylet

    raylet: Any = _raylet
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def _short_folder() -> Path:
    """Return a folder for temporary files whose path leaves room for the names of Ray's sockets."""
    own = Path(tempfile.gettempdir())
    return own if len(str(own)) + _SCRATCH_NAME <= _LONGEST_ROOT else Path("/tmp")


def _set_environment(values: Mapping[str, str | None]) -> Callable[[], None]:
    """Set or unset environment variables; return what puts the old ones back."""
    before = {name: os.environ.get(name) for name in values}
    _put(values)
    return lambda: _put(before)


def _put(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
