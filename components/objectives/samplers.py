"""Which prefix depths a telescopic step trains: the depth samplers.

The depths of a step are a pure function of (seed, step), drawn from a generator that nothing else uses. Every worker and every
accumulation micro-step therefore sees the same depths, a resumed run the same as an uninterrupted one, and the token stream none
of it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from components.config.schema import Model, Section

DEPTH_KEY = 0x0DE97  # separates this generator from every other that is keyed by (seed, step)


class Sampler(Section):
    """Base of the samplers."""

    kind: str

    @abstractmethod
    def probabilities(self, model: Model) -> tuple[float, ...]:
        """P(k) of the random draw for k = 1..N."""

    def fixed(self, step: int, deepest: int) -> int | None:
        """The depth, up to `deepest`, of a step that draws nothing; None when one is drawn."""
        return None

    def always(self, model: Model) -> tuple[int, ...]:
        """Depths trained in every step beside the drawn one."""
        return ()


class Uniform(Sampler):
    """k ~ uniform{1..N}."""

    kind: Literal["uniform"]

    def probabilities(self, model: Model) -> tuple[float, ...]:
        return (1.0 / model.n_blocks,) * model.n_blocks


class LogUniform(Sampler):
    """k = ceil(N^u), u ~ U(0, 1): P(k) = log_N(k / (k - 1)), so block 1 alone is never trained."""

    kind: Literal["loguniform"]

    def probabilities(self, model: Model) -> tuple[float, ...]:
        n = model.n_blocks
        if n == 1:
            return (1.0,)
        return (0.0, *(math.log(k / (k - 1), n) for k in range(2, n + 1)))


class ExitGrid(Sampler):
    """k ~ uniform over the segments' exits."""

    kind: Literal["exitgrid"]

    def probabilities(self, model: Model) -> tuple[float, ...]:
        return tuple(1.0 / len(model.exits) if k in model.exits else 0.0 for k in range(1, model.n_blocks + 1))


class Explicit(Sampler):
    """k drawn with the given probabilities."""

    kind: Literal["explicit"]
    weights: tuple[Annotated[float, Field(ge=0.0)], ...] = Field(min_length=1, description="P(k) for k = 1..N; they sum to 1")

    def probabilities(self, model: Model) -> tuple[float, ...]:
        return self.weights


class RoundRobin(Sampler):
    """k cycles 1, 2, .., N."""

    kind: Literal["roundrobin"]

    def probabilities(self, model: Model) -> tuple[float, ...]:
        return (1.0 / model.n_blocks,) * model.n_blocks

    def fixed(self, step: int, deepest: int) -> int | None:
        return step % deepest + 1


class Sandwich(Sampler):
    """k = 1 in every step, and one k ~ uniform{1..N}; with the anchor that is smallest, largest and one random."""

    kind: Literal["sandwich"]

    def probabilities(self, model: Model) -> tuple[float, ...]:
        return (1.0 / model.n_blocks,) * model.n_blocks

    def always(self, model: Model) -> tuple[int, ...]:
        return (1,)


AnySampler = Annotated[Uniform | LogUniform | ExitGrid | Explicit | RoundRobin | Sandwich, Field(discriminator="kind")]


class DepthDraw:
    """The depths of each step of one run."""

    def __init__(self, sampler: Sampler, model: Model, seed: int, exclude_full: bool) -> None:
        self._sampler, self._seed = sampler, seed
        self._always = sampler.always(model)
        self._deepest = model.n_blocks - exclude_full
        self._probabilities = np.asarray(sampler.probabilities(model)[: self._deepest], dtype=np.float64)
        self._probabilities /= self._probabilities.sum()
        self._cumulated = np.cumsum(self._probabilities)
        self._last = int(np.flatnonzero(self._probabilities)[-1]) + 1

    def depths(self, step: int) -> tuple[int, ...]:
        """Prefix depths that step `step` trains, most often one."""
        fixed = self._sampler.fixed(step, self._deepest)
        if fixed is not None:
            return (fixed,)
        u = np.random.default_rng((DEPTH_KEY, self._seed, step)).random()
        drawn = int(np.searchsorted(self._cumulated, u, side="right")) + 1
        return (*self._always, min(drawn, self._last))  # the cumulated sum may end just below 1

    def expected_counts(self) -> tuple[float, ...]:
        """How often each depth k = 1..N (or N - 1, when N is excluded) is trained per step, in the mean."""
        counts = self._probabilities.copy()
        for depth in self._always:
            counts[depth - 1] += 1.0
        return tuple(float(count) for count in counts)
