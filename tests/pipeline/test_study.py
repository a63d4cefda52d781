"""A whole tiny study through DVC and MLflow: end to end, unchanged, changed, stopped, killed and resumed."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.pipeline.processes import PATIENCE_SECONDS, in_session, leftovers, wait_for
from tests.pipeline.workspace import Workspace

pytestmark = pytest.mark.slow

ARMS = ("tlm-uniform", "mlms-norm-distill", "twin-full")
MODELS = (*ARMS, "hd-n2")
TWIN = "objective: {kind: twin, exit: 3}"


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


def test_second_repro_does_nothing(study: Workspace) -> None:
    assert stages_run(study.run("dvc", "repro")) == []


def test_where_it_runs_is_no_change(study: Workspace) -> None:
    with study.edited("log_every_steps: 4", "log_every_steps: 8"):
        assert stages_run(study.run("dvc", "repro")) == []


def test_deleted_results_come_back_without_training(study: Workspace) -> None:
    before = weights(study.root, "tlm-uniform")
    shutil.rmtree(study.root / "artifacts")
    assert stages_run(study.run("dvc", "repro")) == []
    assert weights(study.root, "tlm-uniform") == before
    assert (study.root / "artifacts" / "cost" / "tlm-uniform.json").exists()


@dataclass(frozen=True)
class Change:
    """What came of another learning rate for twin-full: the stages run until its evaluation was killed, those of a second
    `dvc repro`, the weights after each, the model's runs in MLflow with the rate each names, and the stages of the way back.
    """

    first: list[str]
    second: list[str]
    weights: tuple[str, str]
    rates: dict[str, list[float]]
    back: list[str]


@pytest.fixture(scope="module")
def change(study: Workspace) -> Change:
    study.run("tasks.track")
    with study.edited(TWIN, f"{TWIN}\n    training: {{lr: 1.0e-3}}"):
        process = study.start("dvc", "repro")
        wait_for(lambda: in_session(process, "-m tasks.evaluate"), process)
        trained = weights(study.root, "twin-full")
        for pid in in_session(process, "-m tasks.evaluate"):
            os.kill(pid, signal.SIGKILL)
        first, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode != 0, first
        second = study.run("dvc", "repro")
        study.run("tasks.track")
        rates: dict[str, list[float]] = {}
        for run, tags in mlflow_runs(study.root).items():
            if "study.unit" in tags:
                rates.setdefault(tags["arm"], []).append(float(params(study.root, run)["training.lr"]))
        after = weights(study.root, "twin-full")
    back = study.run("dvc", "repro")
    return Change(stages_run(first), stages_run(second), (trained, after), rates, stages_run(back))


def test_learning_rate_of_one_arm_runs_that_arm_only(change: Change) -> None:
    run = {*change.first, *change.second}
    assert {"train@twin-full", "evaluate@twin-full", "report"} <= run
    assert [stage for stage in run if "@" in stage and not stage.endswith("@twin-full")] == []
    assert not {"tokenize", "pack"} & run
    assert change.back == []  # the earlier results come back from the cache


def test_an_evaluation_that_is_killed_costs_no_training(change: Change) -> None:
    assert "train@twin-full" in change.first
    assert "train@twin-full" not in change.second
    assert "evaluate@twin-full" in change.first
    assert "evaluate@twin-full" in change.second
    assert change.weights[0] == change.weights[1]


def test_new_numbers_replace_a_run_instead_of_adding_a_twin(change: Change) -> None:
    assert change.rates == {arm: [0.001 if arm == "twin-full" else 0.0015] for arm in MODELS}


def test_stage_killed_midway_ends_with_the_same_weights(make_packed: Callable[[str], Workspace], study: Workspace) -> None:
    killed = make_packed("killed")
    killed.edit("checkpoint_every_steps: 8", "checkpoint_every_steps: 1")
    killed.hold_training()
    process = killed.start("tasks.train", "--arm", "tlm-uniform")
    wait_for(killed.is_held, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not leftovers("ray")
    assert checkpoints(killed) == [2, 3]  # runtime.keep_checkpoints
    killed.release()
    assert "goes on from step 3" in killed.run("dvc", "repro", "train@tlm-uniform")
    assert weights(killed.root, "tlm-uniform") == weights(study.root, "tlm-uniform")


def test_stage_asked_to_stop_goes_on_from_the_very_step(make_packed: Callable[[str], Workspace], study: Workspace) -> None:
    stopped = make_packed("stopped")
    stopped.edit("  experiment: tiny\n", "  experiment: tiny\n  stop_seconds: 600\n")
    stopped.hold_training()
    status = stopped.root.parent / "status.json"
    process = stopped.start("tasks.train", "--arm", "tlm-uniform", settings={"STUDY_STATUS_FILE": str(status)})
    wait_for(stopped.is_held, process)
    process.send_signal(signal.SIGTERM)
    wait_for((stopped.root / "runs" / "tlm-uniform" / "seed-42" / "stop").exists, process)
    stopped.release()
    output, _ = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 130, output
    left = json.loads(status.read_text())
    assert (left["code"], left["message"]) == (130, "interrupted")
    assert "stopped after step 4 of 24, as asked" in output
    assert checkpoints(stopped) == [4]
    assert not list(stopped.root.glob("runs/*/*/stop"))
    assert "goes on from step 4" in stopped.run("dvc", "repro", "train@tlm-uniform")
    assert weights(stopped.root, "tlm-uniform") == weights(study.root, "tlm-uniform")


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


def checkpoints(workspace: Workspace) -> list[int]:
    """Steps of the complete checkpoints."""
    return sorted(int(path.parent.name.removeprefix("step-")) for path in workspace.root.glob("runs/*/*/*/step-*/complete"))


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
