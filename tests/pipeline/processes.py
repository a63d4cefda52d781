"""The processes of a test: what still runs after it, and how to wait for one without a guess at the time."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE_SECONDS = 600.0  # that something happens at all, on however busy a machine
PATTERNS = {
    "ray": ("gcs_server", "raylet", "ray::"),
    "study": ("tasks.train", "-m dvc", "tasks/supervisor.py"),
    "any": ("",),
}


def leftovers(kind: str, seconds: float = 120.0) -> list[str]:
    """Command lines of this test's processes of that kind that are still there after some seconds of patience."""
    deadline = time.monotonic() + seconds
    while found := [line for line in marked_processes().values() if any(pattern in line for pattern in PATTERNS[kind])]:
        if time.monotonic() > deadline:
            return found
        time.sleep(0.5)
    return []


def marked_processes() -> dict[int, str]:
    """Pids and command lines of the processes that this test started."""
    mark = f"PYTEST_RUN_MARK={os.environ.get('PYTEST_RUN_MARK', 'none')}".encode()

    def has_mark(pid: int) -> bool:
        process = Path("/proc", str(pid))
        parent = (process / "stat").read_text(errors="replace").rsplit(")", 1)[1].split()[1]
        # a Ray worker writes its title over its environment; its parent's is whole
        return any(mark in (folder / "environ").read_bytes() for folder in (process, Path("/proc", parent)))

    return _processes(has_mark)


def _processes(is_wanted: Callable[[int], bool]) -> dict[int, str]:
    """Pids and command lines of the machine's processes that are wanted; one that ends meanwhile, or is another user's, is not."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if is_wanted(int(entry.name)):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return found


def listening() -> set[str]:
    """The addresses at which this test's processes take connections."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A":
                sockets[f"socket:[{rest[5]}]"] = local.partition(":")[0]
    found = set()
    for pid in marked_processes():
        for handle in Path("/proc", str(pid), "fd").glob("*"):
            with contextlib.suppress(OSError):
                found.add(sockets.get(os.readlink(handle), ""))
    return {_address(text) for text in found - {""}}


def _address(text: str) -> str:
    """`0100007F` is 127.0.0.1: words of four bytes, the lowest first."""
    packed = b"".join(bytes.fromhex(text[start : start + 8])[::-1] for start in range(0, len(text), 8))
    address = ipaddress.ip_address(packed)
    return str(getattr(address, "ipv4_mapped", None) or address)


def end_marked() -> None:
    """Kills what a failed test left: it would slow all others down."""
    for pid in marked_processes():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def wait_for(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Waits until the condition holds; fails with what the process said when it ends before."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            _kill_session(process)
            raise AssertionError(process.communicate()[0])
        time.sleep(0.02)


def read_until(process: subprocess.Popen[str], words: str) -> str:
    """What the process says up to the line with the words; fails when it ends without them, or takes too long."""
    assert process.stdout is not None
    said = []
    timer = threading.Timer(PATIENCE_SECONDS, _kill_session, [process])
    timer.start()
    try:
        for line in process.stdout:
            said.append(line)
            if words in line:
                return "".join(said)
    finally:
        timer.cancel()
    raise AssertionError("".join(said))


def in_session(process: subprocess.Popen[str], words: str) -> list[int]:
    """Pids of the session that the process leads with the words in their command line; no shell that only started one."""
    lines = _processes(lambda pid: os.getsid(pid) == process.pid)
    return [pid for pid, line in lines.items() if words in line and not is_shell(line)]


def is_shell(line: str) -> bool:
    """Whether the command line is a shell's: one that started another command."""
    return line.partition(" ")[0].endswith("sh")


def _kill_session(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
