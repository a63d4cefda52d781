"""The supervisor against real processes: exit codes, signals, a dying parent, children that open their own session."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tasks import supervisor

SUPERVISOR = [sys.executable, "-m", "tasks.supervisor", "--"]


def is_alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text[text.rindex(")") + 2] != "Z"


def wait_until(condition, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def read_pid(path: Path) -> int:
    assert wait_until(lambda: path.exists() and path.read_text().strip())
    return int(path.read_text())


@pytest.mark.parametrize("code", [0, 3, 255])
def test_exit_code_is_passed_on(code: int) -> None:
    assert subprocess.run([*SUPERVISOR, sys.executable, "-c", f"raise SystemExit({code})"], check=False).returncode == code


def test_death_by_signal_is_128_plus_number() -> None:
    done = subprocess.run([*SUPERVISOR, "sh", "-c", "kill -KILL $$"], check=False)
    assert done.returncode == 128 + signal.SIGKILL


def test_command_that_does_not_exist_is_127() -> None:
    done = subprocess.run([*SUPERVISOR, "no-such-program-here"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (127, "error: cannot start no-such-program-here: No such file or directory\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_ends_command_and_detached_grandchild(number: int, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    supervised = subprocess.Popen([*SUPERVISOR, "sh", "-c", f"setsid sleep 3600 & echo $! > '{pid_file}'; wait"])
    grandchild = read_pid(pid_file)
    supervised.send_signal(number)
    assert supervised.wait(timeout=120) == 128 + signal.SIGTERM
    assert wait_until(lambda: not is_alive(grandchild))


def test_nothing_is_left_after_a_normal_end(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    script = f"setsid sleep 3600 & echo $! > '{pid_file}'"
    assert subprocess.run([*SUPERVISOR, "sh", "-c", script], check=False).returncode == 0
    assert not is_alive(read_pid(pid_file))


def test_killed_parent_takes_the_command_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    code = f"""
import subprocess, sys
subprocess.run({SUPERVISOR!r} + ["sh", "-c", "setsid sleep 3600 & echo $! > '{pid_file}'; wait"])
"""
    parent = subprocess.Popen([sys.executable, "-c", code])
    grandchild = read_pid(pid_file)
    parent.kill()
    parent.wait()
    assert wait_until(lambda: not is_alive(grandchild))


def test_deaf_command_is_killed_after_the_grace_time(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    deaf = f"trap '' TERM; echo $$ > '{pid_file}'; while :; do sleep 0.1; done"
    supervised = subprocess.Popen([*SUPERVISOR[:-1], "--grace", "0.3", "--", "sh", "-c", deaf])
    pid = read_pid(pid_file)
    supervised.terminate()
    assert supervised.wait(timeout=120) == 128 + signal.SIGKILL
    assert not is_alive(pid)


def test_a_second_signal_reaches_the_command_and_ends_the_wait(tmp_path: Path) -> None:
    pid_file, once = tmp_path / "pid", tmp_path / "once"
    gentle = f"trap 'test -e {once} && exit 9; touch {once}' TERM; echo $$ > '{pid_file}'; while :; do sleep 0.1; done"
    supervised = subprocess.Popen([*SUPERVISOR[:-1], "--grace", "3600", "--", "sh", "-c", gentle])
    pid = read_pid(pid_file)
    supervised.terminate()
    assert wait_until(once.exists)
    supervised.terminate()
    assert supervised.wait(timeout=120) == 9
    assert not is_alive(pid)


def test_stop_supervised_ends_what_was_started_and_refuses_more() -> None:
    code = """
import sys
from tasks.supervisor import start_supervised, stop_supervised
process = start_supervised(["sh", "-c", "echo up; sleep 3600"])
print(process.stdout.readline().strip())
stop_supervised()
print(process.poll())
try:
    start_supervised(["true"])
except RuntimeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines() == ["up", str(128 + signal.SIGTERM), "stopping: no new process is started"]


def test_stop_supervised_that_is_interrupted_hurries_them_on() -> None:
    code = """
import os, signal, threading
from tasks.supervisor import start_supervised, stop_supervised
signal.signal(signal.SIGINT, signal.default_int_handler)
script = "trap 'test $asked && exit 9; asked=1; echo asked' TERM; echo up; while :; do sleep 0.1; done"
process = start_supervised(["sh", "-c", script], grace_seconds=3600)
process.stdout.readline()
def interrupt():
    process.stdout.readline()
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
try:
    stop_supervised()
except KeyboardInterrupt:
    print(process.wait())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "9\n"


def test_own_pid_is_not_a_descendant() -> None:
    child = subprocess.Popen(["sleep", "600"])
    found = supervisor._descendants(os.getpid())
    child.kill()
    child.wait()
    assert child.pid in found
    assert os.getpid() not in found


def test_command_ends_before_what_it_started_in_sessions_of_its_own(tmp_path: Path) -> None:
    """As training ends its step while its Ray is still there."""
    pid_file, seen, ready = tmp_path / "pid", tmp_path / "seen", tmp_path / "ready"
    helper = f"setsid sh -c 'echo $$ > {pid_file}; exec sleep 3600' &"
    end = f"sleep 0.5; kill -0 $(cat {pid_file}) && touch {seen}; exit 7"
    command = f"{helper} trap '{end}' TERM; touch {ready}; while :; do sleep 0.1; done"
    supervised = subprocess.Popen([*SUPERVISOR, "sh", "-c", command])
    pid = read_pid(pid_file)
    assert wait_until(ready.exists)
    supervised.terminate()
    assert supervised.wait(timeout=120) == 7
    assert seen.exists()
    assert not is_alive(pid)


def test_what_serves_the_others_is_stopped_last() -> None:
    code = """
import os, subprocess
from tasks.supervisor import start_supervised, stop_supervised
head = start_supervised(["sh", "-c", "echo up; exec sleep 3600"], serves_others=True)
head.stdout.readline()
script = f"trap 'sleep 0.5; kill -0 {head.pid} && echo head is there; exit 3' TERM; echo up; while :; do sleep 0.1; done"
stage = start_supervised(["sh", "-c", script])
stage.stdout.readline()
stop_supervised()
print(stage.stdout.read().strip(), stage.returncode, head.returncode)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.splitlines()[-1:] == [f"head is there 3 {128 + signal.SIGTERM}"]
