"""Reads what the arms scored on benchmarks and other corpora, and refuses what does not belong to `params.yaml`.

Easy to get wrong: an arm without a file, or with one that says `not_run`, is a hole that the report names, not an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from components.config.problems import ResultsError
from components.config.schema import Arm, Study
from components.results import ArmBenchmarks, Contamination, SeedBenchmarks, read_record


def read_benchmarks(study: Study, arms: Mapping[str, int], folder: Path) -> Mapping[str, ArmBenchmarks]:
    """The records of the arms that were scored, by name.

    Args:
        arms: names of the evaluated arms, and the most streams of each.

    Raises:
        ResultsError: a file is of another version or does not belong to the parameters.
    """
    found = {}
    for name, n_streams in arms.items():
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        record = read_record(ArmBenchmarks, path)
        _check_belongs(record, study, study.models[name], n_streams, path)
        if record.status == "run":
            found[name] = record
    return found


def read_contamination(study: Study, path: Path) -> Contamination | None:
    """The overlap of the benchmarks with the training corpus; None when nothing was looked for.

    Raises:
        ResultsError: the file is of another version or does not belong to the parameters.
    """
    if not path.exists():
        return None
    record = read_record(Contamination, path)
    _check("benchmarks.tasks", tuple(one.benchmark for one in record.benchmarks), tuple(study.benchmarks.tasks), path)
    return record if record.status == "run" else None


def _check_belongs(record: ArmBenchmarks, study: Study, arm: Arm, n_streams: int, path: Path) -> None:
    settings = study.benchmarks
    is_wanted = bool(settings.tasks or settings.corpora)
    _check("arm", record.arm, arm.name, path)
    _check("status", record.status, "run" if is_wanted else "not_run", path)
    _check("limit", record.limit, settings.limit, path)
    _check("exits", record.exits, arm.model.exits, path)
    if not is_wanted:
        return
    _check("seeds", tuple(seed.seed for seed in record.seeds), arm.training.seeds, path)
    for seed in record.seeds:
        _check("benchmarks.tasks", tuple(one.benchmark for one in seed.benchmarks), tuple(settings.tasks), path)
        _check("benchmarks.corpora", tuple(sorted(one.corpus for one in seed.corpora)), tuple(sorted(settings.corpora)), path)
        _check("fingerprints of each seed", _fingerprints(seed), _fingerprints(record.seeds[0]), path)
        for benchmark in seed.benchmarks:
            depths = [cell.depth for cell in benchmark.depths if cell.n_streams == n_streams]
            _check(f"depths at {n_streams} streams", depths, list(range(1, arm.model.n_blocks + 1)), path)
        for corpus in seed.corpora:
            depths = [cell.depth for cell in corpus.depths if cell.n_streams == n_streams]
            _check(f"depths at {n_streams} streams", depths, list(range(1, arm.model.n_blocks + 1)), path)


def _fingerprints(seed: SeedBenchmarks) -> list[str]:
    return [*(one.fingerprint for one in seed.benchmarks), *(one.fingerprint for one in seed.corpora)]


def _check(what: str, got: object, expected: object, path: Path) -> None:
    if got != expected:
        raise ResultsError(f"{path}: {what} {got}, expected {expected}; run `dvc repro` to bring it up to date")
