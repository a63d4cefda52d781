"""Finds or starts the Ray that a study trains on, without importing Ray: `RAY_ADDRESS`, or a head of the flow's own on loopback.

Reader beware: `ray stop` is never used, it would end every Ray on the machine; the supervisor ends the one started here.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TypeVar

from components.config.problems import ConfigError
from tasks import supervisor
from tasks.command import MachineError

Started = TypeVar("Started")

START_SECONDS = 180.0
START_ATTEMPTS = 3
OBJECT_STORE_BYTES = 100_000_000  # results are a few hundred bytes; Ray's default takes 30% of the memory


@contextlib.contextmanager
def ray_head() -> Iterator[None]:
    """One Ray head on loopback for everything this process starts meanwhile: sets `RAY_ADDRESS` and its token; stops it at the end.

    An address that is already set is used as it is.

    Raises:
        ConfigError: nothing answers at `RAY_ADDRESS`.
        MachineError: Ray does not start.
    """
    if os.environ.get("RAY_ADDRESS"):
        probe_address(os.environ["RAY_ADDRESS"])
        yield
        return
    settings = private_settings()
    head = until_started(partial(_start_head, settings))
    settings["RAY_ADDRESS"] = head.address
    try:
        os.environ.update(settings)
        yield
    finally:
        head.end()
        for name in settings:
            os.environ.pop(name, None)


class _Head:
    """A head process under a supervisor, and its folder."""

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
        port = _free_port()
        self.address = f"127.0.0.1:{port}"
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port", str(port)]
        command += ["--node-ip-address", "127.0.0.1", "--include-dashboard=false", "--disable-usage-stats"]
        command += ["--temp-dir", self._folder, "--object-store-memory", str(OBJECT_STORE_BYTES)]
        self._process = supervisor.start_supervised(command, env={**os.environ, **settings}, serves_others=True)

    def wait(self) -> None:
        """Returns once it serves; a MachineError with its last lines when it does not come up."""
        started, said = threading.Event(), []

        def read() -> None:
            for line in self._process.stdout or ():
                said.append(line.rstrip())
                if "Ray runtime started" in line:
                    started.set()

        threading.Thread(target=read, daemon=True).start()
        deadline = time.monotonic() + START_SECONDS
        while not started.wait(timeout=0.2):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise MachineError("Ray did not start:\n" + "\n".join(said[-20:]))

    def end(self) -> None:
        self._process.terminate()
        self._process.wait()
        supervisor.forget(self._process)
        shutil.rmtree(self._folder, ignore_errors=True)


def _start_head(settings: Mapping[str, str]) -> _Head:
    """A head that serves."""
    head = _Head(settings)
    try:
        head.wait()
    except BaseException:
        head.end()
        raise
    return head


def until_started(start: Callable[[], Started]) -> Started:
    """What `start` gives. A busy machine can miss Ray's own limit of 30 s for its parts to meet, so it is started again then.

    Raises:
        MachineError: of the last attempt.
    """
    for _ in range(START_ATTEMPTS - 1):
        with contextlib.suppress(MachineError):
            return start()
    return start()


def probe_address(address: str) -> None:
    """A dead address would hang Ray for two minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=5):
            return
    except (OSError, ValueError, OverflowError) as error:
        raise ConfigError(
            f"RAY_ADDRESS: no Ray answers at {address!r} ({error}); start one, mend the address (host:port), or unset it"
        ) from None


def private_settings() -> dict[str, str]:
    """A Ray that only this user reaches: loopback only, a fresh token, nothing reported to anyone."""
    return {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # its one effect on Linux: every port is bound to 127.0.0.1
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "2",
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
