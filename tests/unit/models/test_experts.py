"""Mixture of experts against a slow loop over rows, and its balance against its definitions."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from components.config.experts import Experts
from components.models.experts import ExpertFeedForward, ExpertWeights, Imbalance, Router, counting, row_imbalance
from tests.toys import gradients, largest_difference

# float64, sums of a few dozen terms in another order
TOLERANCE = 1e-12

VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "sigmoid": {"gate": "sigmoid"},
    "auxiliary": {"balance": "auxiliary"},
    "no shared": {"n_shared": 0},
    "two shared, one chosen": {"n_shared": 2, "top_k": 1},
    "all chosen": {"top_k": 6},
    "one expert": {"n_experts": 1, "top_k": 1},
}  # fmt: skip


def toy_experts(**changes: Any) -> Experts:
    defaults = {"n_experts": 6, "top_k": 2, "d_inner": 8, "n_shared": 1, "gate": "softmax"}
    return Experts.model_validate({**defaults, "balance": "bias", "balance_weight": 0.01, **changes})


def toy_mixture(seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> ExpertFeedForward:
    """A mixture of width 16 with drawn weights, its bias too."""
    layer = ExpertFeedForward(16, toy_experts(**changes)).to(dtype)
    generator = torch.Generator().manual_seed(seed)
    for tensor in (*layer.parameters(), *([] if layer.router.bias is None else [layer.router.bias])):
        tensor.data.copy_(0.3 * torch.randn(tensor.shape, generator=generator, dtype=torch.float64))
    return layer


def toy_input(rows: int = 3, length: int = 10, seed: int = 1, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(rows, length, 16, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def slow_mixture(layer: ExpertFeedForward, x_BQD: Tensor) -> Tensor:
    """One row at a time, one expert at a time."""
    settings, outputs = layer.settings, []
    for x in x_BQD.flatten(0, 1):
        logits = layer.router.weight @ x
        scores = torch.softmax(logits, 0) if settings.gate == "softmax" else torch.sigmoid(logits)
        bias = torch.zeros_like(scores) if layer.router.bias is None else layer.router.bias
        ranked = [(-float((scores[e] + bias[e]).detach()), e) for e in range(settings.n_experts)]
        chosen = [e for _, e in sorted(ranked)[: settings.top_k]]
        total, out = sum(scores[e] for e in chosen), torch.zeros_like(x)
        for e in chosen:
            gate, up = (layer.gate_up.weight[e] @ x).chunk(2)
            out = out + scores[e] / total * (layer.down.weight[e] @ (gate * torch.sigmoid(gate) * up))
        if layer.shared is not None:
            gate, up = (layer.shared.gate_up.weight @ x).chunk(2)
            out = out + layer.shared.down.weight @ (gate * torch.sigmoid(gate) * up)
        outputs.append(out)
    return torch.stack(outputs).view_as(x_BQD)


@pytest.mark.parametrize("variant", VARIANTS)
def test_equals_a_loop_over_rows_in_output_and_gradients(variant: str) -> None:
    layer = toy_mixture(**VARIANTS[variant])
    results = []
    for forward in (layer, lambda x: slow_mixture(layer, x)):
        layer.zero_grad()
        x = toy_input().requires_grad_()
        out = forward(x)
        (out * toy_input(seed=2)).sum().backward()
        found = {name: grad for name, grad in gradients(layer).items() if bool(grad.any())}
        results.append({"output": out.detach(), "input": x.grad, **found})
    assert largest_difference(*results) < TOLERANCE


def test_equal_scores_go_to_the_lower_indices() -> None:
    router = Router(16, toy_experts(n_experts=40, top_k=3))
    torch.nn.init.zeros_(router.weight)
    assert router(toy_input().flatten(0, 1).float()).chosen_NS.unique().tolist() == [0, 1, 2]


def test_bias_chooses_but_does_not_weigh() -> None:
    layer, x_ND = toy_mixture(), toy_input().flatten(0, 1)
    before = layer.router(x_ND)
    layer.router.bias[4] += 100.0
    after = layer.router(x_ND)
    assert bool((after.chosen_NS[:, 0] == 4).all())
    kept = before.scores_NE.gather(1, after.chosen_NS)
    torch.testing.assert_close(after.weights_NS, kept / kept.sum(dim=1, keepdim=True), atol=0, rtol=0)


def test_an_expert_without_rows_gets_a_gradient_of_zero() -> None:
    layer = toy_mixture()
    layer.router.bias.zero_()[5] = -100.0
    layer(toy_input()).sum().backward()
    assert not bool(layer.gate_up.weight.grad[5].any())
    assert bool(layer.gate_up.weight.grad[:5].flatten(1).any(dim=1).all())


@pytest.mark.parametrize("loads", [(5, 0, 9, 2), (16, 0, 0, 0), (0, 0, 0, 16)])
def test_grouped_product_equals_the_loop_over_segments(loads: tuple[int, ...]) -> None:
    weights = ExpertWeights(4, 24, 16)
    torch.nn.init.normal_(weights.weight, generator=torch.Generator().manual_seed(0))
    loads_E, rounded = torch.tensor(loads), ExpertWeights(4, 24, 16)
    rounded.load_state_dict({"weight": weights.weight.bfloat16().float()})
    results = []
    for module, precision in ((weights, torch.bfloat16), (rounded, torch.float32)):
        x = toy_input(1, 16, dtype=torch.float32)[0].bfloat16().float().requires_grad_()
        with torch.autocast("cpu", enabled=precision == torch.bfloat16):
            out = module(x, loads_E)
        assert out.dtype == precision
        (out.float() * torch.arange(24.0)).sum().backward()
        results.append((out.float(), x.grad, module.weight.grad))
    for grouped, loop in zip(*results, strict=True):
        torch.testing.assert_close(grouped, loop, rtol=2**-7, atol=2**-7 * float(loop.detach().abs().max()))  # bfloat16 has 8 bits


def test_odd_widths_work_in_bfloat16() -> None:
    layer = toy_mixture(dtype=torch.float32, d_inner=7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reduced = layer(toy_input(dtype=torch.float32))
    torch.testing.assert_close(reduced, layer(toy_input(dtype=torch.float32)), rtol=0.05, atol=0.05)


def test_autocast_does_not_change_where_rows_go() -> None:
    router, x_ND = toy_mixture(dtype=torch.float32, n_experts=40, top_k=8).router, toy_input(dtype=torch.float32).flatten(0, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        reduced = router(x_ND)
    assert torch.equal(reduced.chosen_NS, router(x_ND).chosen_NS)
    assert reduced.weights_NS.dtype == torch.float32


def test_bias_moves_towards_equal_load() -> None:
    layer = toy_mixture(balance_weight=0.5, n_experts=4)
    before = layer.router.bias.clone()
    layer.move_bias(torch.tensor([10, 10, 3, 17]))  # mean 10
    torch.testing.assert_close(layer.router.bias - before, torch.tensor([0.0, 0.0, 0.5, -0.5], dtype=torch.float64))
    moved = layer.router.bias.clone()
    layer.move_bias(torch.zeros(4, dtype=torch.int64))
    assert torch.equal(layer.router.bias, moved)


def test_steps_of_the_bias_even_the_load_out() -> None:
    layer, x = toy_mixture(n_experts=6, top_k=2, balance_weight=0.01), toy_input(8, 64)
    layer.router.bias.zero_()

    def load() -> Tensor:
        with counting(layer, 8):
            layer(x)
        return layer.load_E.clone()

    first = load()
    for _ in range(60):
        layer.move_bias(load())
    assert int(first.sum()) == int(load().sum()) == 8 * 64 * 2
    assert int(load().max()) < 1.15 * 8 * 64 * 2 / 6 < int(first.max())


def test_load_does_not_count_without_gradients_or_outside_a_step() -> None:
    layer = toy_mixture()
    layer(toy_input())
    assert int(layer.load_E.sum()) == 0
    with counting(layer, 3):
        with torch.no_grad():
            layer(toy_input())
        assert int(layer.load_E.sum()) == 0
        layer(toy_input())
        layer(toy_input())
    assert int(layer.load_E.sum()) == 2 * 30 * 2


def test_row_imbalance_is_its_definition() -> None:
    layer, x = toy_mixture(balance="auxiliary", gate="sigmoid"), toy_input(2, 7)
    routing = layer.router(x.flatten(0, 1))
    for row in range(2):
        chosen = routing.chosen_NS[7 * row : 7 * (row + 1)].flatten().tolist()
        scores = routing.scores_NE[7 * row : 7 * (row + 1)]
        expected = sum(6 * chosen.count(e) / 14 * float((scores[:, e] / scores.sum(1)).mean().detach()) for e in range(6))
        assert float(row_imbalance(routing, 2, layer.settings)[row].detach()) == pytest.approx(expected, rel=1e-12)
    even = Router(16, toy_experts(balance="auxiliary", top_k=6))
    torch.nn.init.zeros_(even.weight)
    assert float(row_imbalance(even(toy_input(1).flatten(0, 1).float()), 1, even.settings)[0].detach()) == pytest.approx(
        1.0, rel=1e-6
    )


def test_auxiliary_loss_does_not_depend_on_how_a_step_is_cut() -> None:
    layer, x = toy_mixture(balance="auxiliary", balance_weight=0.3), toy_input(4)

    def gradient(cuts: list[int]) -> Tensor:
        layer.zero_grad()
        with counting(layer, 4):
            for part in x.split(cuts):
                imbalance = Imbalance()
                out = layer(part)
                imbalance.take(layer)
                (0.0 * imbalance.attached(out).sum()).backward()
        return layer.router.weight.grad.clone()

    layer.zero_grad()
    mean = row_imbalance(layer.router(x.flatten(0, 1)), 4, layer.settings).mean()
    (0.3 * mean).backward()
    expected = layer.router.weight.grad.clone()
    assert float(expected.abs().max()) > 1e-4
    for cuts in ([4], [2, 2], [1, 3], [1, 1, 1, 1]):
        torch.testing.assert_close(gradient(cuts), expected, rtol=1e-10, atol=1e-14)


def test_more_chosen_than_there_are_is_refused() -> None:
    with pytest.raises(ValueError, match="at most n_experts = 6"):
        toy_experts(top_k=7)
