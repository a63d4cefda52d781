"""Runs a command so that nothing of it can be left behind: `python -m tasks.supervisor [--parent PID] -- COMMAND...`

Stands between the flow and every process it starts (dvc, a Ray head). The command and all its descendants are ended when the parent
dies, when the supervisor gets SIGTERM or SIGINT, and when the command itself is over; the exit code is passed on. A second signal
leaves no time to end gently. Reader beware: killing a process group is not enough: Ray's processes open groups of their own. On
Linux the supervisor adopts orphans (`PR_SET_CHILD_SUBREAPER`) and so finds every descendant; elsewhere only the command's own group
is ended.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

POLL_SECONDS = 0.2
GRACE_SECONDS = 20.0  # between SIGTERM and SIGKILL, for a command that is given no other
HELPER_SECONDS = 5.0  # the same for what is left of it afterwards; a Ray needs about 3
PR_SET_CHILD_SUBREAPER = 36

_stopping = threading.Event()
_lock = threading.Lock()


@dataclass(frozen=True)
class _Child:
    serves_others: bool
    grace_seconds: float


_children: dict[subprocess.Popen[str], _Child] = {}


class StoppingError(RuntimeError):
    """Something was to be started after everything was told to stop."""


def start_supervised(
    command: Sequence[str],
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    serves_others: bool = False,
    grace_seconds: float = GRACE_SECONDS,
) -> subprocess.Popen[str]:
    """The command under a supervisor that watches this process; stdout carries both its output streams, as text.

    Args:
        serves_others: the other commands work on it (a Ray head): it is stopped after them.
        grace_seconds: what it has to end by itself once it is told to.

    Raises:
        StoppingError: after `stop_supervised`: this process is on its way out.
    """
    root = Path(__file__).resolve().parents[1]
    # -P: without it the folder of the script would lead sys.path, and tasks/select.py would stand in for Python's own module
    wrapped = [sys.executable, "-P", str(root / "tasks" / "supervisor.py"), "--parent", str(os.getpid())]
    wrapped += ["--grace", str(grace_seconds), "--", *command]
    with _lock:
        if _stopping.is_set():
            raise StoppingError("stopping: no new process is started")
        process = subprocess.Popen(
            wrapped,
            env=None if env is None else dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        _children[process] = _Child(serves_others, grace_seconds)
    return process


def forget(process: subprocess.Popen[str]) -> None:
    """Takes a process that has ended off the list of those to stop."""
    with _lock:
        _children.pop(process, None)


def stop_supervised() -> None:
    """Ends everything that `start_supervised` started and that still runs, and refuses new starts.

    Interrupted while it waits, it passes that on: nothing has time to end gently any more.
    """
    with _lock:
        _stopping.set()
        running = {process: child for process, child in _children.items() if process.poll() is None}
    try:
        for turn in (False, True):
            ending = {process: child.grace_seconds for process, child in running.items() if child.serves_others == turn}
            for process in ending:
                process.terminate()
            deadline = time.monotonic() + max(ending.values(), default=0.0) + 2 * HELPER_SECONDS
            for process in ending:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=max(0.1, deadline - time.monotonic()))
    except BaseException:
        for process in running:
            process.terminate()
        raise


def supervise(command: Sequence[str], parent: int, grace_seconds: float = GRACE_SECONDS) -> int:
    """Runs the command until it ends, `parent` is gone or a signal asks to stop; then ends what is left of it.

    Returns:
        The command's exit code; 128 + the signal's number when a signal ended it; 127 when it cannot be started.
    """
    stop = _StopRequest()
    _adopt_orphans()
    try:
        child = subprocess.Popen(command, start_new_session=True)
    except OSError as error:
        print(f"error: cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    while child.poll() is None and not stop.times and os.getppid() == parent:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(timeout=POLL_SECONDS)
    _end_everything(child, stop, grace_seconds)
    code = child.returncode
    return 128 - code if code < 0 else code


class _StopRequest:
    """Counts SIGTERM, SIGINT and SIGHUP."""

    def __init__(self) -> None:
        self.times = 0
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.times += 1


def _end_everything(child: subprocess.Popen[bytes], stop: _StopRequest, grace_seconds: float) -> None:
    """SIGTERM to the command's own group, then to all that is left (a Ray that it works on); SIGKILL after the grace time."""
    deadline = time.monotonic() + grace_seconds
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGTERM)
    while _reap(child) and _has_group(child.pid) and time.monotonic() < deadline and stop.times < 2:
        time.sleep(0.05)
    _signal_all(child, signal.SIGTERM)
    if stop.times > 1:
        deadline = time.monotonic()
    deadline = max(deadline, time.monotonic() + HELPER_SECONDS)
    while _reap(child):
        if time.monotonic() > deadline:
            _signal_all(child, signal.SIGKILL)
        time.sleep(0.05)
    child.wait()


def _has_group(group: int) -> bool:
    """Does any descendant that lives belong to the process group?"""
    for pid in _descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            if os.getpgid(pid) == group:
                return True
    return False


def _reap(child: subprocess.Popen[bytes]) -> bool:
    """Collects the dead among the descendants; is any of them still alive?"""
    child.poll()
    descendants = _descendants(os.getpid())
    for pid in descendants:
        if pid != child.pid:
            with contextlib.suppress(ChildProcessError, OSError):
                os.waitpid(pid, os.WNOHANG)
    return child.returncode is None or bool(_descendants(os.getpid()))


def _signal_all(child: subprocess.Popen[bytes], number: int) -> None:
    descendants = _descendants(os.getpid())
    if child.returncode is None and child.pid not in descendants:  # a system without /proc
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, number)
    for pid in descendants:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def _descendants(root: int) -> list[int]:
    """All living processes below `root`, from /proc; empty where there is none."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            text = entry.read_text(errors="replace")
            state, parent = text[text.rindex(")") + 2 :].split()[:2]
            if state != "Z" or int(parent) == root:
                parents[int(entry.parent.name)] = int(parent)
    found, level = [], [root]
    while level:
        level = [pid for pid, parent in parents.items() if parent in level]
        found += level
    return found


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tasks.supervisor", description=__doc__.split("\n")[0])
    parser.add_argument(
        "--parent", type=int, default=os.getppid(), help="process whose death ends the command (default: the parent)"
    )
    parser.add_argument("--grace", type=float, default=GRACE_SECONDS, help="seconds from SIGTERM to SIGKILL (default: %(default)g)")
    parser.add_argument("command", nargs="+", help="the command, after --")
    arguments = parser.parse_args()
    sys.exit(supervise(arguments.command, arguments.parent, arguments.grace))


if __name__ == "__main__":
    main()
