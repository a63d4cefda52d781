"""`python -m flows.serve` without a server to serve."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from tests.toys import ROOT


def test_no_server_is_one_line_with_the_remedy() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/api"
        command, environment = [sys.executable, "-m", "flows.serve"], {**os.environ, "PREFECT_API_URL": address}
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"error: PREFECT_API_URL {address}: no server answers; start one with `make server`, or set another"
    )
    assert "Traceback" not in done.stdout + done.stderr
