"""Memory of the loss at the paper's vocabulary, measured in fresh processes."""

from __future__ import annotations

import pytest

from bench.loss_memory import STATUS, VOCAB, peak_kib

TOKENS = 2048


@pytest.mark.slow
@pytest.mark.skipif(not STATUS.exists(), reason="peak memory is read from /proc")
def test_the_loss_at_vocabulary_49152_takes_an_eighth_of_plain_logits() -> None:
    plain = peak_kib("plain", TOKENS)
    assert plain > 2 * TOKENS * VOCAB * 4 / 1024  # the logits and their gradient, at least
    assert peak_kib("chunked", TOKENS) <= plain / 8
    assert peak_kib("distilled", TOKENS) <= plain / 8
