"""A twin on disk is a stand-alone model: the weights it always had, and no read-out but its own."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from components.config.loader import load_study, resolve_arm
from components.models.cascade import Cascade
from components.models.files import load_model, load_tensors
from components.models.sizes import prefix_parameters
from components.objectives.twin import Objective
from components.profiling.plan import plan_study
from components.training.run import run_training
from tests.toys import ROOT, VOCAB, toy_model, toy_objective, toy_run, toy_tokens, toy_training

TWIN = {"kind": "twin", "exit": 3}


@pytest.mark.parametrize("exit_number", [1, 2, 3])
def test_its_file_holds_what_a_stand_alone_model_has(tmp_path: Path, exit_number: int) -> None:
    run = toy_run(tmp_path, {"kind": "twin", "exit": exit_number})
    run_training(run, lambda _: None)
    tensors = load_tensors(run.output_dir / "model.safetensors")
    stored = sum(tensor.numel() for tensor in tensors.values())
    alone = prefix_parameters(run.arm.model, VOCAB, run.arm.model.n_blocks)
    assert stored == alone
    assert toy_objective({"kind": "twin", "exit": exit_number}).parameter_counts() == (alone, alone)


def test_a_seed_gives_the_weights_that_it_gave_with_all_read_outs() -> None:
    objective = toy_objective(TWIN)
    assert isinstance(objective, Objective)
    whole, twin = Cascade(objective.model, VOCAB), objective.new_model()
    whole.init_weights(0)
    objective.start(twin, None)
    kept = twin.state_dict()
    assert set(whole.state_dict()) - set(kept) == {f"exits.{i}.{part}.weight" for i in (0, 1) for part in ("norm", "head")}
    assert all(torch.equal(whole.state_dict()[name], tensor) for name, tensor in kept.items())


def test_loaded_its_own_depth_is_what_was_trained_and_others_know_nothing(tmp_path: Path) -> None:
    run = toy_run(tmp_path, TWIN)
    run_training(run, lambda _: None)
    model, _ = load_model(run.output_dir)
    tensors = load_tensors(run.output_dir / "model.safetensors")
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in tensors.items())
    tokens = toy_tokens()
    with torch.no_grad():
        for depth in (1, 2, 3, 4):
            nll = -model(tokens, depth).log_softmax(-1)
            torch.testing.assert_close(nll, torch.full_like(nll, math.log(VOCAB)))
        assert model(tokens, 5).std() > 0.01


def test_a_twin_may_have_any_shape_of_one_segment(tmp_path: Path) -> None:
    shape = {"segments": ({"n_blocks": 3, "d_model": 40},)}
    arm = resolve_arm(
        "twin", {"objective": {"kind": "twin", "exit": 1}, "model": shape}, toy_model(), toy_training(), problems := []
    )
    assert arm is not None, problems
    run = replace(toy_run(tmp_path, TWIN), arm=arm)
    run_training(run, lambda _: None)
    model, card = load_model(run.output_dir)
    assert (model.n_blocks, model.exit_at(3).head.in_features, card.trained_depths) == (3, 40, (3,))
    assert sum(tensor.numel() for tensor in model.state_dict().values()) == prefix_parameters(arm.model, VOCAB, 3)


def test_the_papers_full_twin_has_198_million_parameters() -> None:
    plans = {plan.name: plan for plan in plan_study(load_study(ROOT / "scales" / "proxy-200m.yaml"))}
    assert plans["twin-full"].parameters == 241_981_248 - (320 + 576) * (49152 + 1)  # without two norms and heads
    assert plans["tlm-uniform"].parameters == 241_981_248
