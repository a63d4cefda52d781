"""Mixture of experts against the sparse blocks of `transformers`, with the same weights."""

from __future__ import annotations

import pytest
import torch

from components.models.experts import ExpertFeedForward, counting, row_imbalance
from tests.unit.models.test_experts import toy_input, toy_mixture

transformers = pytest.importorskip("transformers")


def test_softmax_gate_equals_qwen3_moe() -> None:
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock

    config = transformers.Qwen3MoeConfig(
        hidden_size=16, moe_intermediate_size=8, num_experts=6, num_experts_per_tok=2, norm_topk_prob=True, hidden_act="silu"
    )
    theirs = Qwen3MoeSparseMoeBlock(config)
    ours = toy_mixture(dtype=torch.float32, balance="auxiliary", n_shared=0)
    _copy(ours, theirs)
    _compare(ours, theirs)


def test_sigmoid_gate_with_bias_and_shared_experts_equals_deepseek_v3() -> None:
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

    config = transformers.DeepseekV3Config(
        hidden_size=16, moe_intermediate_size=8, n_routed_experts=6, num_experts_per_tok=2, n_shared_experts=2, n_group=1,
        topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.0, hidden_act="silu",
    )  # fmt: skip
    theirs = DeepseekV3MoE(config)
    ours = toy_mixture(dtype=torch.float32, gate="sigmoid", n_shared=2)
    _copy(ours, theirs)
    theirs.gate.e_score_correction_bias.copy_(ours.router.bias)
    gate, up = ours.shared.gate_up.weight.chunk(2)
    for name, weight in (("gate_proj", gate), ("up_proj", up), ("down_proj", ours.shared.down.weight)):
        getattr(theirs.shared_experts, name).weight.data.copy_(weight)
    _compare(ours, theirs)


def test_auxiliary_loss_equals_the_switch_loss_of_transformers_on_one_row() -> None:
    from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

    layer, x_ND = toy_mixture(dtype=torch.float32, balance="auxiliary"), toy_input(1, 40, dtype=torch.float32)[0]
    theirs = load_balancing_loss_func((x_ND @ layer.router.weight.T,), num_experts=6, top_k=2)
    own = row_imbalance(layer.router(x_ND), 1, layer.settings)[0]
    # theirs adds up the S choices of a row, ours takes their mean; float32
    torch.testing.assert_close(own, theirs / 2, rtol=1e-5, atol=0)
    with counting(layer, 1):
        layer(x_ND[None])
        torch.testing.assert_close(layer.imbalance, own * layer.settings.balance_weight)


def _copy(ours: ExpertFeedForward, theirs: torch.nn.Module) -> None:
    theirs.gate.weight.data.copy_(ours.router.weight)
    theirs.experts.gate_up_proj.data.copy_(ours.gate_up.weight)
    theirs.experts.down_proj.data.copy_(ours.down.weight)


def _compare(ours: ExpertFeedForward, theirs: torch.nn.Module) -> None:
    results = []
    for module in (ours, theirs):
        x = toy_input(dtype=torch.float32).requires_grad_()
        out = module(x)
        (out * toy_input(seed=2, dtype=torch.float32)).sum().backward()
        results.append((out, x.grad))
    router = ours.router.weight.grad, theirs.gate.weight.grad
    down = ours.down.weight.grad, theirs.experts.down_proj.grad
    for own, reference in (*zip(*results, strict=True), router, down):
        torch.testing.assert_close(own, reference, rtol=1e-4, atol=1e-5)  # float32, sums of tens of terms in another order
