"""Ends what a flow leaves running when it is killed: above all Prefect's temporary server, which no supervisor stands over.

Every process that the flow starts inherits a mark in its environment. A watcher, in a session of its own, reads a pipe that the
flow holds open, and so learns of its end however it came. After one that ended by itself it finds nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import IO

MARK = "STUDY_FLOW_MARK"
SUPERVISOR_SECONDS = 15.0  # that a supervisor takes to end a stage, beyond what the stage has to end by itself

_held: list[IO[bytes] | None] = []  # open as long as this process lives


def watch_this_process(stop_seconds: float) -> None:
    """Starts the watcher, and marks what this process starts from now on.

    Args:
        stop_seconds: what a stage has to end by itself.
    """
    os.environ.pop(MARK, None)
    mark = f"{MARK}={uuid.uuid4().hex}"
    command = [sys.executable, "-P", str(Path(__file__)), mark, str(stop_seconds + SUPERVISOR_SECONDS)]
    null = subprocess.DEVNULL
    watcher = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True)
    _held.append(watcher.stdin)
    os.environ[MARK] = mark.partition("=")[2]


def end_marked(mark: str, patience_seconds: float) -> None:
    """SIGTERM to every process with the mark, but for those whose parent has it: that one sees to them. SIGKILL in the end."""
    told: set[int] = set()
    deadline = time.monotonic() + patience_seconds
    while (marked := _marked(mark)) and time.monotonic() < deadline + patience_seconds:
        is_late = time.monotonic() > deadline
        for pid, parent in marked.items():
            if is_late or (parent not in marked and pid not in told):
                told.add(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL if is_late else signal.SIGTERM)
        time.sleep(0.2)


def _marked(mark: str) -> dict[int, int]:
    """The living processes with the mark in their environment, and the parent of each."""
    if not Path("/proc/self/environ").exists():  # macOS: `e` shows the environment behind the command
        shown = subprocess.run(["ps", "axeww", "-o", "pid=,ppid=,command="], capture_output=True, text=True, check=False).stdout
        lines = [line.split(maxsplit=2) for line in shown.splitlines()]
        own = os.getpid()  # has the mark as an argument
        return {int(pid): int(parent) for pid, parent, text in lines if mark in text and int(pid) != own}
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                text = (entry / "stat").read_text(errors="replace")
                found[int(entry.name)] = int(text[text.rindex(")") + 2 :].split()[1])
    return found


if __name__ == "__main__":
    sys.stdin.buffer.read()  # until the flow is gone
    end_marked(sys.argv[1], float(sys.argv[2]))
