"""The engine decodes a mixture of experts, with streams or without, as the model's own forward pass does."""

from __future__ import annotations

import pytest
import torch

from components.inference.engine import Engine, Feed
from components.models.cascade import Cascade
from tests.toys import VOCAB, toy_model, toy_tokens
from tests.unit.models.test_expert_models import expert_streamed
from tests.unit.models.test_experts import toy_experts

TOLERANCE = {"atol": 1e-5, "rtol": 1e-5}  # float32: the same sums in another order


def decoded(model: Cascade, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of a text token by token, and of its one forward pass."""
    tokens = toy_tokens(1, 12)
    engine = Engine(model, 1, 12)
    steps = []
    for token in tokens[0].tolist():
        arrivals = engine.advance([Feed(0, [token], depth)])
        steps.append(engine.logits(arrivals, last_only=False)[0])
    return torch.cat(steps), model(tokens, depth)[0]


@pytest.mark.parametrize("depth", [1, 3, 5])
def test_decoding_equals_the_full_forward(depth: int) -> None:
    shape = toy_model(experts=toy_experts())
    model = Cascade(shape, VOCAB)
    model.init_weights(0)
    torch.testing.assert_close(*decoded(model, depth), **TOLERANCE)


@pytest.mark.parametrize("depth", [2, 4, 6])
def test_decoding_with_streams_and_mirrored_blocks_equals_the_full_forward(depth: int) -> None:
    torch.testing.assert_close(*decoded(expert_streamed(dtype=torch.float32), depth), **TOLERANCE)
