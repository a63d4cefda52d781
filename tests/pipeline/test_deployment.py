"""A Prefect server, `python -m flows.serve`, and a run that is asked for: what `make server` and `make serve` start."""

from __future__ import annotations

import os
import signal
import socket
import urllib.error
import urllib.request
from collections.abc import Callable

import pytest

from tests.pipeline.processes import PATIENCE_SECONDS, leftovers, read_until, wait_for
from tests.pipeline.workspace import Workspace

pytestmark = pytest.mark.slow


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def test_a_served_flow_runs_when_the_server_is_asked(make_packed: Callable[[str], Workspace]) -> None:
    workspace, port = make_packed("served"), free_port()
    settings = {"PREFECT_API_URL": f"http://127.0.0.1:{port}/api"}
    server = workspace.start("prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port))
    wait_for(lambda: answers(f"{settings['PREFECT_API_URL']}/health"), server)
    serving = workspace.start("flows.serve", settings=settings)
    read_until(serving, "being served")
    output = workspace.run("prefect", "deployment", "run", "data/local", "--watch", settings=settings)
    assert "Completed" in output
    said = "".join(read_until(serving, words) for words in ("0 of 2 stages to run: nothing changed", "Completed()"))
    assert "Beginning flow run" in said
    for process in (serving, server):
        os.kill(process.pid, signal.SIGINT)
        process.communicate(timeout=PATIENCE_SECONDS)
    assert not leftovers("any")
