"""LayerDrop: the mask is keyed by (seed, step), junctions stay, skipped blocks get nothing."""

from __future__ import annotations

import pytest
import torch

from components.objectives.layerdrop import Objective
from tests.toys import gradients, toy_cascade, toy_objective, toy_token_batch, toy_tokens


def _objective(p: float = 0.4, seed: int = 0) -> Objective:
    objective = toy_objective({"kind": "layerdrop", "drop_probability": p}, seed)
    assert isinstance(objective, Objective)
    return objective


def test_mask_depends_on_seed_and_step_alone() -> None:
    assert [_objective().skipped(step) for step in range(20)] == [_objective().skipped(step) for step in range(20)]
    assert [_objective(seed=1).skipped(step) for step in range(20)] != [_objective().skipped(step) for step in range(20)]


def test_each_block_is_skipped_as_often_as_asked() -> None:
    objective, n_steps = _objective(0.25), 4000
    counts = [0] * 5
    for step in range(n_steps):
        for depth in objective.skipped(step):
            counts[depth - 1] += 1
    assert counts == pytest.approx([1000] * 5, abs=4 * (n_steps * 0.25 * 0.75) ** 0.5)


def test_skipped_blocks_get_no_gradient_and_junctions_always_widen() -> None:
    model, objective, batch = toy_cascade(), _objective(), toy_token_batch()
    step = next(step for step in range(100) if {3, 5} <= set(objective.skipped(step)))  # the blocks right behind both junctions
    objective.backward(model, batch, step)
    found = gradients(model)
    for depth in range(1, 6):
        assert (f"blocks.{depth - 1}.attention.qkv.weight" in found) == (depth not in objective.skipped(step))
    assert {"embeddings.0.weight", "embeddings.1.weight", "embeddings.2.weight"} <= found.keys()


def test_skipping_a_block_is_the_identity_on_the_stream() -> None:
    model, tokens = toy_cascade(), toy_tokens()
    streams = dict(model.residuals(tokens, [1, 2], skipped=(2,)))
    assert torch.equal(streams[1], streams[2])


def test_expected_cost_is_the_mean_of_the_steps() -> None:
    objective = _objective(0.25)
    mean = sum(objective.step_flops(step, 32) for step in range(4000)) / 4000
    assert objective.expected_flops(32) == pytest.approx(mean, rel=0.02)  # 4,000 masks: standard error below 1 %
