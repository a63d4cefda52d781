"""Formulas of parameters and FLOPs against real models."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from components.config.loader import load_study
from components.models.cascade import Cascade
from components.models.sizes import prefix_flops, prefix_parameters, stored_parameters
from tests.toys import ROOT, VOCAB, toy_cascade, toy_model, toy_tokens


def test_paper_scale_has_the_papers_sizes_to_the_parameter() -> None:
    model = load_study(ROOT / "scales" / "proxy-200m.yaml").model
    # by hand, k = 11: 49,152 x 320 embedding slice, 11 blocks of 16 x 320^2 + 2 x 320, norm 320, head 320 x 49,152
    assert prefix_parameters(model, 49152, 11) == 2 * 49152 * 320 + 11 * (16 * 320**2 + 640) + 320 == 49_487_040
    assert [round(prefix_parameters(model, 49152, k) / 1e6, 1) for k in model.exits] == [49.5, 101.2, 197.9]
    assert round(stored_parameters(model, 49152) / 1e6) == 242


def test_formulas_equal_counted_parameters_at_every_depth() -> None:
    model = toy_model()
    for depth in range(1, 6):
        shape = model.prefix(depth)
        with torch.device("meta"):
            alone = Cascade(shape, VOCAB)
        unused = sum(p.numel() for out in list(alone.exits)[:-1] for p in out.parameters())
        assert prefix_parameters(model, VOCAB, depth) == sum(p.numel() for p in alone.parameters()) - unused
    assert stored_parameters(model, VOCAB) == sum(p.numel() for p in toy_cascade().parameters())


@pytest.mark.parametrize("depth", [1, 2, 3, 5])
def test_flop_formula_is_within_two_percent_of_a_counted_run(depth: int) -> None:
    model = Cascade(load_study(ROOT / "params.yaml").model, 1024)
    tokens = toy_tokens(1, 128)
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        model(tokens, depth)
    # the counter multiplies whole attention matrices; the formula counts the causal half, (T + 1) / 2T of it
    attention = sum(4 * 128 * model.blocks[k].attention.qkv.in_features for k in range(depth))
    causal = attention * (128 + 1) / (2 * 128)
    counted = counter.get_total_flops() / 128 - attention + causal
    assert prefix_flops(model.settings, 1024, depth, 128) == pytest.approx(counted, rel=0.02)
