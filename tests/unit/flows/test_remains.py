"""The watcher that outlives a flow: what the flow started ends with it, what others started does not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

FLOW = """
import subprocess, sys, time
from flows.remains import watch_this_process
watch_this_process(15.0)
child = subprocess.Popen(["sleep", "600"], start_new_session=True)
grandchild = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!; wait"], stdout=subprocess.PIPE, start_new_session=True, text=True)
print(child.pid, grandchild.pid, grandchild.stdout.readline(), flush=True)
time.sleep(600)
"""


def is_running(pid: int) -> bool:
    """A zombie is not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout.strip()
    return bool(state) and not state.startswith("Z")


def test_what_a_killed_flow_started_ends_and_a_stranger_goes_on() -> None:
    stranger = subprocess.Popen(["sleep", "600"])
    flow = subprocess.Popen([sys.executable, "-c", FLOW], stdout=subprocess.PIPE, text=True)
    assert flow.stdout is not None
    started = [int(word) for word in flow.stdout.readline().split()]
    assert len(started) == 3
    try:
        assert all(is_running(pid) for pid in started)
        os.kill(flow.pid, signal.SIGKILL)
        flow.wait()
        deadline = time.monotonic() + 60
        while any(is_running(pid) for pid in started) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not [pid for pid in started if is_running(pid)]
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
