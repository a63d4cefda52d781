"""Finds or starts the Ray that a study trains on, without importing Ray: `RAY_ADDRESS`, or a head of the flow's own on loopback.

Reader beware: `ray stop` is never used, it would end every Ray on the machine; the supervisor ends the one started here.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

from components.config.problems import ConfigError
from tasks import supervisor

START_SECONDS = 180.0
OBJECT_STORE_BYTES = 100_000_000  # results are a few hundred bytes; Ray's default takes 30% of the memory


@contextlib.contextmanager
def ray_head() -> Iterator[None]:
    """One Ray head on loopback for everything this process starts meanwhile: sets `RAY_ADDRESS` and its token; stops it at the end.

    An address that is already set is used as it is.

    Raises:
        ConfigError: nothing answers at `RAY_ADDRESS`, or Ray does not start.
    """
    if os.environ.get("RAY_ADDRESS"):
        probe_address(os.environ["RAY_ADDRESS"])
        yield
        return
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    port = _free_port()
    settings = private_settings()
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--port", str(port)]
    command += ["--node-ip-address", "127.0.0.1", "--include-dashboard=false", "--disable-usage-stats", "--temp-dir", folder]
    command += ["--object-store-memory", str(OBJECT_STORE_BYTES)]
    process = supervisor.start_supervised(command, env={**os.environ, **settings}, serves_others=True)
    try:
        _wait_for_head(process)
        settings["RAY_ADDRESS"] = f"127.0.0.1:{port}"
        os.environ.update(settings)
        yield
    finally:
        process.terminate()
        process.wait()
        supervisor.forget(process)
        for name in settings:
            os.environ.pop(name, None)
        shutil.rmtree(folder, ignore_errors=True)


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


def _wait_for_head(process: subprocess.Popen[str]) -> None:
    started, said = threading.Event(), []

    def read() -> None:
        for line in process.stdout or ():
            said.append(line.rstrip())
            if "Ray runtime started" in line:
                started.set()

    threading.Thread(target=read, daemon=True).start()
    deadline = time.monotonic() + START_SECONDS
    while not started.wait(timeout=0.2):
        if process.poll() is not None or time.monotonic() > deadline:
            raise ConfigError("Ray did not start:\n" + "\n".join(said[-20:]))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
