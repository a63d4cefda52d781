"""Streams that reach no prediction are not computed, and nothing changes by it: KV-Mirror, and blocks after the last mixing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from components.config.schema import Segment
from components.models.streams import StreamedCascade
from tests.toys import VOCAB, gradients, largest_difference, toy_tokens
from tests.unit.models.stream_reference import reference_logits
from tests.unit.models.test_streams import toy_streamed

# float64, a few hundred terms
TOLERANCE = 1e-11

CASCADE = (Segment(n_blocks=2, d_model=16), Segment(n_blocks=4, d_model=24))
DENSE = (Segment(n_blocks=6, d_model=24),)
KINDS = ("intra", "cross_full", "intra", "cross_local", "cross_full", "intra")
SHAPES: dict[str, dict[str, Any]] = {
    "cascade": {"model": {"segments": CASCADE}, "layers": KINDS, "n_mirrored": 2},
    "dense": {"model": {"segments": DENSE}, "layers": KINDS, "n_mirrored": 3},
    "one mirrored": {"model": {"segments": CASCADE}, "layers": KINDS, "n_mirrored": 1},
    "local mirrored": {"model": {"segments": CASCADE}, "layers": (*KINDS[:4], "cross_local", "cross_local"), "n_mirrored": 2},
    "intra mirrored": {"model": {"segments": DENSE}, "layers": (*KINDS[:3], "intra", "intra", "intra"), "n_mirrored": 3},
    "shared": {"model": {"segments": DENSE}, "layers": (*KINDS[:3], "intra", "intra", "intra"), "n_mirrored": 3, "kv": "shared"},
    "no mirror": {"model": {"segments": CASCADE}, "layers": KINDS},
    "junction past mixing": {"model": {"segments": CASCADE, "junction_norm": True}, "layers": ("cross_full", *("intra",) * 5)},
    "never mixed": {"model": {"segments": CASCADE}, "layers": ("intra",) * 6},
    "every stream predicts": {"model": {"segments": CASCADE}, "layers": KINDS, "supervision": "sum"},
}  # fmt: skip


def _model(name: str) -> StreamedCascade:
    shape = dict(SHAPES[name])
    if "cross_local" not in shape["layers"]:
        shape["local"] = None
    return toy_streamed(**shape)


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("depth", [2, 4, 5, 6])
def test_skipping_changes_neither_logits_nor_gradients(name: str, depth: int) -> None:
    model, tokens = _model(name), toy_tokens(2, 9)
    results = []
    for model.skips_streams in (True, False):
        model.zero_grad()
        logits = model(tokens, depth)
        logits.square().mean().backward()
        results.append((logits.detach(), {k: g for k, g in gradients(model).items() if bool(g.any())}))
    torch.testing.assert_close(results[0][0], results[1][0], atol=TOLERANCE, rtol=0)
    assert largest_difference(results[0][1], results[1][1]) < TOLERANCE


@pytest.mark.parametrize("name", SHAPES)
def test_mirrored_model_equals_the_dense_reference(name: str) -> None:
    model, tokens = _model(name), toy_tokens(2, 9)
    for depth in range(1, 7):
        reads = "sum" if model.streams.supervision == "sum" else "last"
        expected = reference_logits(model.state_dict(), model.settings, tokens, depth, 3, reads)
        torch.testing.assert_close(model(tokens, depth), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize(
    ("name", "depth", "counted"),
    [
        ("dense", 6, "331111"),
        ("dense", 3, "311"),
        ("no mirror", 6, "333311"),
        ("no mirror", 4, "3331"),
        ("no mirror", 1, "1"),
        ("shared", 3, "331"),
        ("shared", 5, "33111"),
        ("junction past mixing", 6, "111111"),
        ("never mixed", 4, "1111"),
        ("every stream predicts", 6, "333333"),
    ],
)
def test_streams_that_do_not_predict_end_where_the_last_one_stops_reading_them(name: str, depth: int, counted: str) -> None:
    """Rows a token that go through each block, of three streams."""
    model, rows = _model(name), list[int]()
    for block in model.blocks:
        block.ffn.register_forward_hook(lambda module, inputs, output: rows.append(output.shape[1] // 9))
    model(toy_tokens(2, 9), depth)
    assert "".join(map(str, rows)) == counted


def test_every_depth_of_a_mirrored_model_comes_from_one_trunk_pass() -> None:
    model, tokens = _model("cascade"), toy_tokens()
    for depth, x_BTD in model.residuals(tokens, range(1, 7)):
        hidden_ND, head_VD = model.read_residual(x_BTD, depth)
        torch.testing.assert_close((hidden_ND @ head_VD.T).view(3, 12, VOCAB), model(tokens, depth), atol=TOLERANCE, rtol=0)


def test_a_prefix_keeps_its_mirror_sources() -> None:
    model = _model("dense")
    assert [model.streams.mirror_source(depth) for depth in range(1, 7)] == [None, None, None, 3, 2, 1]
    cut = model.settings.prefix(5)
    assert cut.streams is not None
    assert [cut.streams.mirror_source(depth) for depth in range(1, 6)] == [None, None, None, 3, 2]
