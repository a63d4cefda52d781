"""Mixtures of experts inside the cascade: every depth, with streams, with KV-Mirror, and what they cost."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from components.config.schema import Segment
from components.models.cascade import Cascade
from components.models.experts import expert_layers
from components.models.sizes import idle_parameters, prefix_flops, prefix_parameters, stored_parameters
from components.models.stream_sizes import block_rows, visible_keys
from components.models.streams import StreamedCascade, build_cascade
from tests.toys import VOCAB, gradients, largest_difference, toy_model, toy_tokens
from tests.unit.models.stream_reference import reference_logits
from tests.unit.models.test_experts import toy_experts
from tests.unit.models.test_streams import toy_streamed, toy_streams

# float64, a few hundred terms
TOLERANCE = 1e-11

MIRRORED: dict[str, Any] = {
    "layers": ("intra", "cross_full", "intra", "cross_full", "intra", "intra"), "n_mirrored": 2,
}  # fmt: skip
SEGMENTS = (Segment(n_blocks=2, d_model=16), Segment(n_blocks=4, d_model=24))


def expert_streamed(n_streams: int = 3, dtype: torch.dtype = torch.float64, **changes: Any) -> StreamedCascade:
    model = {"segments": SEGMENTS, "experts": toy_experts(**changes)}
    streamed = toy_streamed(dtype=dtype, model=model, n_streams=n_streams, **MIRRORED)
    for i, layer in enumerate(expert_layers(streamed)):
        if layer.router.bias is not None:
            layer.router.bias.copy_(0.2 * torch.randn(6, generator=torch.Generator().manual_seed(i)))
    return streamed


@pytest.mark.parametrize("depth", [1, 3, 4, 6])
@pytest.mark.parametrize("n", [1, 2, 3])
def test_every_depth_equals_the_dense_reference_with_any_streams(n: int, depth: int) -> None:
    model, tokens = expert_streamed(), toy_tokens(2, 7)
    with model.running(n), torch.no_grad():
        expected = reference_logits(model.state_dict(), model.settings, tokens, depth, n)
        torch.testing.assert_close(model(tokens, depth), expected, atol=TOLERANCE, rtol=0)


def test_skipping_mirrored_streams_changes_neither_logits_nor_gradients() -> None:
    model, tokens, results = expert_streamed(), toy_tokens(2, 7), []
    for model.skips_streams in (True, False):
        model.zero_grad()
        logits = model(tokens, 6)
        logits.square().mean().backward()
        results.append((logits.detach(), {k: g for k, g in gradients(model).items() if bool(g.any())}))
    torch.testing.assert_close(results[0][0], results[1][0], atol=TOLERANCE, rtol=0)
    assert largest_difference(results[0][1], results[1][1]) < TOLERANCE


def test_a_prefix_is_the_model_of_its_blocks_alone() -> None:
    settings = toy_model(experts=toy_experts(balance="auxiliary"))
    whole, tokens = Cascade(settings, VOCAB), toy_tokens()
    whole.init_weights(0)
    alone = Cascade(settings.prefix(3), VOCAB)
    alone.load_state_dict({name: tensor for name, tensor in whole.state_dict().items() if name in alone.state_dict()})
    assert torch.equal(whole(tokens, 3), alone(tokens, 3))


def test_residual_outputs_of_experts_start_small() -> None:
    model = Cascade(toy_model(experts=toy_experts(n_experts=64, d_inner=32)), VOCAB)
    model.init_weights(0)
    layer = expert_layers(model)[0]
    for module in (layer.down, layer.shared.down):
        assert float(module.weight.detach().std()) == pytest.approx(0.2 / 10**0.5, rel=0.1)
    assert float(layer.gate_up.weight.detach().std()) == pytest.approx(0.2, rel=0.1)


@pytest.mark.parametrize("n_shared", [0, 2])
@pytest.mark.parametrize("depth", [1, 3, 5])
def test_parameters_are_counted(depth: int, n_shared: int) -> None:
    settings = toy_model(experts=toy_experts(n_shared=n_shared))
    model = Cascade(settings.prefix(depth), VOCAB)
    other_exits = sum(p.numel() for out in list(model.exits)[:-1] for p in out.parameters())
    counted = sum(p.numel() for p in model.parameters()) - other_exits
    assert prefix_parameters(settings, VOCAB, depth) == counted
    idle = sum(4 * (layer.gate_up.weight[0].numel() + layer.down.weight[0].numel()) for layer in expert_layers(model))
    assert sum(idle_parameters(shape) for shape in settings.blocks[:depth]) == idle
    if depth == 5:
        assert stored_parameters(settings, VOCAB) == sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize("depth", [2, 5, 6])
@pytest.mark.parametrize("n", [1, 3])
def test_matrix_flops_equal_a_counted_run(n: int, depth: int) -> None:
    """Whatever experts the rows go to: every row goes to as many."""
    model = expert_streamed(n, dtype=torch.float32)
    with FlopCounterMode(display=False) as counter:
        model(toy_tokens(1, 12), depth)
    products = sum(f for op, f in counter.get_flop_counts()["Global"].items() if str(op) in ("aten.mm", "aten.addmm"))
    attention = 0
    for block in range(1, depth + 1):
        asking = block_rows(model.streams, block, depth).asking
        keys = visible_keys(model.streams.layers[block - 1], n, asking, 12, model.streams.local)
        attention += 4 * model.settings.blocks[block - 1].d_queries * keys // 12
    assert prefix_flops(model.settings, VOCAB, depth, 12) - attention == products / 12


def test_bfloat16_runs_close_to_float32() -> None:
    model, tokens = expert_streamed(dtype=torch.float32, d_inner=8), toy_tokens()
    with torch.no_grad():
        exact = model(tokens, 6)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            reduced = model(tokens, 6).float()
    assert float((reduced - exact).abs().mean() / exact.abs().mean()) < 0.03  # 8 bits, over six blocks


def test_experts_take_the_place_of_the_dense_width() -> None:
    settings = toy_model().model_dump()
    dense = {**settings, "segments": ({"n_blocks": 2, "d_model": 16, "d_inner": 40},)}
    with pytest.raises(ValueError, match="experts take its place"):
        type(toy_model()).model_validate({**dense, "experts": toy_experts()})
    without_ratio = {**settings, "ffn_ratio": None, "experts": toy_experts()}
    assert type(toy_model()).model_validate(without_ratio).blocks[0].d_inner == 3 * 8


def test_expansion_keeps_experts_and_their_bias() -> None:
    from components.models.expansion import expand_weights, table_sources

    small, large = (build_cascade(toy_model(experts=toy_experts(), streams=s), VOCAB) for s in (None, toy_streams(n_streams=2)))
    small.init_weights(0)
    expert_layers(small)[2].router.bias.copy_(torch.arange(6.0))
    large.load_state_dict(expand_weights(small.state_dict(), table_sources(1, 2, "cyclic")))
    assert expert_layers(large)[2].router.bias.tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
