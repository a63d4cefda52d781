"""A whole study under real kills: of the training worker, the stage or the flow, at random moments, until twenty have died.

After each few kills the study is left alone until it ends; its weights are those of a study that nobody disturbed.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable

import pytest

from tests.pipeline.processes import is_shell, marked_processes
from tests.pipeline.workspace import Workspace

pytestmark = pytest.mark.chaos

ARM = "tlm-uniform"
KILLS = 20
TARGETS = {"worker": ("ray::", "_job_in_task"), "stage": ("-m tasks.train",)}


def processes(target: str) -> list[int]:
    """Pids of this test's processes of that kind."""
    lines = marked_processes()
    return [pid for pid, line in lines.items() if all(part in line for part in TARGETS[target]) and not is_shell(line)]


def weights(workspace: Workspace) -> str:
    file = workspace.root / "artifacts" / "models" / ARM / "seed-42" / "model.safetensors"
    return hashlib.sha256(file.read_bytes()).hexdigest()


def forget(workspace: Workspace) -> None:
    """Back to a study that was never run."""
    for part in ("artifacts", "runs", ".dvc/cache", ".dvc/tmp"):
        shutil.rmtree(workspace.root / part, ignore_errors=True)
    (workspace.root / "dvc.lock").unlink(missing_ok=True)


class Rehearsal:
    """One study that is killed some times and started again until it has ended."""

    def __init__(self, workspace: Workspace, moments: random.Random) -> None:
        self.workspace, self.moments = workspace, moments
        self.killed = Counter[str]()
        self.log = workspace.root.parent / "flow.log"

    def run(self, kills: int) -> None:
        """Ends with the study finished."""
        left = kills
        while True:
            flow = self._start()
            while left and flow.poll() is None:
                left -= self._kill_one(flow)
            if not left or flow.poll() is not None:
                flow.wait(timeout=900)
                if flow.returncode == 0:
                    return

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "flows.train_arm", "--arm", ARM],
            cwd=self.workspace.root, env=self.workspace.environment(), stdout=self.log.open("ab"), stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip

    def _kill_one(self, flow: subprocess.Popen[bytes]) -> bool:
        """Waits for a process of a kind drawn at random, then for a random time, and kills it; False when the flow ended first."""
        target = self.moments.choice(["worker", "stage", "flow"])
        pause = self.moments.uniform(0, 40) if target == "flow" else self.moments.uniform(0, 6)
        while flow.poll() is None:
            pids = [flow.pid] if target == "flow" else processes(target)
            if pids:
                time.sleep(pause)
                victims = [flow.pid] if target == "flow" else processes(target)
                if flow.poll() is None and victims:
                    os.kill(self.moments.choice(sorted(victims)), signal.SIGKILL)
                    self.killed[target] += 1
                    if target == "flow":
                        flow.wait()
                    return True
            time.sleep(0.2)
        return False


def test_twenty_kills_leave_the_weights_of_an_undisturbed_study(
    make_workspace: Callable[[str], Workspace], moments: random.Random
) -> None:
    straight, killed = make_workspace("straight"), make_workspace("killed")
    for workspace in (straight, killed):
        workspace.edit("steps: 24", "steps: 600")
        workspace.edit("checkpoint_every_steps: 8", "checkpoint_every_steps: 3")
    straight.run("dvc", "repro", f"train@{ARM}", seconds=1200)
    rehearsal = Rehearsal(killed, moments)
    while rehearsal.killed.total() < KILLS:
        forget(killed)
        rehearsal.run(min(moments.randrange(3, 7), KILLS - rehearsal.killed.total()))
        assert weights(killed) == weights(straight)
        print(f"{rehearsal.killed.total()} kills so far: {dict(rehearsal.killed)}", flush=True)
    assert "up to date" in killed.run("dvc", "status", f"train@{ARM}")
