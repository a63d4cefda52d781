"""A stage that is asked to stop, and one that is killed while it scores: nothing that was done is done again."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.chaos.test_study_kills import ARM, processes, weights
from tests.pipeline.workspace import Workspace

pytestmark = pytest.mark.slow


def newest_step(workspace: Workspace) -> int:
    return max(int(path.parent.name.removeprefix("step-")) for path in workspace.root.glob("runs/*/*/*/step-*/complete"))


def wait_for_checkpoint(workspace: Workspace, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while not list(workspace.root.glob("runs/*/*/*/step-*/complete")):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_stage_that_is_asked_to_stop_goes_on_from_the_very_step(
    make_workspace: Callable[[str], Workspace], run_mark: str, tmp_path: Path
) -> None:
    straight, stopped = make_workspace("straight"), make_workspace("stopped")
    for workspace in (straight, stopped):
        workspace.edit("steps: 24", "steps: 1500")
        workspace.edit("checkpoint_every_steps: 8", "checkpoint_every_steps: 100")
    straight.run("dvc", "repro", f"train@{ARM}", seconds=900)
    stopped.run("dvc", "repro", "pack")
    status = tmp_path / "status.json"
    process = stopped.start("tasks.train", "--arm", ARM, settings={"STUDY_STATUS_FILE": str(status)})
    wait_for_checkpoint(stopped, process)
    os.kill(process.pid, signal.SIGTERM)
    output = process.communicate(timeout=120)[0]
    assert process.returncode == 130, output
    left = json.loads(status.read_text())
    assert (left["code"], left["message"]) == (130, "interrupted")
    step = int(re.search(r"stopped after step (\d+) of 1500, as asked", output).group(1))
    assert newest_step(stopped) == step
    assert f"goes on from step {step}" in stopped.run("dvc", "repro", f"train@{ARM}", seconds=900)
    assert weights(stopped) == weights(straight)
    assert not list(stopped.root.glob("runs/*/*/stop"))


def test_an_evaluation_that_is_killed_costs_no_training(make_workspace: Callable[[str], Workspace], run_mark: str) -> None:
    workspace = make_workspace("scored")
    process = workspace.start("dvc", "repro", f"evaluate@{ARM}")
    deadline = time.monotonic() + 300
    while not (victims := processes("evaluation", run_mark)):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    trained = weights(workspace)
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=120)
    assert process.returncode != 0
    assert weights(workspace) == trained
    output = workspace.run("dvc", "repro", f"evaluate@{ARM}")
    assert f"Running stage 'train@{ARM}'" not in output
    assert f"Running stage 'evaluate@{ARM}'" in output
    assert weights(workspace) == trained
