"""A cascade of one segment is a Llama: its logits against `transformers`."""

from __future__ import annotations

import torch

from bench.peers import llama_of
from components.config.schema import Segment
from components.models.cascade import Cascade
from tests.toys import VOCAB, toy_model, toy_tokens


def test_one_segment_gives_the_logits_of_a_transformers_llama() -> None:
    model = Cascade(toy_model(segments=(Segment(n_blocks=3, d_model=32),)), VOCAB)
    model.init_weights(1)
    tokens = toy_tokens(2, 40)
    with torch.no_grad():
        # float32: two implementations of the same sums, logits of size about 1
        torch.testing.assert_close(model(tokens, 3), llama_of(model, 64, "eager")(tokens).logits, atol=2e-5, rtol=1e-5)
