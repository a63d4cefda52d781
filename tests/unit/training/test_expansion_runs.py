"""Expansions and controls as training runs: what they start from, which batches they read, and that they resume exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from components.config.schema import Arm
from components.models.files import load_model, load_tensors
from components.models.streams import StreamedCascade
from components.objectives.base import build_objective
from components.training.run import TrainingRun, run_training
from tests.toys import VOCAB, telescopic, toy_run, toy_training
from tests.unit.objectives.test_hidden_decoding import hidden_arm

LAYERS = ("intra", "cross_full", "intra", "intra", "cross_full")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    run = toy_run(tmp_path_factory.mktemp("base"), telescopic())
    run_training(run, lambda _: None)
    return run


def _run(base: TrainingRun, arm: Arm, root: Path) -> TrainingRun:
    return replace(base, arm=arm, run_dir=root / "runs", output_dir=root / "model", base_dir=base.output_dir)


def _two(**changes: object) -> Arm:
    return hidden_arm(telescopic(), n_streams=2, layers=LAYERS, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("sampled", [None, (1, 2)])
def test_an_expansion_stopped_and_started_again_ends_with_the_same_files(
    base: TrainingRun, tmp_path: Path, sampled: tuple[int, ...] | None
) -> None:
    straight, stopped = (_run(base, _two(sampled=sampled), tmp_path / name) for name in "ab")
    cost = run_training(straight, lambda _: None)

    def stop(progress: object) -> None:
        if progress.step in (2, 5, 8):  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            run_training(stopped, stop)
    resumed = run_training(stopped, lambda _: None)
    files = [{path.name: path.read_bytes() for path in run.output_dir.iterdir()} for run in (straight, stopped)]
    assert files[0] == files[1]
    drawn = [json.loads(line)["n_streams"] for line in files[0]["history.jsonl"].splitlines()]
    objective = build_objective(straight.arm, VOCAB, straight.seed)
    assert drawn == [objective.streams_at(step) for step in range(10)]
    assert set(drawn) == set(sampled or (2,))
    assert resumed.stream_fingerprint == cost.stream_fingerprint


def test_the_chain_two_four_eight_trains_and_every_model_says_what_it_is(base: TrainingRun, tmp_path: Path) -> None:
    run = base
    for n in (2, 4, 8):
        arm = hidden_arm(telescopic(), n_streams=n, layers=LAYERS)
        run = _run(run, arm, tmp_path / str(n))
        run_training(run, lambda _: None)
        model, card = load_model(run.output_dir)
        assert isinstance(model, StreamedCascade)
        assert card.model.streams is not None
        assert (model.streams.n_streams, card.model.streams.n_streams) == (n, n)
        assert card.objective["inner"]["kind"] == "telescopic"
        assert card.trained_depths == (1, 2, 3, 4, 5)
        lines = [json.loads(line) for line in (run.output_dir / "history.jsonl").read_text().splitlines()]
        assert {line["n_streams"] for line in lines} == {n}
        rates = [line["lr"] / run.arm.training.lr for line in lines]
        assert rates[:3] == [0.5, 1.0, 1.0]  # every expansion warms up again


@pytest.mark.parametrize(("replication", "sources"), [("cyclic", (0, 1, 0, 1)), ("block", (0, 0, 1, 1))])
def test_an_expansion_starts_from_the_model_before_it(
    base: TrainingRun, tmp_path: Path, replication: str, sources: tuple[int, ...]
) -> None:
    run_training(two := _run(base, _two(), tmp_path / "two"), lambda _: None)
    arm = hidden_arm(telescopic(), n_streams=4, layers=LAYERS)
    settings = arm.objective.model_copy(update={"replication": replication})
    objective = build_objective(arm.model_copy(update={"objective": settings}), VOCAB, 0)
    objective.start(model := objective.new_model(), two.output_dir)
    assert isinstance(model, StreamedCascade)
    before = load_tensors(two.output_dir / "model.safetensors")
    old = [before[name] for name in ("embeddings.0.weight", "stream_embeddings.0.0.weight")]
    assert not torch.equal(*old)
    tables = [model.embeddings[0].weight, *(own[0].weight for own in model.stream_embeddings)]
    assert all(torch.equal(table, old[source]) for table, source in zip(tables, sources, strict=True))
    blocks = {name: tensor for name, tensor in before.items() if name.startswith(("blocks.", "exits."))}
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in blocks.items())
    kept = objective.moments(two.output_dir)
    first_copy = {"cyclic": "stream_embeddings.0", "block": "stream_embeddings.1"}[replication]
    assert {name.rsplit(".", 3)[0] for name in kept if name.startswith("stream")} == {first_copy}


def test_the_batches_are_those_that_follow_the_base(base: TrainingRun, tmp_path: Path) -> None:
    """The whole lineage has read what one long run of the base would have."""
    long = replace(base, run_dir=tmp_path / "long-runs", output_dir=tmp_path / "long")
    long = replace(long, arm=base.arm.model_copy(update={"training": toy_training(steps=20)}))
    expected = run_training(long, lambda _: None).stream_fingerprint
    assert run_training(_run(base, _two(), tmp_path / "a"), lambda _: None).stream_fingerprint == expected
    control = hidden_arm(telescopic()).model_copy(update={"model": base.arm.model})
    assert run_training(_run(base, control, tmp_path / "b"), lambda _: None).stream_fingerprint == expected


def test_a_control_goes_on_where_the_base_stopped(base: TrainingRun, tmp_path: Path) -> None:
    """Ten steps and ten more, at a constant rate and with the moments kept, are twenty steps."""
    flat = toy_training(warmup_steps=0, cooldown_share=0.0)

    def run(arm: Arm, name: str, base_dir: Path | None) -> Path:
        chosen = replace(base, arm=arm, run_dir=tmp_path / f"{name}-runs", output_dir=tmp_path / name, base_dir=base_dir)
        run_training(chosen, lambda _: None)
        return chosen.output_dir

    fixed = telescopic({"kind": "explicit", "weights": (0.0, 0.0, 1.0, 0.0, 0.0)})  # the draw of depths starts anew: draw always 3
    from tests.toys import toy_arm

    arm = toy_arm(fixed)
    long = run(arm.model_copy(update={"training": toy_training(steps=20, warmup_steps=0, cooldown_share=0.0)}), "long", None)
    first = run(arm.model_copy(update={"training": flat}), "first", None)
    control = hidden_arm(fixed).model_copy(update={"model": arm.model, "training": flat})
    second = run(control, "second", first)
    left, right = load_tensors(long / "model.safetensors"), load_tensors(second / "model.safetensors")
    assert all(torch.equal(left[name], right[name]) for name in left)


def test_kept_moments_are_the_bases_and_new_tables_have_none(base: TrainingRun) -> None:
    saved = load_tensors(base.output_dir / "optimizer.safetensors")
    kept = build_objective(_two(optimizer="keep"), VOCAB, 0).moments(base.output_dir)
    assert kept.keys() == saved.keys()
    assert all(torch.equal(kept[name], saved[name]) for name in saved)
    assert not any(name.startswith("stream_embeddings") for name in kept)
    assert build_objective(_two(optimizer="fresh"), VOCAB, 0).moments(base.output_dir) == {}


def test_training_with_streams_lowers_the_loss(base: TrainingRun, tmp_path: Path) -> None:
    arm = _two().model_copy(update={"training": toy_training(steps=40, lr=0.01)})
    run_training(run := _run(base, arm, tmp_path), lambda _: None)
    losses = [json.loads(line)["full_nats"] for line in (run.output_dir / "history.jsonl").read_text().splitlines()]
    assert sum(losses[-5:]) < sum(losses[:5])
