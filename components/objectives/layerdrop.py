"""LayerDrop: the full model's loss with random blocks left out, the control for depth robustness.

Each block is skipped with probability `drop_probability`; the mask is keyed by (seed, step) and is therefore the same on every
worker and micro-step. Junctions are never dropped: the stream is widened whether or not the block behind it runs. Nothing but
depth N is ever read out in training.

Source:
    Reducing Transformer Depth on Demand with Structured Dropout (arXiv 1909.11556).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import Field

from components.config.schema import Model, ObjectiveSettings
from components.models.sizes import block_flops, head_flops, prefix_flops
from components.objectives import base

if TYPE_CHECKING:
    from torch import Tensor

    from components.models.cascade import Cascade

DROP_KEY = 0xD509  # separates this generator from every other that is keyed by (seed, step)


class Settings(ObjectiveSettings):
    kind: Literal["layerdrop"]
    drop_probability: float = Field(gt=0.0, lt=1.0, description="chance of each block to be skipped in a step")

    def trained_depths(self, model: Model) -> tuple[int, ...]:
        return (model.n_blocks,)


class Objective(base.Objective):
    def __init__(self, settings: Settings, model: Model, vocab_size: int, seed: int) -> None:
        super().__init__(model, vocab_size, seed)
        self._settings = settings

    def skipped(self, step: int) -> tuple[int, ...]:
        """Depths whose block is left out in a step."""
        u = np.random.default_rng((DROP_KEY, self.seed, step)).random(self.model.n_blocks)
        return tuple((np.flatnonzero(u < self._settings.drop_probability) + 1).tolist())

    def depths_at(self, step: int) -> tuple[int, ...]:
        return tuple(sorted(set(range(1, self.model.n_blocks + 1)) - set(self.skipped(step))))

    def backward(self, model: Cascade, batch: base.TokenBatch, step: int) -> dict[str, Tensor]:
        from components.models.readout import nll_sum

        ((depth, x_BTD),) = model.residuals(batch.tokens_BT, [model.n_blocks], batch.documents_BT, self.skipped(step))
        nll = nll_sum(*model.read_residual(x_BTD, depth), batch.labels_BT.flatten())
        (nll * batch.scale).backward()  # type: ignore[no-untyped-call]
        return {"loss": nll.detach(), "full": nll.detach()}

    def step_flops(self, step: int, seq_len: int) -> int:
        skipped = sum(self._block_flops(seq_len)[depth - 1] for depth in self.skipped(step))
        return 3 * (prefix_flops(self.model, self.vocab_size, self.model.n_blocks, seq_len) - skipped)

    def expected_flops(self, seq_len: int) -> float:
        kept = 1.0 - self._settings.drop_probability
        return 3 * (kept * sum(self._block_flops(seq_len)) + head_flops(self.model, self.vocab_size, self.model.n_blocks))

    def _block_flops(self, seq_len: int) -> list[int]:
        return [block_flops(shape, seq_len) for shape in self.model.blocks]
