"""The vanilla baseline: one stand-alone model with one loss.

By default the twin of an exit is the cascade prefix up to that exit, trained alone; `model.segments` of the arm gives it any other
shape. It has the read-out of its last segment only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from components.config.schema import Model, ObjectiveSettings
from components.models.sizes import prefix_flops, prefix_parameters
from components.objectives import base

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from components.models.cascade import Cascade


class Settings(ObjectiveSettings):
    kind: Literal["twin"]
    exit: int = Field(ge=1, description="which exit of the model it is the twin of, counted from 1")

    def trained_depths(self, model: Model) -> tuple[int, ...]:
        return (model.n_blocks,)

    def problems(self, model: Model) -> list[tuple[str, object, str, str]]:
        return base.at_most("exit", self.exit, len(model.segments), "the number of segments")

    def shape(self, model: Model) -> Model:
        return model.prefix(model.exits[self.exit - 1])


class Objective(base.Objective):
    def __init__(self, settings: ObjectiveSettings, model: Model, vocab_size: int, seed: int) -> None:
        super().__init__(model, vocab_size, seed)

    def start(self, model: Cascade, base_dir: Path | None) -> None:
        """Draws all weights of the shape, so that a seed means the same ones as ever, and lets go of the other read-outs."""
        super().start(model, base_dir)
        self.trimmed(model)

    def trimmed(self, model: Cascade) -> Cascade:
        from torch import nn

        for i in range(len(model.exits) - 1):
            model.exits[i] = nn.Identity()
        return model

    def parameter_counts(self) -> tuple[int, int]:
        alone = prefix_parameters(self.model, self.vocab_size, self.model.n_blocks)
        return alone, alone

    def depths_at(self, step: int) -> tuple[int, ...]:
        return (self.model.n_blocks,)

    def backward(self, model: Cascade, batch: base.TokenBatch, step: int) -> dict[str, Tensor]:
        from components.models.readout import nll_sum

        hidden_ND, head_VD = model.read(batch.tokens_BT, model.n_blocks, batch.documents_BT)
        nll = nll_sum(hidden_ND, head_VD, batch.labels_BT.flatten())
        (nll * batch.scale).backward()  # type: ignore[no-untyped-call]
        return {"loss": nll.detach(), "full": nll.detach()}

    def step_flops(self, step: int, seq_len: int) -> int:
        return 3 * prefix_flops(self.model, self.vocab_size, self.model.n_blocks, seq_len)

    def expected_flops(self, seq_len: int) -> float:
        return float(self.step_flops(0, seq_len))
