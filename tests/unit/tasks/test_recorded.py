"""What `dvc.lock` and the files say about models that started from others: repairs, expansions, controls."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.config.loader import read_yaml
from components.config.problems import ResultsError
from tasks.recorded import recorded_arms
from tests.unit.tasks.recorded_study import dump, lists, make_study, write_lock


def test_models_that_started_from_others_are_recorded_as_they_were_trained(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    write_lock(tmp_path, study)
    records = recorded_arms(tmp_path)
    assert set(records) == {"fixed", "hd-n2", "hd-n1"}
    for name, record in records.items():
        own = study.models[name]
        assert (record.arm.base, record.arm.model, record.arm.training) == (own.base, own.model, own.training)
        assert record.arm.objective == own.objective
        assert record.evaluation is not None


def test_each_number_of_streams_has_its_own_curve(tmp_path: Path) -> None:
    study = make_study(tmp_path)
    write_lock(tmp_path, study)
    points = {name: value for name, value, _ in recorded_arms(tmp_path)["hd-n2"].depth_points(42)}
    assert points["depth/nll"] == 2.0
    assert points["depth_n1/nll"] == 3.0


def test_benchmarks_and_corpora_have_a_point_per_depth(tmp_path: Path) -> None:
    write_lock(tmp_path, make_study(tmp_path))
    records = recorded_arms(tmp_path)
    assert records["fixed"].benchmark_points(42) == [
        ("benchmark/piqa/acc", 0.1, 1),
        ("benchmark/piqa/acc_stderr", 0.01, 1),
        ("benchmark/piqa/acc_stderr", 0.01, 2),
        ("corpus/books/bits_per_byte", 0.1, 1),
    ]
    names = {name for name, _, _ in records["hd-n2"].benchmark_points(42)}
    assert {"benchmark/piqa/acc", "benchmark_n1/piqa/acc", "corpus/books/bits_per_byte", "corpus_n1/books/bits_per_byte"} < names


def test_benchmarks_of_an_older_model_are_not_recorded(tmp_path: Path) -> None:
    write_lock(tmp_path, make_study(tmp_path))
    lock = lists(dict(read_yaml(tmp_path / "dvc.lock")))
    lock["stages"]["benchmark-repair@fixed"]["deps"][0]["md5"] = "older"
    dump(lock, tmp_path / "dvc.lock")
    record = recorded_arms(tmp_path)["fixed"]
    assert record.benchmarks is None
    assert record.benchmark_content(42) == ""
    assert record.evaluation is not None


def test_a_model_whose_card_is_gone_is_not_recorded(tmp_path: Path) -> None:
    """Its cost and scores may have stayed."""
    write_lock(tmp_path, make_study(tmp_path))
    (tmp_path / "artifacts/models/hd-n2/seed-42/model.json").unlink()
    assert set(recorded_arms(tmp_path)) == {"fixed", "hd-n1"}


@pytest.mark.parametrize("damage", [b"{", b"\xff", b"[]", b"{}", b'{"steps": 1, "objective": {}, "model": {}}'])
def test_a_damaged_card_is_named(tmp_path: Path, damage: bytes) -> None:
    write_lock(tmp_path, make_study(tmp_path))
    (tmp_path / "artifacts/models/hd-n2/seed-42/model.json").write_bytes(damage)
    with pytest.raises(ResultsError, match=r"(?s)hd-n2.*run `dvc repro`"):
        recorded_arms(tmp_path)


def test_a_card_damaged_since_is_named_when_it_is_read(tmp_path: Path) -> None:
    write_lock(tmp_path, make_study(tmp_path))
    record = recorded_arms(tmp_path)["hd-n2"]
    (record.models / "seed-42" / "model.json").write_text("{")
    with pytest.raises(ResultsError, match=r"seed-42/model\.json: damaged; run `dvc repro`"):
        record.training_content(42)


@pytest.mark.parametrize("damage", [b"{", b"\xff", b"1", b"{}"])
def test_a_damaged_history_is_named_with_its_line(tmp_path: Path, damage: bytes) -> None:
    write_lock(tmp_path, make_study(tmp_path))
    record = recorded_arms(tmp_path)["hd-n2"]
    (record.models / "seed-42" / "history.jsonl").write_bytes(b'{"step": 1, "loss_nats": 2.0}\n' + damage)
    with pytest.raises(ResultsError, match=r"history\.jsonl:2: damaged; run `dvc repro`"):
        record.history_points(42)


def test_an_overlap_that_is_no_text_is_uploaded_as_it_is(tmp_path: Path) -> None:
    write_lock(tmp_path, make_study(tmp_path))
    record = recorded_arms(tmp_path)["fixed"]
    record.contamination_file.write_bytes(b"\xff")
    assert record.benchmark_content(42)


def test_a_lock_file_without_stages_records_nothing(tmp_path: Path) -> None:
    (tmp_path / "dvc.lock").write_text("schema: '2.0'\nstages:\n")
    assert recorded_arms(tmp_path) == {}
