"""The boundary of commands: exit codes, one message for a mistake, the status file that outlives DVC."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import errno, os, signal
from components.config.problems import DataError
from tasks.command import MachineError, run_command
def fine(): pass
def wrong(): raise DataError("rows.arrow: truncated")
def stopped(): os.kill(os.getpid(), signal.SIGTERM); signal.pause()
def lost(): raise MachineError("the worker was lost")
def full(): raise OSError(errno.ENOSPC, "full", "rows.arrow")
def closed(): raise OSError(errno.EACCES, "closed", "rows.arrow")
def refused(): raise OSError(errno.EACCES, "no file is to blame")
def broken(): raise ValueError("a bug")
run_command({})
"""
KEPT, ACCESS = "nothing that was whole is lost", "make it accessible or name another place"
FULL = f"rows.arrow: cannot be written: No space left on device; {KEPT}; free some space there and run the same command again"
CLOSED = f"rows.arrow: cannot be used: Permission denied; {KEPT}; {ACCESS} and run the same command again"


@pytest.mark.parametrize(
    ("main", "code", "status", "last_line"),
    [
        ("fine", 0, {"code": 0, "message": ""}, ""),
        ("wrong", 2, {"code": 2, "message": "rows.arrow: truncated"}, "error: rows.arrow: truncated"),
        ("stopped", 130, {"code": 130, "message": "interrupted"}, "interrupted; run the same command again"),
        ("lost", 1, {"code": 1, "message": "the worker was lost"}, "error: the worker was lost"),
        ("full", 2, {"code": 2, "message": FULL}, f"error: {FULL}"),
        ("closed", 2, {"code": 2, "message": CLOSED}, f"error: {CLOSED}"),
        ("refused", 1, None, "PermissionError: [Errno 13] no file is to blame"),
        ("broken", 1, None, "ValueError: a bug"),
    ],
)
def test_how_a_command_ends(main: str, code: int, status: dict | None, last_line: str, tmp_path: Path) -> None:
    file = tmp_path / "status.json"
    command = [sys.executable, "-c", SCRIPT.replace("{}", main)]
    done = subprocess.run(command, env={"STUDY_STATUS_FILE": str(file)}, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == code
    left = json.loads(file.read_text()) if file.exists() else None
    assert (left and {"code": left["code"], "message": left["message"]}) == status
    assert left is None or [phase["name"] for phase in left["phases"]] == ["command"]
    assert done.stderr.strip().splitlines()[-1:] == [] if not last_line else last_line in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_leaves_early_is_no_error(unbuffered: str) -> None:
    script = "from tasks.command import run_command; run_command(lambda: [print('line ' * 200) for _ in range(2000)] and None)"
    environment = {"PYTHONUNBUFFERED": unbuffered}
    command = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert command.stdout is not None
    assert command.stderr is not None
    command.stdout.readline()
    command.stdout.close()
    assert command.stderr.read() == b""
    assert command.wait() == 1


def test_signals_are_not_touched_by_import() -> None:
    before = signal.getsignal(signal.SIGTERM)
    import tasks.command  # noqa: F401

    assert signal.getsignal(signal.SIGTERM) is before


def test_the_progress_bar_outlives_a_clock_that_jumps(capsys: pytest.CaptureFixture[str]) -> None:
    from tasks.command import progress_bar

    readings = iter([1e9 - 3600.0, 1e9 + 1e6, 1e9 - 1e6, 0.0] + [1e9] * 20)
    with progress_bar(10, "train", "step") as bar:
        bar._time = lambda: next(readings)
        bar.mininterval = 0.0
        for _ in range(10):
            bar.update(1)
    assert "10.0/10.0" in capsys.readouterr().err
