"""From logits to the next token: greedy, temperature, top-k, top-p, each request with its own seed.

A request draws from its own generator, once per token, so its text does not depend on the requests it shares a batch with.

Shapes: N tokens (or requests), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen.

    Attributes:
        temperature: divides the logits; 0 is greedy, and then nothing is drawn.
        top_k: only the k likeliest tokens can be drawn; None for all.
        top_p: only the likeliest tokens that together reach this probability can be drawn, at least one.
        seed: of the draws.
    """

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        """Raises ValueError on a value out of range."""
        if not self.temperature >= 0.0 or self.temperature == float("inf"):
            raise ValueError(f"temperature: must be 0 (greedy) or more, and finite (got {self.temperature})")
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k: must be at least 1 (got {self.top_k})")
        if not 0.0 < self.top_p <= 1.0:
            raise ValueError(f"top_p: must be in (0, 1] (got {self.top_p})")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0.0


class Sampler:
    """Draws the tokens of one request."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.generator = torch.Generator().manual_seed(sampling.seed)

    def choose(self, logits_V: Tensor) -> int:
        """The next token."""
        if self.sampling.is_greedy:
            return int(logits_V.argmax())
        return self.draw(probabilities(logits_V[None], self.sampling)[0])

    def draw(self, probabilities_V: Tensor) -> int:
        """A token drawn from a distribution; it need not add up to 1."""
        cumulative_V = probabilities_V.cumsum(0)
        point = self.uniform() * float(cumulative_V[-1])
        token = int(torch.searchsorted(cumulative_V, torch.tensor(point, dtype=cumulative_V.dtype), right=True))
        last = int(probabilities_V.nonzero()[-1])
        return min(token, last)  # rounding can put the point past the last token that has any probability

    def uniform(self) -> float:
        """A number in [0, 1)."""
        return float(torch.rand((), generator=self.generator, dtype=torch.float64))


def choose_tokens(samplers: Sequence[Sampler], logits_NV: Tensor) -> list[int]:
    """The next token of every request; the greedy ones all at once."""
    best: list[int] = logits_NV.argmax(dim=1).tolist()
    return [
        token if sampler.sampling.is_greedy else sampler.choose(logits_NV[i])
        for i, (sampler, token) in enumerate(zip(samplers, best, strict=True))
    ]


def probabilities(logits_NV: Tensor, sampling: Sampling) -> Tensor:
    """The distributions that are drawn from, on the CPU in float64; greedy puts everything on one token."""
    logits_NV = logits_NV.double().cpu()
    if sampling.is_greedy:
        return torch.zeros_like(logits_NV).scatter_(1, logits_NV.argmax(1, keepdim=True), 1.0)
    logits_NV = (logits_NV - logits_NV.amax(1, keepdim=True)) / sampling.temperature  # from 0 down, for any temperature
    if sampling.top_k is not None and sampling.top_k < logits_NV.shape[1]:
        kept_NK = logits_NV.topk(sampling.top_k)
        logits_NV = torch.full_like(logits_NV, -torch.inf).scatter_(1, kept_NK.indices, kept_NK.values)
    probabilities_NV = logits_NV.softmax(1)
    if sampling.top_p < 1.0:
        sorted_NV, order_NV = probabilities_NV.sort(dim=1, descending=True, stable=True)
        before_NV = sorted_NV.cumsum(1) - sorted_NV
        sorted_NV = sorted_NV.masked_fill(before_NV >= sampling.top_p, 0.0)
        probabilities_NV = torch.zeros_like(probabilities_NV).scatter_(1, order_NV, sorted_NV)
        probabilities_NV /= probabilities_NV.sum(1, keepdim=True)
    return probabilities_NV
