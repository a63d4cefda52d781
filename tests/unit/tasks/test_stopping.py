"""Stopping training gently: a first signal asks, a second one or lost patience ends it; either way the command is interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import sys, time
from pathlib import Path
from components.training.interruption import StoppedError
from tasks.command import run_command
from tasks.stopping import gentle_stop
folder = Path(sys.argv[1])
def main():
    (folder / "stop").touch()  # left over by a killed run
    with gentle_stop(folder, float(sys.argv[2])):
        print("up", flush=True)
        while not (folder / "stop").exists():
            time.sleep(0.01)
        print("asked", flush=True)
        {}
run_command(main)
"""


def start(folder: Path, then: str, patience: float = 3600.0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SCRIPT.replace("{}", then), str(folder), str(patience)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("then", ["raise StoppedError('stopped after step 7 of 9')", "pass  # it was the last step"])
def test_a_signal_asks_and_the_command_ends_as_interrupted(tmp_path: Path, number: int, then: str) -> None:
    process = start(tmp_path, then)
    process.send_signal(number)
    output, errors = process.communicate(timeout=120)
    assert output == "asked\n"
    assert process.returncode == 130
    assert "stopping after this step" in errors
    assert not (tmp_path / "stop").exists()
    if "raise" in then:
        assert "stopped after step 7 of 9" in errors


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    process = start(tmp_path, "time.sleep(3600)")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 130


def test_a_step_that_takes_too_long_is_not_waited_for(tmp_path: Path) -> None:
    process = start(tmp_path, "time.sleep(3600)", patience=0.2)
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=120) == 130
    assert process.stderr is not None
    assert "or in 0.2 s (runtime.stop_seconds); once more to stop at once" in process.stderr.read()
