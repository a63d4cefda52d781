"""What each objective adds to the gradient, against autograd of the explicit sum in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from components.models.cascade import Cascade
from components.objectives.base import TokenBatch
from tests.toys import gradients, largest_difference, telescopic, toy_cascade, toy_objective, toy_token_batch

# float64, a few hundred terms: rounding is far below
TOLERANCE = 1e-12


def _nll(model: Cascade, batch: TokenBatch, depth: int) -> torch.Tensor:
    """Mean NLL over the labels that count, from whole logits."""
    return F.cross_entropy(model(batch.tokens_BT, depth).flatten(0, 1), batch.labels_BT.flatten())


def _soft(model: Cascade, batch: TokenBatch, depth: int) -> torch.Tensor:
    """Mean soft cross-entropy of F_depth to F_N, which gets no gradient."""
    teacher = torch.softmax(model(batch.tokens_BT, model.n_blocks).detach(), -1)
    per_token = -(teacher * torch.log_softmax(model(batch.tokens_BT, depth), -1)).sum(-1)
    return per_token[batch.labels_BT != -100].mean()


def _explicit(model: Cascade, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    found = gradients(model)
    model.zero_grad()
    return found


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
@pytest.mark.parametrize(("anchor", "distill"), [(0.7, 0.0), (0.0, 0.0), (0.7, 0.3), (0.0, 0.3)])
def test_telescopic_gradient_is_that_of_the_explicit_weighted_sum(depth: int, anchor: float, distill: float) -> None:
    model, batch = toy_cascade(), toy_token_batch((12, 5, 9))
    weights = tuple(float(k == depth) for k in range(1, 6))
    settings = telescopic({"kind": "explicit", "weights": weights}, prefix_weight=1.3, anchor_weight=anchor, distill_weight=distill)
    prefix = _nll(model, batch, depth)
    if distill and depth < 5:
        prefix = (1 - distill) * prefix + distill * _soft(model, batch, depth)
    loss = 1.3 * prefix
    if anchor:
        loss = loss + anchor * _nll(model, batch, 5)
    expected = _explicit(model, loss)
    sums = toy_objective(settings).backward(model, batch, step=0)
    assert largest_difference(gradients(model), expected) < TOLERANCE
    assert float(sums["loss"]) * batch.scale == pytest.approx(float(loss), rel=1e-12)


@pytest.mark.parametrize("backward", ["joint", "per_exit", "separate"])
@pytest.mark.parametrize("distill", [0.0, 0.3])
def test_fixed_exits_gradient_is_that_of_the_explicit_sum_however_it_is_walked(backward: str, distill: float) -> None:
    model, batch = toy_cascade(junction_norm=True), toy_token_batch((12, 5, 9))
    loss = _nll(model, batch, 5)
    for depth in (2, 4):
        loss = loss + (1 - distill) * _nll(model, batch, depth)
        if distill:
            loss = loss + distill * _soft(model, batch, depth)
    expected = _explicit(model, loss)
    settings: dict[str, Any] = {"kind": "fixed_exits", "distill_weight": distill, "backward": backward}
    sums = toy_objective(settings, junction_norm=True).backward(model, batch, step=0)
    assert largest_difference(gradients(model), expected) < TOLERANCE
    assert float(sums["loss"]) * batch.scale == pytest.approx(float(loss), rel=1e-12)


def test_sandwich_sums_smallest_random_and_full() -> None:
    model, batch, objective = toy_cascade(), toy_token_batch(), toy_objective(telescopic("sandwich"))
    smallest, drawn = objective.depths_at(3)
    expected = _explicit(model, _nll(model, batch, smallest) + _nll(model, batch, drawn) + _nll(model, batch, 5))
    objective.backward(model, batch, step=3)
    assert largest_difference(gradients(model), expected) < TOLERANCE


@pytest.mark.parametrize(("exit_number", "depth"), [(1, 2), (2, 4), (3, 5)])
def test_twin_is_the_cascade_prefix_trained_alone(exit_number: int, depth: int) -> None:
    objective = toy_objective({"kind": "twin", "exit": exit_number})
    assert objective.model.n_blocks == depth
    assert objective.depths_at(0) == (depth,)
    model, batch = toy_cascade(), toy_token_batch()
    alone = Cascade(objective.model, model.vocab_size).double()
    alone.load_state_dict({name: model.state_dict()[name] for name in alone.state_dict()})
    expected = _explicit(model, _nll(model, batch, depth))
    objective.backward(alone, batch, step=0)
    assert largest_difference(gradients(alone), expected) < TOLERANCE


def test_prefix_pass_needs_no_more_memory_than_the_anchor_pass() -> None:
    """Two separate passes: what autograd keeps for the backward never adds up."""
    model, batch = toy_cascade(), toy_token_batch()

    def peak(objective_settings: dict[str, Any]) -> int:
        held, peak = 0, 0

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal held, peak
            held += tensor.numel()
            peak = max(peak, held)
            return tensor

        def unpack(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal held
            held -= tensor.numel()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            toy_objective(objective_settings).backward(model, batch, 0)
        return peak

    full = (0.0, 0.0, 0.0, 0.0, 1.0)
    both = peak(telescopic({"kind": "explicit", "weights": full}))
    one = peak(telescopic({"kind": "explicit", "weights": full}, anchor_weight=0.0))
    assert both == one
