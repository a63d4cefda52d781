"""The Prefect flow on a tiny study: end to end, nothing to do, stages that fail, an interrupt, a kill. No server is running."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.processes import PATIENCE_SECONDS, leftovers, read_until
from tests.pipeline.workspace import Workspace

pytestmark = pytest.mark.slow


def finished_stages(output: str) -> set[str]:
    return {line.split("'")[1] for line in output.splitlines() if "Task run" in line and "Finished in state Completed()" in line}


def artifacts(root: Path) -> set[tuple[str, str]]:
    with sqlite3.connect(root / ".prefect" / "prefect.db") as store:
        return set(store.execute("select key, type from artifact").fetchall())


def tags_of(task_run: str, root: Path) -> set[str]:
    with sqlite3.connect(root / ".prefect" / "prefect.db") as store:
        return {
            tag for (tags,) in store.execute("select tags from task_run where name = ?", [task_run]) for tag in json.loads(tags)
        }


def test_flow_runs_everything_and_leaves_what_dvc_would(make_workspace: Callable[[str], Workspace]) -> None:
    workspace = make_workspace("flow")
    output = workspace.run("flows.full_study")
    stages = workspace.run("dvc", "stage", "list", "--name-only").split()
    assert finished_stages(output) == {*stages, "fill-mlflow"}
    assert "data and pipelines are up to date" in workspace.run("dvc", "status").lower()
    kept = {("arms", "table"), ("report", "markdown"), ("mlflow-runs", "markdown"), ("time-by-stage", "table")}
    assert kept <= artifacts(workspace.root)
    assert "image" in {kind for _, kind in artifacts(workspace.root)}
    assert {"train", "twin-full"} <= tags_of("train@twin-full", workspace.root)
    assert not leftovers("ray")
    again = workspace.run("flows.full_study")
    assert f"0 of {len(stages)} stages to run: nothing changed" in again


BROKEN = """
import sys
if "tlm-uniform" in sys.argv:
    raise RuntimeError("broken on purpose")
"""
NOWHERE = "  arms: {twin-full: {ray_resources: {middle: 1}}}\n"


def test_crash_is_retried_a_mistake_is_not_and_each_stops_only_what_needs_it(make_packed: Callable[[str], Workspace]) -> None:
    workspace = make_packed("failing")
    workspace.insert("tasks/evaluate.py", "from __future__ import annotations", BROKEN)
    workspace.edit("  experiment: tiny\n", f"  experiment: tiny\n{NOWHERE}")
    arms = "tlm-uniform,twin-full,mlms-norm-distill"
    output = workspace.run("flows.full_study", "--arms", arms, "--stages", "evaluate", expected=1)
    started = Counter(line.rsplit(" -m tasks.")[-1] for line in output.splitlines() if "> PATH" in line)
    assert started == {
        "train --arm tlm-uniform": 1,
        "evaluate --arm tlm-uniform": 2,
        "train --arm twin-full": 1,
        "train --arm mlms-norm-distill": 1,
        "evaluate --arm mlms-norm-distill": 1,
    }
    assert finished_stages(output) == {"train@tlm-uniform", "train@mlms-norm-distill", "evaluate@mlms-norm-distill", "fill-mlflow"}
    assert "failed: 3 of 6 stages failed" in output
    assert "train@twin-full: params.yaml: runtime.workers: 1 workers x 1 threads + 1 middle do not fit on the Ray cluster" in output
    assert "evaluate@twin-full: not run: a stage it needs failed" in output


def test_wrong_parameter_is_said_before_prefect_starts(make_workspace: Callable[[str], Workspace]) -> None:
    workspace = make_workspace("wrong")
    workspace.edit("seq_len:", "seqlen:")
    output = workspace.run("flows.train_arm", "--arm", "twin-full", expected=2)
    assert "data.seqlen: unknown key; did you mean seq_len?" in output
    assert "temporary server" not in output


def training_flow(workspace: Workspace) -> subprocess.Popen[str]:
    """A flow in the midst of a training that would not end."""
    workspace.edit("steps: 24", "steps: 1000000")
    process = workspace.start("flows.train_arm", "--arm", "tlm-uniform")
    read_until(process, "tasks.train")
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])  # Ctrl-C, and what a run gets that is cancelled in Prefect
def test_interrupt_leaves_no_process(make_packed: Callable[[str], Workspace], number: signal.Signals) -> None:
    process = training_flow(make_packed("interrupted"))
    os.kill(process.pid, number)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode != 0
    assert not leftovers("study")
    assert not leftovers("ray")


def test_kill_leaves_no_process_not_even_prefects_server(make_packed: Callable[[str], Workspace]) -> None:
    process = training_flow(make_packed("killed"))
    assert any("uvicorn" in line for line in leftovers("any", seconds=0.0))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_SECONDS)
    assert not leftovers("any")
