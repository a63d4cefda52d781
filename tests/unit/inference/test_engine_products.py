"""Large products of the engine run in oneDNN where that pays: the same logits, and no product of half precision ever."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import components.models.onednn as onednn
from components.inference import block, trunk
from components.inference.engine import Engine, Feed
from components.models.cascade import Cascade
from components.models.onednn import product
from tests.toys import toy_cascade, toy_tokens
from tests.unit.inference.test_engine_streams import GROUPED
from tests.unit.models.test_streams import toy_streamed

pytestmark = pytest.mark.skipif(not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="this torch is built without oneDNN")
TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}  # float32: the same sums in another order


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each product that went to oneDNN, which pays from 300 multiplications on here."""
    seen: list[int] = []

    def counted(a: Tensor, b: Tensor, *, out: Tensor | None = None) -> Tensor:
        seen.append(len(a))
        return product(a, b, out=out)

    monkeypatch.setattr(onednn, "pays", lambda: True)
    monkeypatch.setattr(onednn, "LEAST_SIZE", 300)
    for module in (onednn, block, trunk):
        monkeypatch.setattr(module, "product", counted)
    return seen


def small_streamed() -> Cascade:
    """Streams with a mirrored block, norms of queries and keys, and grouped heads; weights that keep rounding small."""
    shape = {"init_std": 0.1, **GROUPED["model"]}
    layers = ("intra", "cross_full", "intra", "cross_full", "cross_full")
    return toy_streamed(dtype=torch.float32, model=shape, n_streams=4, layers=layers, n_mirrored=1)


@pytest.mark.parametrize("make", [lambda: toy_cascade(dtype=torch.float32, init_std=0.1), small_streamed])
def test_a_prompt_and_its_continuation_have_the_logits_of_the_full_forward(make: Callable[[], Cascade], rows: list[int]) -> None:
    model, tokens = make().eval(), toy_tokens(1, 14)
    engine = Engine(model, 1, 14)
    parts = [tokens[0, :11], *tokens[0, 11:, None]]
    logits = torch.cat([engine.logits(engine.advance([Feed(0, part.tolist(), 5)]), last_only=False)[0] for part in parts])
    assert rows
    torch.testing.assert_close(logits, model(tokens, 5)[0], **TOLERANCE)


def test_a_few_rows_stay_with_torch(rows: list[int]) -> None:
    engine = Engine(toy_cascade(dtype=torch.float32), 1, 8)
    engine.advance([Feed(0, [1], 1)])  # the smallest matrix of this block is 16 x 16
    assert not rows
    engine.advance([Feed(0, [1, 2], 1)])
    assert rows == [2, 2, 2, 2]


def test_half_precision_stays_with_torch(rows: list[int]) -> None:
    engine = Engine(toy_cascade(dtype=torch.float32).to(torch.bfloat16), 1, 8)
    engine.logits(engine.advance([Feed(0, [1, 2, 3], 5)]))
    assert not rows


def test_what_one_call_gave_stays_when_the_next_works_in_the_same_memory() -> None:
    engine = Engine(toy_cascade(dtype=torch.float32), 2, 8)
    first = engine.advance([Feed(0, [1, 2], 5)])[0].x_ND
    kept, keys = first.clone(), engine.cache.blocks[4].keys[0, :, :2].clone()
    engine.advance([Feed(1, [3, 4], 5)])
    assert torch.equal(first, kept)
    assert torch.equal(engine.cache.blocks[4].keys[0, :, :2], keys)
