"""Head-only repair: the trunk stays byte for byte, the trained depths bit for bit, the others get better."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from components.config.experts import Experts
from components.config.problems import Problem
from components.config.schema import Arm
from components.models.files import load_model
from components.models.repaired import Repaired
from components.objectives.repair import repair_settings
from components.training.run import TrainingRun, run_training
from tests.toys import telescopic, toy_arm, toy_run, toy_tokens, toy_training
from tests.unit.models.test_experts import toy_experts

MLMS = {"kind": "fixed_exits", "distill_weight": 0.0, "backward": "joint"}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> TrainingRun:
    run = toy_run(tmp_path_factory.mktemp("base"), MLMS)
    run_training(run, lambda _: None)
    return run


def _repair_run(base: TrainingRun, part: str, root: Path, steps: int = 10) -> TrainingRun:
    settings = repair_settings(base.arm, "base", part)  # type: ignore[arg-type]
    training = toy_training(steps=steps, lr=0.01)
    arm = Arm(name="repaired", base="base", model=base.arm.model, training=training, objective=settings)
    return replace(base, arm=arm, run_dir=root / "runs", output_dir=root / "model", base_dir=base.output_dir)


@pytest.mark.parametrize("part", ["norm", "affine", "head", "block"])
def test_trunk_and_trained_depths_are_untouched_and_the_others_improve(base: TrainingRun, part: str, tmp_path: Path) -> None:
    run = _repair_run(base, part, tmp_path, steps=40)
    run_training(run, lambda _: None)
    trained, _ = load_model(base.output_dir)
    repaired, card = load_model(run.output_dir)
    assert isinstance(repaired, Repaired)
    assert card.trained_depths == (1, 2, 3, 4, 5)
    weights = repaired.state_dict()
    assert all(torch.equal(weights[name], tensor) for name, tensor in trained.state_dict().items())
    tokens = toy_tokens(4, 12)
    with torch.no_grad():
        for depth in (2, 4, 5):
            assert torch.equal(repaired(tokens, depth), trained(tokens, depth))
        for depth in (1, 3):
            assert not torch.equal(repaired(tokens, depth), trained(tokens, depth))
    lines = (run.output_dir / "history.jsonl").read_text().splitlines()
    assert _loss(lines[-1]) < _loss(lines[0])


@pytest.mark.parametrize(
    ("objective", "kept"),
    [
        ({"kind": "layerdrop", "drop_probability": 0.2}, (5,)),
        (telescopic("exitgrid"), (2, 4, 5)),
        ({"kind": "twin", "exit": 2}, (4,)),
    ],
)
def test_any_trained_arm_can_be_repaired(tmp_path: Path, objective: dict[str, Any], kept: tuple[int, ...]) -> None:
    base = toy_run(tmp_path / "base", objective)
    run_training(base, lambda _: None)
    run = _repair_run(base, "head", tmp_path / "repair")
    run_training(run, lambda _: None)
    (trained, _), (repaired, _) = load_model(base.output_dir), load_model(run.output_dir)
    weights, tokens = repaired.state_dict(), toy_tokens(4, 12)
    assert all(torch.equal(weights[name], tensor) for name, tensor in trained.state_dict().items())
    with torch.no_grad():
        for depth in range(1, trained.n_blocks + 1):
            assert torch.equal(repaired(tokens, depth), trained(tokens, depth)) == (depth in kept)


def _loss(line: str) -> float:
    import json

    return float(json.loads(line)["loss_nats"])


@pytest.mark.parametrize("part", ["norm", "affine", "head", "block"])
def test_a_repair_starts_as_the_raw_read_out(base: TrainingRun, part: str) -> None:
    trained, card = load_model(base.output_dir)
    repaired = Repaired(trained.settings, card.vocab_size, part, (1, 3))  # type: ignore[arg-type]
    repaired.load_state_dict(trained.state_dict(), strict=False)
    repaired.start_repairs(0)
    tokens = toy_tokens()
    with torch.no_grad():
        for depth in range(1, 6):
            assert torch.equal(repaired(tokens, depth), trained(tokens, depth))


def test_a_repair_resumes_exactly(base: TrainingRun, tmp_path: Path) -> None:
    straight, stopped = _repair_run(base, "block", tmp_path / "a"), _repair_run(base, "block", tmp_path / "b")
    run_training(straight, lambda _: None)

    def stop(progress: object) -> None:
        if progress.step == 5:  # type: ignore[attr-defined]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_training(stopped, stop)
    run_training(stopped, lambda _: None)
    assert (straight.output_dir / "model.safetensors").read_bytes() == (stopped.output_dir / "model.safetensors").read_bytes()


def test_added_parameters_are_those_the_model_really_has() -> None:
    from components.models.sizes import prefix_parameters
    from tests.toys import VOCAB, toy_model

    parts = (("norm", True), ("head", True), ("affine", False), ("block", False))
    for (part, replaced), experts in itertools.product(parts, (None, toy_experts())):
        model = Repaired(toy_model(experts=experts), VOCAB, part, (1, 3))  # type: ignore[arg-type]
        own = sum(p.numel() for p in model.repairs["3"].parameters())
        assert model.added_cost(3, 32)[0] == (0 if replaced else own)
        assert model.added_cost(4, 32) == (0, 0)
        assert prefix_parameters(model.settings, VOCAB, 3) > 0


@pytest.mark.parametrize("experts", [None, toy_experts()], ids=["dense", "experts"])
@pytest.mark.parametrize("part", ["norm", "affine", "head", "block"])
def test_planned_parameters_are_those_that_the_model_has_and_trains(part: str, experts: Experts | None) -> None:
    from components.objectives.base import build_objective
    from tests.toys import VOCAB

    base = toy_arm(MLMS, experts=experts)
    settings = repair_settings(base, "base", part)  # type: ignore[arg-type]
    objective = build_objective(base.model_copy(update={"objective": settings}), VOCAB, 0)
    model = objective.new_model()
    counts = sum(p.numel() for p in model.parameters()), sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert objective.parameter_counts() == counts


def test_an_arm_that_trains_every_depth_cannot_be_repaired() -> None:
    arm = toy_arm(telescopic("uniform"))
    (problem,) = repair_settings(arm, "toy", "head").problems(arm.model)
    assert "nothing to repair" in str(Problem(*problem))


@pytest.mark.parametrize("part", ["norm", "affine", "head", "block"])
@pytest.mark.parametrize(
    ("objective", "untrained"),
    [
        ({"kind": "twin", "exit": 3}, "k = 2, 4"),  # not even stored: nothing before a head of zeros gets a gradient
        ({"kind": "twin", "exit": 1}, None),
        ({"kind": "layerdrop", "drop_probability": 0.2}, "k = 2, 4"),
        (telescopic("exitgrid"), None),
    ],
)
def test_a_read_out_that_was_never_trained_is_only_replaced(objective: dict[str, Any], untrained: str | None, part: str) -> None:
    arm = toy_arm(objective)
    found = repair_settings(arm, "toy", part).problems(arm.model)  # type: ignore[arg-type]
    rule = f"keeps the read-out of a segment, and toy never trained that of {untrained}"
    assert found == ([] if untrained is None or part == "head" else [("part", part, rule, "use head")])
