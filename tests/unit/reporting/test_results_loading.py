"""The report reads what belongs together, shows holes, and refuses the rest by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from components.config.loader import load_study
from components.config.problems import ResultsError
from components.reporting.analysis import Analysis
from components.reporting.load import StudyResults, load_results
from tests.unit.reporting.toy_results import REPAIR, SMOOTH, UNIFORM, ToyArm, make_results, make_study, standard_arms


def load(folder: Path) -> StudyResults:
    return load_results(load_study(folder / "params.yaml"), folder / "artifacts")


def test_an_arm_without_results_is_a_hole(standard_folder: Path) -> None:
    (standard_folder / "artifacts/evaluation/mlms.json").unlink()
    results = load(standard_folder)
    assert [arm.name for arm in results.arms] == ["tlm-uniform", "twin-full"]
    assert results.missing == ("mlms",)


def test_no_results_at_all_is_an_error(tmp_path: Path) -> None:
    study = make_study(tmp_path, standard_arms())
    with pytest.raises(ResultsError, match="no arm of"):
        load_results(study, tmp_path / "artifacts")


def test_other_validation_sets_are_never_compared(tmp_path: Path) -> None:
    arms = standard_arms()
    arms["mlms"].validation = "another"
    make_results(tmp_path, arms)
    with pytest.raises(ResultsError, match="different validation sets") as error:
        load(tmp_path)
    assert "mlms: another" in str(error.value)


def test_another_schema_version_is_named(standard_folder: Path) -> None:
    path = standard_folder / "artifacts/evaluation/mlms.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(ResultsError, match=r"mlms\.json: results version 2"):
        load(standard_folder)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [("objective", "twin", "objective"), ("n_blocks", 12, "blocks"), ("exits", [4, 12, 16], "exits"), ("seeds", [], "seeds")],
)
def test_results_of_other_parameters_are_refused(standard_folder: Path, key: str, value: object, what: str) -> None:
    path = standard_folder / "artifacts/evaluation/mlms.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(ResultsError, match=rf"mlms\.json: {what} .*params\.yaml says"):
        load(standard_folder)


def test_a_depth_that_was_not_scored_is_refused(standard_folder: Path) -> None:
    path = standard_folder / "artifacts/evaluation/mlms.json"
    raw = json.loads(path.read_text())
    del raw["seeds"][0]["depths"][3]
    path.write_text(json.dumps(raw))
    with pytest.raises(ResultsError, match=r"expected 1\.\.16"):
        load(standard_folder)


def test_documents_that_do_not_add_up_are_refused(standard_folder: Path) -> None:
    path = standard_folder / "artifacts/evaluation/mlms.json"
    raw = json.loads(path.read_text())
    raw["seeds"][0]["depths"][15]["nll_nats"] += 0.001
    path.write_text(json.dumps(raw))
    with pytest.raises(ResultsError, match=r"mlms\.documents\.parquet: NLL .* at depth 16"):
        load(standard_folder)


def test_documents_of_another_arm_size_are_refused(standard_folder: Path) -> None:
    path = standard_folder / "artifacts/evaluation/mlms.documents.parquet"
    path.write_bytes(b"not parquet")
    with pytest.raises(ResultsError, match=r"mlms\.documents\.parquet"):
        load(standard_folder)


def test_a_cost_of_other_seeds_is_refused(standard_folder: Path) -> None:
    path = standard_folder / "artifacts/cost/mlms.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "seeds": []}))
    with pytest.raises(ResultsError, match=r"mlms\.json: arm and seeds"):
        load(standard_folder)


@pytest.mark.parametrize("damage", [b'{"step": 2', b'{"step": 2, "\xff'])
def test_a_damaged_history_is_named_with_its_line(standard_folder: Path, damage: bytes) -> None:
    path = standard_folder / "artifacts/models/mlms/seed-42/history.jsonl"
    path.write_bytes(b'{"step": 1, "loss_nats": 2.0}\n' + damage)
    with pytest.raises(ResultsError, match=r"history\.jsonl:2"):
        load(standard_folder)


def test_everything_but_the_evaluation_may_be_absent(tmp_path: Path) -> None:
    make_results(tmp_path, {"only": ToyArm(UNIFORM, SMOOTH, has_documents=False, has_cost=False, has_history=False)})
    [arm] = load(tmp_path).arms
    assert (arm.documents, arm.cost, arm.histories) == (None, None, {42: []})


def test_seeds_are_averaged_in_nats_and_a_missing_one_stays_missing(tmp_path: Path) -> None:
    make_results(tmp_path, {"only": ToyArm(UNIFORM, [float("nan"), *SMOOTH[1:]])}, seeds=(42, 43))
    [arm] = load(tmp_path).arms
    assert (arm.depths[0].nll_nats, arm.depths[0].ppl) == (None, None)
    by_seed = [seed.depths[5].nll_nats for seed in arm.evaluation.seeds]
    assert arm.depths[5].nll_nats == pytest.approx(sum(filter(None, by_seed)) / 2)
    assert by_seed[0] != by_seed[1]


def test_repairs_are_read_like_arms(tmp_path: Path) -> None:
    make_results(tmp_path, {**standard_arms(), "repair-head": ToyArm(REPAIR, [4.5, *SMOOTH[1:]])})
    analysis = Analysis(load(tmp_path))
    assert [arm.name for arm in analysis.arms] == ["tlm-uniform", "mlms", "twin-full", "repair-head"]
    [finding] = [finding for finding in analysis.findings if "Repairing only the head" in finding.statement]
    assert finding.verdict != "not run"
    assert "repaired minus mlms" in finding.evidence


def test_a_twin_shows_its_own_depth_only(standard_folder: Path) -> None:
    twin = load(standard_folder).arms[2]
    assert not twin.is_curve
    assert [depth.depth for depth in twin.shown_depths] == [16]
