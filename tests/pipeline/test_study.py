"""A whole tiny study through DVC and MLflow: end to end, unchanged, changed, killed and resumed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.processes import leftovers
from tests.pipeline.workspace import Workspace

pytestmark = pytest.mark.slow

ARMS = ("tlm-uniform", "mlms-norm-distill", "twin-full")
MODELS = (*ARMS, "hd-n2")


def weights(root: Path, arm: str) -> str:
    return hashlib.sha256((root / "artifacts" / "models" / arm / "seed-42" / "model.safetensors").read_bytes()).hexdigest()


def stages_run(output: str) -> list[str]:
    return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")]


def test_repro_leaves_every_result(study: Workspace) -> None:
    artifacts = study.root / "artifacts"
    for arm in MODELS:
        evaluation = json.loads((artifacts / "evaluation" / f"{arm}.json").read_text())
        assert [score["depth"] for score in evaluation["seeds"][0]["depths"]] == [1, 2, 3, 4]
    assert (artifacts / "report" / "index.html").exists()
    fingerprints = {json.loads((artifacts / "cost" / f"{arm}.json").read_text())["seeds"][0]["stream_fingerprint"] for arm in ARMS}
    assert len(fingerprints) == 1
    assert not leftovers("ray")


def test_second_repro_does_nothing_in_seconds(study: Workspace) -> None:
    started = time.monotonic()
    assert stages_run(study.run("dvc", "repro")) == []
    assert time.monotonic() - started < 30  # 2 s on a quiet machine


def test_learning_rate_of_one_arm_runs_that_arm_only(study: Workspace) -> None:
    plain = "objective: {kind: twin, exit: 3}"
    study.edit(plain, f"{plain}\n    training: {{lr: 1.0e-3}}")
    run = stages_run(study.run("dvc", "repro"))
    assert {"train@twin-full", "evaluate@twin-full", "report"} <= set(run)
    assert [stage for stage in run if "@" in stage and not stage.endswith("@twin-full")] == []
    assert not {"tokenize", "pack"} & set(run)
    study.edit("\n    training: {lr: 1.0e-3}", "")
    assert stages_run(study.run("dvc", "repro")) == []  # the earlier results come back from the cache


def test_where_it_runs_is_no_change(study: Workspace) -> None:
    study.edit("log_every_steps: 4", "log_every_steps: 8")
    assert stages_run(study.run("dvc", "repro")) == []
    study.edit("log_every_steps: 8", "log_every_steps: 4")


def test_deleted_results_come_back_without_training(study: Workspace) -> None:
    before = weights(study.root, "tlm-uniform")
    shutil.rmtree(study.root / "artifacts")
    assert stages_run(study.run("dvc", "repro")) == []
    assert weights(study.root, "tlm-uniform") == before
    assert (study.root / "artifacts" / "cost" / "tlm-uniform.json").exists()


def test_stage_killed_midway_ends_with_the_same_weights(make_workspace: Callable[[str], Workspace]) -> None:
    straight, killed = make_workspace("straight"), make_workspace("killed")
    for workspace in (straight, killed):
        workspace.edit("steps: 24", "steps: 400")  # the worker outlives its driver for a moment
        workspace.edit("checkpoint_every_steps: 8", "checkpoint_every_steps: 1")
    straight.run("dvc", "repro", "train@tlm-uniform")
    killed.run("dvc", "repro", "pack")
    process = killed.start("tasks.train", "--arm", "tlm-uniform")
    checkpoints = killed.root / "runs" / "tlm-uniform" / "seed-42"
    deadline = time.monotonic() + 120
    while not list(checkpoints.glob("*/step-*/complete")) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not leftovers("ray", seconds=40)
    steps = [int(path.parent.name.removeprefix("step-")) for path in checkpoints.glob("*/step-*/complete")]
    assert steps
    assert max(steps) < 400
    assert "goes on from step" in killed.run("dvc", "repro", "train@tlm-uniform")
    assert weights(killed.root, "tlm-uniform") == weights(straight.root, "tlm-uniform")


def test_mlflow_holds_curves_of_every_arm_and_uploading_twice_changes_nothing(study: Workspace) -> None:
    study.run("tasks.track")
    before = mlflow_runs(study.root)
    assert f"0 runs written, {len(MODELS)} unchanged" in study.run("tasks.track")
    assert mlflow_runs(study.root) == before
    arms = {tags["arm"]: run for run, tags in before.items() if "study.unit" in tags}
    assert set(arms) == set(MODELS)
    for arm, run in arms.items():
        stages = [tags["stage"] for tags in before.values() if tags.get("mlflow.parentRunId") == run]
        assert sorted(stages) == ["evaluate", "train"]
        depths = json.loads((study.root / "artifacts" / "evaluation" / f"{arm}.json").read_text())["seeds"][0]["depths"]
        assert points(study.root, run, "depth/nll") == [(score["depth"], score["nll_nats"]) for score in depths]
        assert points(study.root, run, "cost/core_hours")


def test_new_numbers_replace_a_run_instead_of_adding_a_twin(study: Workspace) -> None:
    study.run("tasks.track")
    study.edit("objective: {kind: twin, exit: 3}", "objective: {kind: twin, exit: 3}\n    training: {lr: 2.0e-3}")
    study.run("dvc", "repro")
    study.run("tasks.track")
    runs = {tags["arm"]: run for run, tags in mlflow_runs(study.root).items() if "study.unit" in tags}
    assert sorted(runs) == sorted(MODELS)
    assert json.loads(params(study.root, runs["twin-full"])["training.lr"]) == 0.002
    study.edit("\n    training: {lr: 2.0e-3}", "")
    study.run("dvc", "repro")


def mlflow_runs(root: Path) -> dict[str, dict[str, str]]:
    """Tags of every run that is not deleted."""
    with sqlite3.connect(root / "mlruns" / "mlflow.db") as store:
        rows = store.execute(
            "select t.run_uuid, t.key, t.value from tags t join runs r using (run_uuid) where r.lifecycle_stage = 'active'"
        ).fetchall()
    runs: dict[str, dict[str, str]] = {}
    for run, key, value in rows:
        runs.setdefault(run, {})[key] = value
    return runs


def points(root: Path, run: str, metric: str) -> list[tuple[int, float]]:
    with sqlite3.connect(root / "mlruns" / "mlflow.db") as store:
        query = "select step, value from metrics where run_uuid = ? and key = ? order by step"
        return store.execute(query, (run, metric)).fetchall()


def params(root: Path, run: str) -> dict[str, str]:
    with sqlite3.connect(root / "mlruns" / "mlflow.db") as store:
        return dict(store.execute("select key, value from params where run_uuid = ?", (run,)).fetchall())
