"""The telescopic objective: a random prefix and the full model in every step.

Loss of a step: prefix_weight * l(F_k) for the drawn depth(s) k, plus anchor_weight * l(F_N), as separate forward-backward
passes over the same micro-batch, so that peak activation memory is that of one pass. With anchor_weight 0 nothing above k gets
a gradient, and the optimizer leaves it, weights and moments, as it was.

Source:
    Telescopic Language Models (arXiv 2609.35769).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from components.config.schema import Model, ObjectiveSettings, Share
from components.models.sizes import head_flops, prefix_flops, trunk_flops
from components.objectives import base
from components.objectives.samplers import AnySampler, DepthDraw

if TYPE_CHECKING:
    from torch import Tensor

    from components.models.cascade import Cascade


class Settings(ObjectiveSettings):
    kind: Literal["telescopic"]
    sampler: AnySampler = Field(description="how the prefix depth k of a step is drawn")
    prefix_weight: float = Field(gt=0.0, description="lambda: weight of l(F_k)")
    anchor_weight: float = Field(ge=0.0, description="gamma: weight of l(F_N); 0 trains without the anchor")
    distill_weight: Share = Field(description="a: share of soft cross-entropy to F_N in the prefix loss")
    exclude_full: bool = Field(description="never draw k = N")

    def trained_depths(self, model: Model) -> tuple[int, ...]:
        counts = DepthDraw(self.sampler, model, 0, self.exclude_full).expected_counts()
        drawn = {depth for depth, count in enumerate(counts, 1) if count > 0}
        anchor = {model.n_blocks} if self.anchor_weight > 0 else set()
        return tuple(sorted(drawn | anchor))

    def problems(self, model: Model) -> list[tuple[str, object, str, str]]:
        weights = self.sampler.probabilities(model)
        if len(weights) != model.n_blocks:
            return [("sampler.weights", len(weights), f"needs one weight per depth, {model.n_blocks}", "write P(k) for k = 1..N")]
        if abs(sum(weights) - 1.0) > 1e-6:
            return [("sampler.weights", sum(weights), "must sum to 1", "divide the weights by their sum")]
        if self.exclude_full and not any(weights[:-1]):
            return [("exclude_full", True, "leaves no depth to draw", "set exclude_full to false or change the sampler")]
        return []


class Objective(base.Objective):
    def __init__(self, settings: Settings, model: Model, vocab_size: int, seed: int) -> None:
        super().__init__(model, vocab_size, seed)
        self._settings = settings
        self._draw = DepthDraw(settings.sampler, model, seed, settings.exclude_full)

    def depths_at(self, step: int) -> tuple[int, ...]:
        return self._draw.depths(step)

    def backward(self, model: Cascade, batch: base.TokenBatch, step: int) -> dict[str, Tensor]:
        from components.models.readout import distilled_nll_sum, nll_sum

        settings, labels_N = self._settings, batch.labels_BT.flatten()
        sums: dict[str, Tensor] = {}
        teacher: tuple[Tensor, Tensor] | None = None
        if settings.anchor_weight > 0:
            hidden_ND, head_VD = model.read(batch.tokens_BT, model.n_blocks, batch.documents_BT)
            nll = nll_sum(hidden_ND, head_VD, labels_N)
            (nll * (settings.anchor_weight * batch.scale)).backward()  # type: ignore[no-untyped-call]
            sums["full"] = nll.detach()
            sums["loss"] = settings.anchor_weight * sums["full"]
            teacher = hidden_ND.detach(), head_VD
        elif settings.distill_weight > 0:
            teacher = model.read_frozen(batch.tokens_BT, model.n_blocks, batch.documents_BT)
        for depth in self.depths_at(step):
            hidden_ND, head_VD = model.read(batch.tokens_BT, depth, batch.documents_BT)
            if settings.distill_weight > 0 and teacher is not None and depth < model.n_blocks:
                nll = distilled_nll_sum(hidden_ND, head_VD, labels_N, *teacher, settings.distill_weight)
            else:
                nll = nll_sum(hidden_ND, head_VD, labels_N)
            (nll * (settings.prefix_weight * batch.scale)).backward()  # type: ignore[no-untyped-call]
            sums["prefix"] = sums.get("prefix", 0) + nll.detach()
            sums["loss"] = sums.get("loss", 0) + settings.prefix_weight * nll.detach()
        return sums

    def step_flops(self, step: int, seq_len: int) -> int:
        return self._anchor_flops(seq_len) + sum(self._prefix_flops(depth, seq_len) for depth in self.depths_at(step))

    def expected_flops(self, seq_len: int) -> float:
        counts = self._draw.expected_counts()
        return self._anchor_flops(seq_len) + sum(
            count * self._prefix_flops(depth, seq_len) for depth, count in enumerate(counts, 1)
        )

    def _anchor_flops(self, seq_len: int) -> int:
        """The anchor's forward and backward; without an anchor, the trunk's forward that a teacher needs."""
        if self._settings.anchor_weight > 0:
            return 3 * prefix_flops(self.model, self.vocab_size, self.model.n_blocks, seq_len)
        return trunk_flops(self.model, self.model.n_blocks, seq_len) if self._settings.distill_weight > 0 else 0

    def _prefix_flops(self, depth: int, seq_len: int) -> int:
        teaching = self._settings.distill_weight > 0 and depth < self.model.n_blocks
        teacher = head_flops(self.model, self.vocab_size, self.model.n_blocks) if teaching else 0
        return 3 * prefix_flops(self.model, self.vocab_size, depth, seq_len) + teacher
