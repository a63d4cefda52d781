"""Reads everything the report shows from the files under `artifacts/`, and refuses what must not be compared.

Easy to get wrong: an arm of `params.yaml` without an evaluation is a hole that the report shows, not an error; an evaluation that
belongs to other parameters, or to another validation set than its neighbours, is an error and never a row in a table.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from components.config.problems import ResultsError
from components.config.schema import Arm, Study
from components.data.manifest import MANIFEST_FILE, DataManifest
from components.evaluation.bootstrap import DocumentScores, group_by_seed
from components.evaluation.telescopic_claims import TWIN
from components.reporting.load_benchmarks import read_benchmarks, read_contamination
from components.reporting.load_profiles import Profiles, read_profiles
from components.results import ArmBenchmarks, ArmCost, ArmEvaluation, Contamination, DepthScore, perplexity, read_record

# Sums of the same float64 numbers in another order agree far better than this.
_AGREEMENT = 1e-6


@dataclass(frozen=True)
class LossPoint:
    """One line of a training history.

    Attributes:
        loss_nats: of the objective, whatever it sums up.
        full_nats: of the full model on the same batch, when the objective computes it: comparable between arms.
    """

    step: int
    loss_nats: float
    full_nats: float | None


@dataclass(frozen=True)
class DepthMean:
    """One depth of an arm, averaged over its seeds; a number is None when it is not finite for some seed."""

    depth: int
    is_trained: bool
    nll_nats: float | None
    ppl: float | None
    bits_per_byte: float | None
    parameters: int
    flops_per_token: int


@dataclass(frozen=True)
class ArmResults:
    """Everything known of one evaluated arm.

    Attributes:
        documents_by_streams: NLL sums per validation document at every number of streams; empty when the file is absent: then
            there are no intervals.
        histories: training losses of each seed that has them.
    """

    arm: Arm
    evaluation: ArmEvaluation
    documents_by_streams: Mapping[int, DocumentScores]
    cost: ArmCost | None
    histories: Mapping[int, Sequence[LossPoint]]

    @property
    def name(self) -> str:
        return self.arm.name

    @property
    def n_streams(self) -> int:
        """The most streams per token that it was scored with: what its depths are shown at."""
        return max(score.n_streams for seed in self.evaluation.seeds for score in seed.depths)

    @property
    def documents(self) -> DocumentScores | None:
        """The document scores at its most streams."""
        return self.documents_by_streams.get(self.n_streams)

    @property
    def is_curve(self) -> bool:
        """Whether its depths are read as one model at many sizes; a twin or a backbone is a point."""
        objective = self.arm.objective.model_dump(mode="json")
        inner = objective.get("inner") or objective
        return self.evaluation.n_blocks > 1 and not TWIN.is_played_by(inner) and inner["kind"] != "pretrained"

    @property
    def nll_by_seed(self) -> list[list[float | None]]:
        """NLL of each seed at depths 1..N, at the arm's most streams."""
        return [[score.nll_nats for score in _most_streams(seed.depths)] for seed in self.evaluation.seeds]

    @property
    def depths(self) -> tuple[DepthMean, ...]:
        """Depths 1..N at the arm's most streams, averaged over seeds; perplexity is exp of the mean NLL."""
        by_seed = [_most_streams(seed.depths) for seed in self.evaluation.seeds]
        return tuple(self._mean(scores) for scores in zip(*by_seed, strict=True))

    @property
    def shown_depths(self) -> tuple[DepthMean, ...]:
        """The depths that mean something: all of a curve, the trained one of a twin."""
        return tuple(depth for depth in self.depths if self.is_curve or depth.is_trained)

    @property
    def full(self) -> DepthMean:
        """Depth N."""
        return self.depths[-1]

    def mean_nll(self, n_streams: int, seed: int | None = None) -> list[float]:
        """NLL at depths 1..N at one number of streams, mean over seeds or of one; NaN where it is not finite."""
        chosen = [one for one in self.evaluation.seeds if seed in (None, one.seed)]
        by_seed = [[score.nll_nats for score in at_streams(one.depths, n_streams)] for one in chosen]
        means = (_mean(values) for values in zip(*by_seed, strict=True))
        return [math.nan if mean is None else mean for mean in means]

    def _mean(self, scores: Sequence[DepthScore]) -> DepthMean:
        nll = _mean([score.nll_nats for score in scores])
        return DepthMean(
            scores[0].depth,
            scores[0].depth in self.evaluation.trained_depths,
            nll,
            perplexity(nll),
            _mean([score.bits_per_byte for score in scores]),
            scores[0].parameters,
            scores[0].flops_per_token,
        )


@dataclass(frozen=True)
class StudyResults:
    """The results of a study.

    Attributes:
        arms: those with an evaluation, in the order of `params.yaml`.
        missing: names of the arms without one.
        benchmarks: of the evaluated arms that were scored on benchmarks or other corpora, by name.
        contamination: of those benchmarks; None when it was not looked for.
        profiles: latency of the evaluated arms.
    """

    study: Study
    arms: tuple[ArmResults, ...]
    missing: tuple[str, ...]
    manifest: DataManifest | None
    benchmarks: Mapping[str, ArmBenchmarks]
    contamination: Contamination | None
    profiles: Profiles


def load_results(study: Study, artifacts: Path) -> StudyResults:
    """All results of the study's arms and repairs.

    Raises:
        ResultsError: no arm has an evaluation; a file is of another version, does not belong to `params.yaml`, or contradicts
            another file; or arms were scored on different validation sets.
    """
    found = [_load_arm(arm, artifacts) for arm in study.models.values()]
    arms = tuple(results for results in found if results is not None)
    if not arms:
        raise ResultsError(f"{artifacts / 'evaluation'}: no arm of params.yaml has been evaluated; run `dvc repro` first")
    _check_same_validation(arms)
    manifest = artifacts / "data" / MANIFEST_FILE
    return StudyResults(
        study=study,
        arms=arms,
        missing=tuple(name for name, results in zip(study.models, found, strict=True) if results is None),
        manifest=read_record(DataManifest, manifest) if manifest.exists() else None,
        benchmarks=read_benchmarks(study, {arm.name: arm.n_streams for arm in arms}, artifacts / "benchmarks"),
        contamination=read_contamination(study, artifacts / "contamination.json"),
        profiles=read_profiles(study, [arm.name for arm in arms], artifacts / "profile"),
    )


def _load_arm(arm: Arm, artifacts: Path) -> ArmResults | None:
    path = artifacts / "evaluation" / f"{arm.name}.json"
    if not path.exists():
        return None
    evaluation = read_record(ArmEvaluation, path)
    _check_belongs(evaluation, arm, path)
    cost = artifacts / "cost" / f"{arm.name}.json"
    models = artifacts / "models" / arm.name
    return ArmResults(
        arm=arm,
        evaluation=evaluation,
        documents_by_streams=_read_documents(path.with_name(f"{arm.name}.documents.parquet"), evaluation),
        cost=_read_cost(cost, arm) if cost.exists() else None,
        histories={seed.seed: _read_history(models / f"seed-{seed.seed}" / "history.jsonl") for seed in evaluation.seeds},
    )


def _check_belongs(evaluation: ArmEvaluation, arm: Arm, path: Path) -> None:
    pairs = {
        "arm": (evaluation.arm, arm.name),
        "objective": (evaluation.objective, arm.objective.kind),
        "blocks": (evaluation.n_blocks, arm.model.n_blocks),
        "exits": (evaluation.exits, arm.model.exits),
        "seeds": (tuple(seed.seed for seed in evaluation.seeds), arm.training.seeds),
    }
    for what, (got, expected) in pairs.items():
        if got != expected:
            raise ResultsError(f"{path}: {what} {got}, but params.yaml says {expected}; run `dvc repro` to bring it up to date")
    for seed in evaluation.seeds:
        depths = [score.depth for score in _most_streams(seed.depths)]
        if depths != list(range(1, evaluation.n_blocks + 1)):
            raise ResultsError(f"{path}: seed {seed.seed} has depths {depths}, expected 1..{evaluation.n_blocks}; re-run its stage")


def _read_cost(path: Path, arm: Arm) -> ArmCost:
    cost = read_record(ArmCost, path)
    got = (cost.arm, tuple(seed.seed for seed in cost.seeds))
    if got != (arm.name, arm.training.seeds):
        raise ResultsError(f"{path}: arm and seeds {got}, but params.yaml says {(arm.name, arm.training.seeds)}; run `dvc repro`")
    return cost


def _check_same_validation(arms: Sequence[ArmResults]) -> None:
    sets = {results.name: results.evaluation.validation for results in arms}
    if len(set(sets.values())) > 1:
        lines = [f"  {name}: {one.fingerprint} ({one.n_documents} documents, {one.n_tokens} tokens)" for name, one in sets.items()]
        raise ResultsError(
            "the arms were scored on different validation sets and cannot be compared; run `dvc repro` to re-evaluate:\n"
            + "\n".join(lines)
        )
    scored = [(results.name, results.documents) for results in arms if results.documents is not None]
    for name, documents in scored[1:]:
        first_name, first = scored[0]
        if not (np.array_equal(documents.document, first.document) and np.array_equal(documents.n_tokens, first.n_tokens)):
            raise ResultsError(f"{first_name} and {name} were scored on different documents; run `dvc repro` to re-evaluate them")


def _read_documents(path: Path, evaluation: ArmEvaluation) -> dict[int, DocumentScores]:
    if not path.exists():
        return {}
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path, columns=["seed", "n_streams", "document", "n_tokens", "nll_nats"])
        seed, n_streams, document, n_tokens = (
            table[name].to_numpy().astype(np.int64) for name in ("seed", "n_streams", "document", "n_tokens")
        )
        flat = table["nll_nats"].combine_chunks().flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        nll = flat.reshape(len(seed), evaluation.n_blocks)
    except (pa.ArrowException, KeyError, ValueError) as error:
        raise ResultsError(f"{path}: not the per-document scores of this arm ({error}); re-run its evaluation") from None
    found = {}
    for n in np.unique(n_streams).tolist():
        own = n_streams == n
        found[n] = group_by_seed(seed[own], document[own], n_tokens[own], nll[own], str(path))
        _check_agrees(found[n], evaluation, n, path)
    return found


def _check_agrees(scores: DocumentScores, evaluation: ArmEvaluation, n_streams: int, path: Path) -> None:
    """The documents have to add up to the numbers of the evaluation beside them."""
    if len(scores.document) != evaluation.validation.n_documents or scores.n_tokens.sum() != evaluation.validation.n_tokens:
        raise ResultsError(f"{path}: not the documents of the validation set of {evaluation.arm}.json; re-run its evaluation")
    by_seed = [[score.nll_nats for score in at_streams(seed.depths, n_streams)] for seed in evaluation.seeds]
    with np.errstate(invalid="ignore"):
        sums = scores.nll_nats.sum(axis=1).mean(axis=0) / scores.n_tokens.sum()
    if any(len(values) != evaluation.n_blocks for values in by_seed):
        raise ResultsError(f"{path}: {n_streams} streams, which {evaluation.arm}.json does not have; re-run its evaluation")
    for depth, (values, own) in enumerate(zip(zip(*by_seed, strict=True), sums, strict=True), start=1):
        mean = _mean(values)
        if mean is not None and not math.isclose(mean, float(own), rel_tol=_AGREEMENT):
            raise ResultsError(f"{path}: NLL {own} at depth {depth}, {evaluation.arm}.json has {mean}; re-run its evaluation")


def _read_history(path: Path) -> list[LossPoint]:
    if not path.exists():
        return []
    points = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            row = json.loads(line)
            points.append(LossPoint(int(row["step"]), float(row["loss_nats"]), row.get("full_nats")))
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ResultsError(f"{path}:{number}: not a line of a training history; re-run the arm's training") from None
    return points


def _most_streams(scores: Sequence[DepthScore]) -> list[DepthScore]:
    """The depths at the most streams that were scored: all there are, but for a model that is trained for several n."""
    return at_streams(scores, max((score.n_streams for score in scores), default=1))


def at_streams(scores: Sequence[DepthScore], n_streams: int) -> list[DepthScore]:
    """The scores at one number of streams, in order of depth."""
    return sorted((score for score in scores if score.n_streams == n_streams), key=lambda score: score.depth)


def _mean(values: Sequence[float | None]) -> float | None:
    finite = [value for value in values if value is not None]
    return sum(finite) / len(finite) if finite and len(finite) == len(values) else None
