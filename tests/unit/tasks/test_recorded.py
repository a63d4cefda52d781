"""What `dvc.lock` and the files say about models that started from others: repairs, expansions, controls."""

from __future__ import annotations

from pathlib import Path

from components.config.loader import read_yaml
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
