"""Training a mixture of experts: balance does not depend on how a step is cut, and resuming is exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from components.models.experts import expert_layers
from components.models.files import load_model, load_tensors
from components.objectives.base import build_objective
from components.training.run import TrainingRun, run_training
from components.training.step import TrainState, train_step
from tests.toys import VOCAB, gradients, largest_difference, telescopic, toy_arm, toy_batch, toy_run, toy_training
from tests.unit.models.test_experts import toy_experts

MLMS: dict[str, Any] = {"kind": "fixed_exits", "distill_weight": 0.3}


def expert_state(objective: dict[str, Any], **changes: Any) -> tuple[TrainState, Any]:
    arm = toy_arm(objective, experts=toy_experts(**changes))
    built = build_objective(arm, VOCAB, 0)
    model = built.new_model()
    built.start(model, None)
    return TrainState.fresh(model.double(), toy_training()), built


def expert_run(root: Path, **changes: Any) -> TrainingRun:
    run = toy_run(root, telescopic(), **changes)
    return replace(run, arm=toy_arm(telescopic(), experts=toy_experts()))


@pytest.mark.parametrize("balance", ["bias", "auxiliary"])
def test_a_step_does_not_depend_on_accumulation(balance: str) -> None:
    results = []
    for micro_rows in (4, 2, 1):
        state, objective = expert_state(telescopic(), balance=balance, balance_weight=0.2)
        logged = [train_step(state, toy_batch((12, 7, 12, 3), seed=s), objective, toy_training(), micro_rows, 0) for s in range(3)]
        results.append((gradients(state.model), state.model.state_dict(), [line["expert_load"] for line in logged]))
    for found, weights, loads in results[1:]:
        assert largest_difference(found, results[0][0]) < 1e-12  # float64
        # the first steps of AdamW divide by gradients, of which some are tiny
        assert largest_difference(weights, results[0][1]) < 1e-8
        assert loads == results[0][2]
    biases = [layer.router.bias for layer in expert_layers(state.model)]
    assert all(bias is None if balance == "auxiliary" else bool(bias.any()) for bias in biases)


@pytest.mark.parametrize("balance", ["bias", "auxiliary"])
def test_backward_schedules_of_fixed_exits_have_equal_gradients(balance: str) -> None:
    found = []
    for schedule in ("joint", "per_exit", "separate"):
        state, objective = expert_state({**MLMS, "backward": schedule}, balance=balance, balance_weight=0.2)
        train_step(state, toy_batch(), objective, toy_training(), 4, 0)
        found.append(gradients(state.model))
    assert largest_difference(found[0], found[1]) < 1e-12
    assert largest_difference(found[0], found[2]) < 1e-12


def test_auxiliary_loss_has_a_gradient_in_every_router_that_ran() -> None:
    found = []
    for weight in (1e-9, 0.5):
        state, objective = expert_state(telescopic(anchor_weight=0.0), balance="auxiliary", balance_weight=weight)
        train_step(state, toy_batch(), objective, toy_training(), 4, 0)
        found.append(gradients(state.model))
    (depth,) = objective.depths_at(0)
    routers = [f"blocks.{block}.ffn.router.weight" for block in range(depth)]
    assert {name for name in found[0] if "router" in name} == set(routers)
    assert all(float((found[1][name] - found[0][name]).abs().max()) > 1e-6 for name in routers)


def test_blocks_that_no_pass_ran_keep_weights_and_bias() -> None:
    state, objective = expert_state(telescopic(anchor_weight=0.0))
    before = {name: tensor.clone() for name, tensor in state.model.state_dict().items()}
    (depth,) = objective.depths_at(0)
    assert depth < 5
    train_step(state, toy_batch(), objective, toy_training(), 4, 0)
    after = state.model.state_dict()
    for block in range(5):
        same = [torch.equal(after[n], before[n]) for n in after if n.startswith(f"blocks.{block}.ffn.router")]
        assert same == [block >= depth] * 2


def test_resumed_training_ends_with_the_same_bytes(tmp_path: Path) -> None:
    whole, cut = (expert_run(tmp_path / name) for name in ("whole", "cut"))
    run_training(whole, lambda _: None)

    class KilledError(Exception):
        pass

    def kill(progress: Any) -> None:
        if progress.step == 5:
            raise KilledError

    with pytest.raises(KilledError):
        run_training(cut, kill)
    run_training(cut, lambda _: None)
    files = [run.output_dir / "model.safetensors" for run in (whole, cut)]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert bool(load_tensors(files[0])["blocks.0.ffn.router.bias"].any())
    model, card = load_model(whole.output_dir)
    assert card.model.experts == toy_experts()
    assert torch.equal(expert_layers(model)[0].router.bias, load_tensors(files[0])["blocks.0.ffn.router.bias"])
    assert "expert_load" in (whole.output_dir / "history.jsonl").read_text()
