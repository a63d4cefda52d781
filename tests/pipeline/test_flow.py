"""The Prefect flow on a tiny study: end to end, nothing to do, a stage that fails, an interrupt. No server is running."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.processes import leftovers
from tests.pipeline.workspace import Workspace

pytestmark = pytest.mark.slow


def finished_stages(output: str) -> set[str]:
    return {line.split("'")[1] for line in output.splitlines() if "Task run" in line and "Finished in state Completed()" in line}


def artifacts(root: Path) -> set[tuple[str, str]]:
    with sqlite3.connect(root / ".prefect" / "prefect.db") as store:
        return set(store.execute("select key, type from artifact").fetchall())


def test_flow_runs_everything_and_leaves_what_dvc_would(make_workspace: Callable[[str], Workspace]) -> None:
    workspace = make_workspace("flow")
    output = workspace.run("flows.full_study")
    stages = workspace.run("dvc", "stage", "list", "--name-only").split()
    assert finished_stages(output) == {*stages, "fill-mlflow"}
    assert "data and pipelines are up to date" in workspace.run("dvc", "status").lower()
    assert {("arms", "table"), ("report", "markdown")} <= artifacts(workspace.root)
    assert not leftovers("ray")
    again = workspace.run("flows.full_study")
    assert f"0 of {len(stages)} stages to run: nothing changed" in again


def test_failed_stage_is_retried_and_stops_only_what_needs_it(make_workspace: Callable[[str], Workspace]) -> None:
    workspace = make_workspace("failing")
    script = workspace.root / "tasks" / "evaluate.py"
    broken = 'if "twin-full" in sys.argv:\n    raise RuntimeError("broken on purpose")\n'
    script.write_text(script.read_text().replace("import argparse\n", f"import argparse\nimport sys\n{broken}", 1))
    output = workspace.run("flows.full_study", "--arms", "twin-full,tlm-uniform", "--stages", "evaluate", expected=1)
    assert output.count("> PATH") == 6 + 1  # two data stages, two arms twice, and one retry
    assert {"train@twin-full", "evaluate@tlm-uniform"} <= finished_stages(output)
    assert "failed: 1 of 6 stages failed" in output


def test_mistake_of_the_user_is_not_retried(make_workspace: Callable[[str], Workspace]) -> None:
    workspace = make_workspace("mistake")
    workspace.edit("corpus/*.txt", "nowhere/*.txt")
    output = workspace.run("flows.data", expected=1)
    assert output.count("> PATH") == 1
    assert "tokenize: data.source.paths: no file matches" in output


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
    assert process.stdout is not None
    for line in process.stdout:
        if "tasks.train" in line:
            return process
    pytest.fail("training never started")


def test_interrupt_leaves_no_process(make_workspace: Callable[[str], Workspace]) -> None:
    process = training_flow(make_workspace("interrupted"))
    os.kill(process.pid, signal.SIGINT)
    process.communicate(timeout=90)
    assert process.returncode != 0
    assert not leftovers("study")
    assert not leftovers("ray")


def test_kill_leaves_no_process_not_even_prefects_server(make_workspace: Callable[[str], Workspace]) -> None:
    process = training_flow(make_workspace("killed"))
    assert any("uvicorn" in line for line in leftovers("any", seconds=0.0))
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=90)
    assert not leftovers("any", seconds=40.0)
