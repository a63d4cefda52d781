"""A folder of results as the stages leave it, made up but consistent: documents add up to the evaluation beside them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from components.config.loader import load_study, read_yaml
from components.config.schema import Arm, Study
from components.evaluation.frontier import aulb, aulb_clipped
from components.results import (
    ArmCost,
    ArmEvaluation,
    ArmProfile,
    DepthScore,
    LatencyCell,
    SeedCost,
    SeedEvaluation,
    SpeculationCell,
    Timing,
    ValidationSet,
    finite,
    perplexity,
    write_record,
)

ROOT = Path(__file__).resolve().parents[3]
VOCAB = 1024
UNIFORM = {
    "kind": "telescopic",
    "sampler": {"kind": "uniform"},
    "prefix_weight": 1.0,
    "anchor_weight": 1.0,
    "distill_weight": 0.0,
    "exclude_full": False,
}
SUITE = {"kind": "fixed_exits", "distill_weight": 0.0, "backward": "per_exit"}
TWIN = {"kind": "twin", "exit": 3}
REPAIR = {"kind": "repair", "base": "mlms", "part": "head"}

SMOOTH = [4.2, 4.0, 3.9, 3.85, 3.8, 3.76, 3.73, 3.7, 3.74, 3.55, 3.4, 3.3, 3.28, 3.2, 3.14, 3.1]
COLLAPSED = [9.0, 7.0, 6.2, 5.8, 5.2, 4.8, 4.3, 3.6, 4.6, 4.3, 3.9, 3.2, 3.7, 3.5, 3.3, 3.05]
FEWER_NATS = 0.05
UNTRAINED = [1000.0, 440.0, *[12.0] * 13, 2.95]


@dataclass
class ToyArm:
    """One made-up arm: NLL per depth, and what to leave out of its files."""

    objective: Mapping[str, Any]
    nll: Sequence[float]
    trained_depths: Sequence[int] | None = None
    has_evaluation: bool = True
    has_documents: bool = True
    has_cost: bool = True
    has_history: bool = True
    hours: float = 0.05
    validation: str = "validation-fingerprint"
    model: Mapping[str, Any] = field(default_factory=dict)
    n_streams: int = 1
    fewer_streams: Sequence[int] = ()  # scored with these as well, FEWER_NATS worse for each stream less
    step_seconds: float | None = None  # of one block and stream; None has no profile


def standard_arms() -> dict[str, ToyArm]:
    """The three arms of the quick study, with the shapes the papers tell."""
    return {
        "tlm-uniform": ToyArm(UNIFORM, SMOOTH, range(1, 17)),
        "mlms": ToyArm(SUITE, COLLAPSED, (8, 12, 16), hours=0.06),
        "twin-full": ToyArm(TWIN, UNTRAINED, (16,), hours=0.03),
    }


def make_study(
    folder: Path, arms: Mapping[str, ToyArm], seeds: Sequence[int] = (42,), n_blocks: Sequence[int] = (8, 4, 4)
) -> Study:
    """Writes `params.yaml` (JSON is YAML) and loads it."""
    raw: dict[str, Any] = dict(read_yaml(ROOT / "params.yaml"))
    sections = {"repair": "repairs", "expansion": "expansions", "control": "controls"}
    trained = {name: arm for name, arm in arms.items() if arm.objective["kind"] not in sections}
    raw["arms"] = {name: {"objective": arm.objective, "model": arm.model} for name, arm in trained.items()}
    for kind, section in sections.items():
        own = {name: dict(arm.objective) for name, arm in arms.items() if arm.objective["kind"] == kind}
        raw[section] = {name: {key: value for key, value in block.items() if key != "kind"} for name, block in own.items()}
    raw["training"] = {**raw["training"], "seeds": list(seeds)}
    raw["model"] = {**raw["model"], "segments": [{"n_blocks": n, "d_model": 48 + 16 * i} for i, n in enumerate(n_blocks)]}
    raw["evaluation"] = {**raw["evaluation"], "bootstrap_resamples": 200}
    path = folder / "params.yaml"
    path.write_text(json.dumps(raw), encoding="utf-8")
    return load_study(path)


def make_results(
    folder: Path,
    arms: Mapping[str, ToyArm] | None = None,
    seeds: Sequence[int] = (42,),
    n_blocks: Sequence[int] = (8, 4, 4),
    n_documents: int = 40,
) -> Study:
    """Writes `params.yaml` and `artifacts/` of all the arms under the folder; returns the study."""
    arms = standard_arms() if arms is None else arms
    study = make_study(folder, arms, seeds, n_blocks)
    for name, toy in arms.items():
        _write_arm(folder / "artifacts", study.models[name], toy, seeds, n_documents)
    return study


def _write_arm(artifacts: Path, arm: Arm, toy: ToyArm, seeds: Sequence[int], n_documents: int) -> None:
    generator = np.random.default_rng(len(arm.name))
    n_tokens = np.random.default_rng(0).integers(200, 2000, n_documents)
    n_bytes = 3 * n_tokens
    counts = (*toy.fewer_streams, toy.n_streams)
    sums, evaluations = [], []
    for seed in seeds:
        own = np.array(toy.nll, dtype=np.float64) + 0.01 * (seed - seeds[0])
        noise = np.random.default_rng(1).normal(0, 0.2, (n_documents, 1)) + generator.normal(0, 0.02, (n_documents, len(own)))
        cells = []
        for n in counts:
            sums.append((own + FEWER_NATS * (toy.n_streams - n) + noise) * n_tokens[:, None])
            with np.errstate(invalid="ignore"):
                mean = (sums[-1].sum(axis=0) / n_tokens.sum()).tolist()
            cells.append(_seed_evaluation(seed, mean, int(n_tokens.sum()), int(n_bytes.sum()), n))
        scores = tuple(score for cell in cells for score in cell.depths)
        evaluations.append(cells[-1].model_copy(update={"depths": scores}))
    validation = ValidationSet(
        fingerprint=toy.validation, n_documents=n_documents, n_tokens=int(n_tokens.sum()), n_bytes=int(n_bytes.sum())
    )
    evaluation = ArmEvaluation(
        version=1,
        arm=arm.name,
        objective=arm.objective.kind,
        n_blocks=arm.model.n_blocks,
        exits=arm.model.exits,
        trained_depths=tuple(toy.trained_depths or range(1, arm.model.n_blocks + 1)),
        vocab_size=VOCAB,
        validation=validation,
        seeds=tuple(evaluations),
    )
    if toy.has_evaluation:
        write_record(evaluation, artifacts / "evaluation" / f"{arm.name}.json")
    if toy.has_evaluation and toy.has_documents:
        _write_documents(artifacts / "evaluation" / f"{arm.name}.documents.parquet", seeds, counts, n_tokens, n_bytes, sums)
    if toy.has_cost:
        costs = tuple(_seed_cost(seed, toy.hours) for seed in seeds)
        write_record(ArmCost(version=1, arm=arm.name, seeds=costs), artifacts / "cost" / f"{arm.name}.json")
    if toy.step_seconds is not None:
        write_record(_profile(arm, toy.step_seconds, toy.n_streams), artifacts / "profile" / f"{arm.name}.json")
    if toy.has_history:
        _write_histories(artifacts / "models" / arm.name, seeds, toy)


def _seed_evaluation(seed: int, mean: list[float], n_tokens: int, n_bytes: int, n_streams: int) -> SeedEvaluation:
    scores = []
    for depth, value in enumerate(mean, start=1):
        state, nll = finite(value)
        bits = None if nll is None else nll * n_tokens / n_bytes / math.log(2)
        scores.append(
            DepthScore(
                depth=depth,
                n_streams=n_streams,
                state=state,
                nll_nats=nll,
                ppl=perplexity(nll),
                bits_per_byte=bits,
                parameters=50_000 + 40_000 * depth,
                flops_per_token=(200_000 + 80_000 * depth) * n_streams,
                blocks_run=depth,
            )
        )
    values = [score.nll_nats for score in scores]
    return SeedEvaluation(seed=seed, depths=tuple(scores), aulb_nats=aulb(values), aulb_clipped_nats=aulb_clipped(values, VOCAB))


def _write_documents(
    path: Path, seeds: Sequence[int], counts: Sequence[int], n_tokens: Any, n_bytes: Any, sums: Sequence[Any]
) -> None:
    n_documents, n_depths = sums[0].shape
    nll = pa.FixedSizeListArray.from_arrays(pa.array(np.concatenate(sums).ravel()), n_depths)
    table = pa.table(
        {
            "seed": np.repeat(np.array(seeds, dtype=np.int64), n_documents * len(counts)),
            "document": np.tile(np.arange(n_documents), len(sums)),
            "n_tokens": np.tile(n_tokens, len(sums)),
            "n_bytes": np.tile(n_bytes, len(sums)),
            "n_streams": np.tile(np.repeat(np.array(counts, dtype=np.int64), n_documents), len(seeds)),
            "nll_nats": nll,
        }
    )
    pq.write_table(table, path)


def _profile(arm: Arm, step_seconds: float, n_streams: int) -> ArmProfile:
    """Depth k takes k + 1 times `step_seconds` per stream; drafting with the first block pays, with the second it does not."""

    def cell(depth: int, batch: int) -> LatencyCell:
        seconds = step_seconds * (depth + 1) * n_streams
        timing = Timing(median_seconds=seconds, low_seconds=0.9 * seconds, high_seconds=1.1 * seconds, samples=5)
        return LatencyCell(
            depth=depth, n_streams=n_streams, batch_size=batch, context_tokens=96, prefill=timing, decode=timing,
            prefill_tokens_per_second=96 * batch / seconds, decode_tokens_per_second=batch / seconds, weight_bytes=1000 * depth,
            kv_bytes=96 * batch * depth, peak_memory_bytes=10**6,
        )  # fmt: skip

    def drafting(depth: int, speedup: float) -> SpeculationCell:
        return SpeculationCell(
            draft_depth=depth, draft_tokens=2, acceptance=0.8, cost_ratio=0.1, expected_speedup=speedup, measured_speedup=speedup,
            measured_low=speedup - 0.1, measured_high=speedup + 0.1,
        )  # fmt: skip

    gaining = drafting(1, 1.5)
    n_blocks = arm.model.n_blocks
    return ArmProfile(
        version=1, arm=arm.name, seed=arm.training.seeds[0], n_blocks=n_blocks, device="Example CPU", device_kind="cpu", threads=1,
        dtype="float32", torch_version="2", decode_steps=8, repeats=5,
        cells=tuple(cell(depth, batch) for batch in (1, 8) for depth in range(1, n_blocks + 1)), violations=(),
        speculation=(gaining, drafting(2, 0.9)), recommended=gaining,
    )  # fmt: skip


def _seed_cost(seed: int, hours: float) -> SeedCost:
    return SeedCost(
        seed=seed,
        seconds=hours * 3600,
        devices=1,
        device="Example CPU",
        device_hours=hours,
        unit="core-hours",
        steps=500,
        tokens=1_024_000,
        tokens_per_second=1_024_000 / (hours * 3600),
        flops=int(hours * 1e14),
        peak_memory_bytes=512 * 2**20,
        stream_fingerprint=f"stream-of-seed-{seed}",
    )


def _write_histories(folder: Path, seeds: Sequence[int], toy: ToyArm) -> None:
    for seed in seeds:
        path = folder / f"seed-{seed}" / "history.jsonl"
        path.parent.mkdir(parents=True)
        rows = [
            {"step": step, "loss_nats": 2 * (7 - 3 * step / 500), "full_nats": toy.nll[-1] + 4 * math.exp(-step / 100)}
            for step in range(10, 501, 10)
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
