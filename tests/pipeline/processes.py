"""What still runs on the machine after a test."""

from __future__ import annotations

import os
import time
from pathlib import Path

PATTERNS = {
    "ray": ("gcs_server", "raylet", "ray::"),
    "study": ("tasks.train", "-m dvc", "tasks/supervisor.py"),
    "any": ("",),
}


def leftovers(kind: str, seconds: float = 20.0) -> list[str]:
    """Command lines of this test run's processes of that kind that are still there after some seconds of patience."""
    deadline = time.monotonic() + seconds
    while found := _running(PATTERNS[kind]):
        if time.monotonic() > deadline:
            return found
        time.sleep(0.5)
    return []


def _running(patterns: tuple[str, ...]) -> list[str]:
    mine = os.environ.get("PYTEST_RUN_MARK", "")
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            environment = (entry / "environ").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if any(pattern in line for pattern in patterns) and f"PYTEST_RUN_MARK={mine}" in environment:
            found.append(line)
    return found
