"""Made-up benchmark records beside made-up evaluations: accuracy grows with depth, guessing is right one time in four."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from components.config.benchmarks import Benchmarks
from components.config.loader import load_study, read_yaml
from components.config.schema import Study
from components.results import (
    ArmBenchmarks,
    BenchmarkDepth,
    BenchmarkOverlap,
    BenchmarkScores,
    Contamination,
    CorpusDepth,
    CorpusScores,
    MetricScore,
    SeedBenchmarks,
    finite,
    write_record,
)
from tests.unit.reporting.toy_results import ToyArm, make_results, standard_arms

TASKS = ("hellaswag", "lambada_openai")
STDERR = 0.01


def make_scored_results(
    folder: Path, arms: Mapping[str, ToyArm] | None = None, fingerprints: Mapping[str, str] | None = None
) -> Study:
    """Results whose arms were scored on two benchmarks and a corpus; `fingerprints` of arms scored on other documents."""
    arms = standard_arms() if arms is None else arms
    make_results(folder, arms)
    path = folder / "params.yaml"
    raw = dict(read_yaml(path))
    corpus = {"paths": ["books/*.txt"], "text_column": "text", "max_bytes": 1000}
    raw["benchmarks"] = {"tasks": list(TASKS), "source": {"kind": "hub"}, "limit": 100, "corpora": {"books": corpus}}
    path.write_text(json.dumps(raw), encoding="utf-8")
    study = load_study(path)
    for i, (name, toy) in enumerate(arms.items()):
        record = arm_benchmarks(study, name, toy.n_streams, 0.01 * i, (fingerprints or {}).get(name, "same"))
        write_record(record, folder / "artifacts" / "benchmarks" / f"{name}.json")
    write_record(contamination(study.benchmarks), folder / "artifacts" / "contamination.json")
    return study


def arm_benchmarks(study: Study, name: str, n_streams: int, gain: float, fingerprint: str) -> ArmBenchmarks:
    """Accuracy at depth k is 0.2 + 0.02 k + gain for both benchmarks; at depth 1 the second is not finite."""
    arm = study.models[name]
    depths = range(1, arm.model.n_blocks + 1)
    cells = tuple(
        CorpusDepth(depth=k, n_streams=n_streams, blocks_run=k, state="ok", nll_nats=5.0, bits_per_byte=4.0 - 0.1 * k - gain)
        for k in depths
    )
    corpus = CorpusScores(
        corpus="books", fingerprint=fingerprint, n_documents=3, n_empty=0, n_tokens=400, n_bytes=1000, depths=cells
    )
    seeds = tuple(
        SeedBenchmarks(
            seed=seed,
            benchmarks=(
                _benchmark("hellaswag", ("acc", "acc_norm"), depths, n_streams, gain, fingerprint),
                _benchmark("lambada_openai", ("acc", "perplexity"), depths, n_streams, gain, fingerprint),
            ),
            corpora=(corpus,),
        )
        for seed in arm.training.seeds
    )
    return ArmBenchmarks(
        version=1, arm=name, status="run", harness="harness 1.0", limit=100, window_tokens=128, n_blocks=arm.model.n_blocks,
        exits=arm.model.exits, seeds=seeds,
    )  # fmt: skip


def contamination(settings: Benchmarks) -> Contamination:
    """One of 100 documents of every benchmark overlaps."""
    overlaps = tuple(
        BenchmarkOverlap(benchmark=name, fingerprint="same", n=100, n_checked=50, n_overlapping=1, documents=(7,))
        for name in settings.tasks
    )
    return Contamination(
        version=1, status="run", ngram_words=13, corpus_fingerprint="corpus", n_documents=10, n_words=1000, benchmarks=overlaps
    )


def _benchmark(
    name: str, metrics: tuple[str, ...], depths: range, n_streams: int, gain: float, fingerprint: str
) -> BenchmarkScores:
    chance = 0.25 if name == "hellaswag" else 0.0
    cells = []
    for k in depths:
        scores = []
        for metric in metrics:
            value = (
                float("nan") if k == 1 and name != "hellaswag" else 900.0 / k if metric == "perplexity" else 0.2 + 0.02 * k + gain
            )
            state, number = finite(value)
            unit = "characters" if metric == "acc_norm" else "none"
            error = None if metric == "perplexity" else STDERR
            scores.append(MetricScore(metric=metric, normalised_by=unit, state=state, value=number, stderr=error))
        cells.append(BenchmarkDepth(depth=k, n_streams=n_streams, blocks_run=k, metrics=tuple(scores)))
    return BenchmarkScores(
        benchmark=name, task_version="1.0", fingerprint=fingerprint, n=100, chance=chance, n_requests=400, n_shortened=4, n_split=0,
        depths=tuple(cells),
    )  # fmt: skip
