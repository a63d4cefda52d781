"""The Matryoshka-suite objective: a loss at every segment's exit in every step.

Loss of a step: the sum over exits of (1 - a) * cross-entropy + a * soft cross-entropy to the full model (which gets no gradient
from it). At the full exit itself the soft term has no gradient, so that exit is trained with plain cross-entropy.

How the backward is done changes the cost, never the gradient (but for a balance loss of experts with streams, see `Imbalance`):
- joint: one shared forward, one backward of the sum;
- per_exit: one shared forward, one backward per exit (the trunk below is walked again for each);
- separate: one forward and backward per exit.

Source:
    Matryoshka Language Model Suites (arXiv 2608.09703).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from components.config.schema import Model, ObjectiveSettings, Share
from components.models.sizes import head_flops, prefix_flops, sweep_flops
from components.objectives import base

if TYPE_CHECKING:
    from torch import Tensor

    from components.models.cascade import Cascade


class Settings(ObjectiveSettings):
    kind: Literal["fixed_exits"]
    distill_weight: Share = Field(description="a: share of soft cross-entropy to F_N at the smaller exits")
    backward: Literal["joint", "per_exit", "separate"] = Field(description="same gradients, different cost")

    def trained_depths(self, model: Model) -> tuple[int, ...]:
        return model.exits


class Objective(base.Objective):
    def __init__(self, settings: Settings, model: Model, vocab_size: int, seed: int) -> None:
        super().__init__(model, vocab_size, seed)
        self._settings = settings

    def depths_at(self, step: int) -> tuple[int, ...]:
        return self.model.exits

    def backward(self, model: Cascade, batch: base.TokenBatch, step: int) -> dict[str, Tensor]:
        exits = list(reversed(self.model.exits))  # the full model first: it teaches the others
        sums: dict[str, Tensor] = {}
        if self._settings.backward == "separate":
            readings = ((depth, model.read(batch.tokens_BT, depth, batch.documents_BT)) for depth in exits)
        else:
            shared = dict(model.residuals(batch.tokens_BT, exits, batch.documents_BT))
            readings = ((depth, model.read_residual(shared[depth], depth)) for depth in exits)
        teacher: tuple[Tensor, Tensor] | None = None
        joint: Tensor | None = None
        for depth, (hidden_ND, head_VD) in readings:
            nll = self._exit_nll(hidden_ND, head_VD, batch.labels_BT.flatten(), teacher)
            teacher = teacher or (hidden_ND.detach(), head_VD)
            sums["full" if depth == model.n_blocks else f"exit_{depth}"] = nll.detach()
            sums["loss"] = sums.get("loss", 0) + nll.detach()
            if self._settings.backward == "joint":
                joint = nll if joint is None else joint + nll
            else:
                keep = self._settings.backward == "per_exit" and depth != exits[-1]
                (nll * batch.scale).backward(retain_graph=keep)  # type: ignore[no-untyped-call]
        if joint is not None:
            (joint * batch.scale).backward()  # type: ignore[no-untyped-call]
        return sums

    def _exit_nll(self, hidden_ND: Tensor, head_VD: Tensor, labels_N: Tensor, teacher: tuple[Tensor, Tensor] | None) -> Tensor:
        from components.models.readout import distilled_nll_sum, nll_sum

        if teacher is None or self._settings.distill_weight == 0:
            return nll_sum(hidden_ND, head_VD, labels_N)
        return distilled_nll_sum(hidden_ND, head_VD, labels_N, *teacher, self._settings.distill_weight)

    def step_flops(self, step: int, seq_len: int) -> int:
        model, vocab, exits = self.model, self.vocab_size, self.model.exits
        shared = sweep_flops(model, vocab, exits, seq_len)
        each = sum(prefix_flops(model, vocab, depth, seq_len) for depth in exits)
        teaching = (len(exits) - 1) * head_flops(model, vocab, model.n_blocks) if self._settings.distill_weight > 0 else 0
        return teaching + {"joint": 3 * shared, "per_exit": shared + 2 * each, "separate": 3 * each}[self._settings.backward]

    def expected_flops(self, seq_len: int) -> float:
        return float(self.step_flops(0, seq_len))
