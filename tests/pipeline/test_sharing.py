"""Several DVCs on the same results: side by side in one checkout, and in a second checkout by way of a remote."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.workspace import Workspace

pytestmark = pytest.mark.slow

UP_TO_DATE = "data and pipelines are up to date"


def git(root: Path, *arguments: str) -> None:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    subprocess.run(command, cwd=root, check=True, capture_output=True)


def test_dvc_beside_the_flow_waits_or_is_told_who_is_busy_and_the_record_stays_true(
    make_workspace: Callable[[str], Workspace],
) -> None:
    workspace = make_workspace("beside")
    workspace.edit("steps: 24", "steps: 600")
    flow = workspace.start("flows.full_study", "--arms", "twin-full", "--stages", "evaluate")
    assert flow.stdout is not None
    said = []
    for line in flow.stdout:
        said.append(line)
        if "-m tasks.train" in line:
            break
    beside = workspace.start("dvc", "repro", "evaluate@twin-full")
    told, _ = beside.communicate(timeout=400)
    rest, _ = flow.communicate(timeout=400)
    assert flow.returncode == 0, "".join(said) + rest
    assert beside.returncode == 0 or re.search(r"is busy, it is being blocked by:\s+\(PID \d+\)", told), told
    assert UP_TO_DATE in workspace.run("dvc", "status", "evaluate@twin-full").lower()
    assert "Running stage" not in workspace.run("dvc", "repro", "evaluate@twin-full")


def test_flow_waits_for_a_dvc_that_was_first(make_workspace: Callable[[str], Workspace]) -> None:
    workspace = make_workspace("first")
    workspace.edit("steps: 24", "steps: 600")
    workspace.run("dvc", "repro", "pack")
    first = workspace.start("dvc", "repro", "train@twin-full")
    assert first.stdout is not None
    for line in first.stdout:
        if "tasks.train" in line:
            break
    output = workspace.run("flows.train_arm", "--arm", "twin-full")
    told, _ = first.communicate(timeout=400)
    assert first.returncode == 0, told
    assert "another DVC works on the same files; waiting for it: " in output
    assert "train twin-full seed 42" not in output, "it was not trained twice"
    assert UP_TO_DATE in workspace.run("dvc", "status", "train@twin-full").lower()


@pytest.mark.parametrize("command", [("dvc", "pull", "--quiet"), ("dvc", "repro", "--pull"), ("flows.full_study",)])
def test_second_checkout_takes_results_from_the_remote_instead_of_training(
    study: Workspace, tmp_path: Path, command: tuple[str, ...]
) -> None:
    remote = tmp_path / "remote"
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(study.root, first, ignore=shutil.ignore_patterns("runs", "mlruns", ".prefect", "config.local"))
    here = Workspace(first)
    here.run("dvc", "checkout", "--quiet", "--force")
    here.run("dvc", "remote", "add", "--default", "store", str(remote))
    here.run("dvc", "push", "--quiet")
    git(first, "add", "--all")
    git(first, "commit", "--quiet", "--message", "results")
    subprocess.run(["git", "clone", "--quiet", str(first), str(second)], check=True)
    clone = Workspace(second)
    output = clone.run(*command)
    assert "train tlm-uniform" not in output
    assert "Running stage 'train" not in output
    assert UP_TO_DATE in clone.run("dvc", "status").lower()
    for arm in ("tlm-uniform", "hd-n2"):
        model = Path("artifacts", "models", arm, "seed-42", "model.safetensors")
        assert (second / model).read_bytes() == (study.root / model).read_bytes()
