"""What the results files say about one arm, in MLflow's terms: points, params, tags. Knows no MLflow.

Reader beware: files under `artifacts/` may come from different times (an arm trained anew, not yet evaluated). `dvc.lock` says what
belongs together: an evaluation counts only when it was made from the very model files that training left.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from components.config.loader import read_yaml, resolve_arm
from components.config.problems import Problem, ResultsError, config_error
from components.config.schema import Arm, Model, Training
from components.objectives.base import settings_of
from components.results import ArmBenchmarks, ArmCost, ArmEvaluation, SeedBenchmarks, read_record

Points = list[tuple[str, float, int]]

DEPTH_METRICS = {
    "depth/nll": "nll_nats",
    "depth/ppl": "ppl",
    "depth/bits_per_byte": "bits_per_byte",
    "depth/parameters": "parameters",
    "depth/flops_per_token": "flops_per_token",
}
# Stages that train, the section of each in params.yaml, and the stages that evaluate what it trained.
TRAINED = {
    "train": ("arms", "evaluate", "benchmark"),
    "repair": ("repairs", "evaluate-repair", "benchmark-repair"),
    "expand": ("expansions", "evaluate-expansion", "benchmark-expansion"),
    "control": ("controls", "evaluate-control", "benchmark-control"),
}
COST_METRICS = ("seconds", "devices", "device_hours", "tokens", "tokens_per_second", "flops", "peak_memory_bytes")


@dataclass(frozen=True)
class ArmRecord:
    """One arm's results, consistent with each other.

    Attributes:
        arm: the settings it was trained with.
        models: folder with one folder for each seed.
        evaluation, benchmarks: None when the models have not been evaluated, or not on benchmarks or other corpora.
    """

    arm: Arm
    models: Path
    cost: ArmCost
    evaluation: ArmEvaluation | None
    evaluation_file: Path
    benchmarks: ArmBenchmarks | None
    benchmarks_file: Path

    @property
    def name(self) -> str:
        """The arm's name."""
        return self.arm.name

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that were trained."""
        return tuple(cost.seed for cost in self.cost.seeds)

    @property
    def data_fingerprint(self) -> str:
        """Of the packed training rows."""
        return str(self._card(self.seeds[0]).get("data_fingerprint", ""))

    @property
    def validation_fingerprint(self) -> str:
        """Of the validation set; empty when nothing was evaluated."""
        return self.evaluation.validation.fingerprint if self.evaluation else ""

    def training_content(self, seed: int) -> str:
        """A hash of everything about the seed's training that an upload writes."""
        told = [self.params(seed), self.tags(seed), self.cost_points(seed), self.data_fingerprint]
        digest = hashlib.sha256(json.dumps(told).encode())
        for file in self.training_files(seed):
            digest.update(file.name.encode() + file.read_bytes())
        return digest.hexdigest()

    def evaluation_content(self, seed: int) -> str:
        """The same for its evaluation; empty when there is none."""
        points = self.depth_points(seed)
        return hashlib.sha256(json.dumps([points, self.validation_fingerprint]).encode()).hexdigest() if points else ""

    def benchmark_content(self, seed: int) -> str:
        """The same for its benchmarks and corpora, with their overlap with the training corpus."""
        points = self.benchmark_points(seed)
        file = self.contamination_file
        overlap = file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""
        return hashlib.sha256(json.dumps([points, overlap]).encode()).hexdigest() if points else ""

    @property
    def contamination_file(self) -> Path:
        """Of the study: overlap of the benchmarks with the training corpus."""
        return self.benchmarks_file.parent.parent / "contamination.json"

    def params(self, seed: int) -> dict[str, str]:
        """The arm's resolved settings, flat: `training.lr`, `model.segments`, `objective.kind`."""
        sections = {"objective": self.arm.objective, "model": self.arm.model, "training": self.arm.training}
        flat = {f"{at}.{key}": value for at, part in sections.items() for key, value in part.model_dump(mode="json").items()}
        return {"seed": str(seed), **{key: value if isinstance(value, str) else json.dumps(value) for key, value in flat.items()}}

    def tags(self, seed: int) -> dict[str, str]:
        """What runs are filtered by."""
        cost = self._cost(seed)
        return {"objective": self.arm.objective.kind, "stream_fingerprint": cost.stream_fingerprint, "device": cost.device}

    def depth_points(self, seed: int) -> Points:
        """Quality and size at every depth, step = k, and the area under the curve; what is not finite has no point.

        A model that runs several numbers of streams has its curve at the most of them, the others as `depth_n2/...`.
        """
        result = next((one for one in self.evaluation.seeds if one.seed == seed), None) if self.evaluation else None
        if result is None:
            return []
        most = max(score.n_streams for score in result.depths)
        points = [
            (
                metric.replace("depth/", f"{_prefix('depth', score.n_streams, most)}/"),
                float(value),
                score.depth,
            )
            for score in result.depths
            for metric, field in DEPTH_METRICS.items()
            if (value := getattr(score, field)) is not None
        ]
        areas = {"aulb": result.aulb_nats, "aulb_clipped": result.aulb_clipped_nats}
        return points + [(name, value, 0) for name, value in areas.items() if value is not None]

    def benchmark_points(self, seed: int) -> Points:
        """Every metric of every benchmark and corpus at every depth, step = k: `benchmark/piqa/acc`, `corpus/books/bits_per_byte`.

        Streams as in `depth_points`: `benchmark_n2/...`.
        """
        result = next((one for one in self.benchmarks.seeds if one.seed == seed), None) if self.benchmarks else None
        return [*_accuracies(result), *_corpora(result)] if result else []

    def cost_points(self, seed: int) -> Points:
        """What training cost; hours under the name of what they are, `cost/gpu_hours` or `cost/core_hours`."""
        cost = self._cost(seed)
        points = {f"cost/{field}": float(getattr(cost, field)) for field in COST_METRICS if field != "device_hours"}
        points[f"cost/{cost.unit.lower().replace('-', '_')}"] = cost.device_hours
        return [(name, value, 0) for name, value in points.items()]

    def history_points(self, seed: int) -> Points:
        """The training history, step = optimizer step: every number of a line but the step."""
        points: Points = []
        for line in self._history(seed):
            for key, value in line.items():
                if key != "step" and isinstance(value, int | float):
                    points.append((f"train/{key.removesuffix('_nats')}", float(value), int(line["step"])))
        return points

    def training_files(self, seed: int) -> tuple[Path, ...]:
        """The small files that training left, without the weights."""
        folder = self.models / f"seed-{seed}"
        return tuple(path for path in (folder / "model.json", folder / "history.jsonl") if path.exists())

    def _card(self, seed: int) -> dict[str, Any]:
        file = self.models / f"seed-{seed}" / "model.json"
        return _parsed(file.read_bytes(), file) if file.exists() else {}

    def _cost(self, seed: int) -> Any:
        return next(cost for cost in self.cost.seeds if cost.seed == seed)

    def _history(self, seed: int) -> Iterator[dict[str, Any]]:
        file = self.models / f"seed-{seed}" / "history.jsonl"
        if file.exists():
            with file.open("rb") as lines:
                for number, line in enumerate(lines, start=1):
                    yield _parsed(line, f"{file}:{number}", "step")


def _parsed(text: bytes, where: object, *keys: str) -> dict[str, Any]:
    """An object that training left, with at least these keys.

    Raises:
        ResultsError: it is none.
    """
    with contextlib.suppress(ValueError):  # neither JSON nor UTF-8
        found = json.loads(text)
        if isinstance(found, dict) and found.keys() >= set(keys):
            return found
    raise ResultsError(f"{where}: damaged; run `dvc repro` to train the arm again")


def _accuracies(result: SeedBenchmarks) -> Points:
    points: Points = []
    for scores in result.benchmarks:
        most = max(cell.n_streams for cell in scores.depths)
        for cell in scores.depths:
            at = f"{_prefix('benchmark', cell.n_streams, most)}/{scores.benchmark}"
            for metric in cell.metrics:
                named = {metric.metric: metric.value, f"{metric.metric}_stderr": metric.stderr}
                points += [(f"{at}/{name}", value, cell.depth) for name, value in named.items() if value is not None]
    return points


def _corpora(result: SeedBenchmarks) -> Points:
    points: Points = []
    for scores in result.corpora:
        most = max(cell.n_streams for cell in scores.depths)
        for cell in scores.depths:
            if cell.bits_per_byte is not None:
                at = f"{_prefix('corpus', cell.n_streams, most)}/{scores.corpus}"
                points.append((f"{at}/bits_per_byte", cell.bits_per_byte, cell.depth))
    return points


def _prefix(name: str, n_streams: int, most: int) -> str:
    """`depth` at the most streams that a model runs, `depth_n2` at fewer."""
    return name if n_streams == most else f"{name}_n{n_streams}"


def arm_record(root: Path, arm: Arm, is_evaluated: bool, is_benchmarked: bool = False) -> ArmRecord:
    """The results of an arm that was trained with these settings.

    Raises:
        ResultsError: a results file is missing or not readable.
    """
    artifacts = root / "artifacts"
    evaluation_file = artifacts / "evaluation" / f"{arm.name}.json"
    benchmarks_file = artifacts / "benchmarks" / f"{arm.name}.json"
    return ArmRecord(
        arm=arm,
        models=artifacts / "models" / arm.name,
        cost=read_record(ArmCost, artifacts / "cost" / f"{arm.name}.json"),
        evaluation=read_record(ArmEvaluation, evaluation_file) if is_evaluated else None,
        evaluation_file=evaluation_file,
        benchmarks=read_record(ArmBenchmarks, benchmarks_file) if is_benchmarked else None,
        benchmarks_file=benchmarks_file,
    )


def recorded_arms(root: Path) -> dict[str, ArmRecord]:
    """Every arm that `dvc.lock` knows as trained and whose files are there.

    Raises:
        ResultsError: no `dvc.lock`, or a file of a recorded arm is broken.
    """
    lock = root / "dvc.lock"
    if not lock.exists():
        raise ResultsError(f"{lock}: no such file: no stage has run; run `dvc repro` first")
    stages: Mapping[str, Any] = read_yaml(lock).get("stages") or {}
    records = {}
    for stage, entry in stages.items():
        kind, _, name = stage.partition("@")
        if kind in TRAINED and (root / "artifacts" / "cost" / f"{name}.json").exists():
            section, *stages_after = TRAINED[kind]
            model = f"artifacts/models/{name}"
            trained_to = _hash_of(entry["outs"], model)
            is_current = [_hash_of(stages.get(f"{one}@{name}", {}).get("deps", ()), model) == trained_to for one in stages_after]
            try:
                arm = _arm(name, entry, lock) if kind == "train" else _further_arm(root, name, section, entry)
            except ValidationError as error:
                raise ResultsError(
                    f"{lock}: arm {name} was trained with settings of another version ({error}); run `dvc repro`"
                ) from None
            if arm is not None:
                records[name] = arm_record(root, arm, *is_current)
    return records


def _arm(name: str, entry: Mapping[str, Any], lock: Path) -> Arm:
    """The arm's settings as they were when it was trained."""
    params = entry["params"]["params.yaml"]
    problems: list[Problem] = []
    model, training = Model.model_validate(params["model"]), Training.model_validate(params["training"])
    arm = resolve_arm(name, params[f"arms.{name}"], model, training, problems)
    if arm is None:
        raise config_error(lock, problems)
    return arm


def _further_arm(root: Path, name: str, section: str, entry: Mapping[str, Any]) -> Arm | None:
    """The settings of a model that started from another one: its card has the shape and objective, the lock file the recipe.

    None without a card: the files are gone.
    """
    params = entry["params"]["params.yaml"]
    block = params[f"{section}.{name}"]
    recipe = params[f"expansions.{block['of']}"] if section == "controls" else block
    file = min((root / "artifacts" / "models" / name).glob("seed-*/model.json"), default=None)
    if file is None:
        return None
    card = _parsed(file.read_bytes(), file, "model", "objective", "steps")
    training = {**params["training"], **recipe.get("training", {}), "steps": card["steps"]}
    return Arm(
        name=name,
        base=block["base"],
        model=Model.model_validate_json(json.dumps(card["model"])),
        training=Training.model_validate(training),
        objective=settings_of(card["objective"]),
    )


def _hash_of(files: Any, path: str) -> str:
    return next((str(file["md5"]) for file in files if file["path"] == path), "none")
