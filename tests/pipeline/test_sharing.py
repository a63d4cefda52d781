"""Several DVCs on the same results: side by side in one checkout, and in a second checkout by way of a remote."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.processes import PATIENCE_SECONDS, read_until, wait_for
from tests.pipeline.workspace import Workspace

pytestmark = pytest.mark.slow

UP_TO_DATE = "data and pipelines are up to date"


def git(root: Path, *arguments: str) -> None:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *arguments]
    subprocess.run(command, cwd=root, check=True, capture_output=True)


def test_dvc_beside_the_flow_is_told_who_is_busy_and_the_record_stays_true(make_packed: Callable[[str], Workspace]) -> None:
    workspace = make_packed("beside")
    workspace.hold_training()
    flow = workspace.start("flows.full_study", "--arms", "twin-full", "--stages", "evaluate")
    wait_for(workspace.is_held, flow)
    beside = workspace.start("dvc", "repro", "evaluate@twin-full")
    told, _ = beside.communicate(timeout=PATIENCE_SECONDS)
    assert beside.returncode != 0
    assert re.search(r"is busy, it is being blocked by:\s+\(PID \d+\)", told), told
    workspace.release()
    said, _ = flow.communicate(timeout=PATIENCE_SECONDS)
    assert flow.returncode == 0, said
    assert UP_TO_DATE in workspace.run("dvc", "status", "evaluate@twin-full").lower()
    assert "Running stage" not in workspace.run("dvc", "repro", "evaluate@twin-full")


def test_flow_waits_for_a_dvc_that_was_first(make_packed: Callable[[str], Workspace]) -> None:
    workspace = make_packed("first")
    workspace.hold_training()
    first = workspace.start("dvc", "repro", "train@twin-full")
    wait_for(workspace.is_held, first)
    flow = workspace.start("flows.train_arm", "--arm", "twin-full")
    said = read_until(flow, "another DVC works on the same files; waiting for it: ")
    workspace.release()
    told, _ = first.communicate(timeout=PATIENCE_SECONDS)
    assert first.returncode == 0, told
    rest, _ = flow.communicate(timeout=PATIENCE_SECONDS)
    assert flow.returncode == 0, said + rest
    assert "train twin-full seed 42" not in said + rest, "it was not trained twice"
    assert UP_TO_DATE in workspace.run("dvc", "status", "train@twin-full").lower()


@pytest.fixture(scope="module")
def pushed(study: Workspace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout whose results lie in a DVC remote, and whose `dvc.lock` is committed."""
    root = tmp_path_factory.mktemp("pushed") / "first"
    shutil.copytree(study.root, root, ignore=shutil.ignore_patterns("runs", "mlruns", ".prefect", "config.local"))
    here = Workspace(root)
    here.run("dvc", "checkout", "--quiet", "--force")
    here.run("dvc", "remote", "add", "--default", "store", str(root.parent / "remote"))
    here.run("dvc", "push", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "results")
    return root


@pytest.mark.parametrize("command", [("dvc", "pull", "--quiet"), ("dvc", "repro", "--pull"), ("flows.full_study",)])
def test_second_checkout_takes_results_from_the_remote_instead_of_training(
    study: Workspace, pushed: Path, command: tuple[str, ...]
) -> None:
    second = pushed.parent / "-".join(("second", *command))
    subprocess.run(["git", "clone", "--quiet", str(pushed), str(second)], check=True)
    clone = Workspace(second)
    output = clone.run(*command)
    assert "train tlm-uniform" not in output
    assert "Running stage 'train" not in output
    assert UP_TO_DATE in clone.run("dvc", "status").lower()
    for arm in ("tlm-uniform", "hd-n2"):
        model = Path("artifacts", "models", arm, "seed-42", "model.safetensors")
        assert (second / model).read_bytes() == (study.root / model).read_bytes()
