"""Head-only repair: trains a small read-out at every depth that a finished arm never trained, on its frozen trunk.

Loss of a step: the sum of l(F_k) over the repaired depths k. The repairs share nothing, so each is trained as if alone (but for the
common gradient clipping). The trunk gets no gradient; depths that are not repaired, the full model among them, stay as they were.

Source:
    the "head-only repair" control of Telescopic Language Models (arXiv 2609.35769); the other rungs of the ladder are ours.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, cast

from components.config.schema import Arm, BlockShape, Model, ObjectiveSettings
from components.models.sizes import block_flops, block_parameters, head_flops, stored_parameters, trunk_flops
from components.objectives import base

if TYPE_CHECKING:
    from torch import Tensor

    from components.models.cascade import Cascade
    from components.models.repaired import Repaired


class Settings(ObjectiveSettings):
    """Not written in the file as such: the loader makes it of an entry of `repairs`."""

    from_scratch: ClassVar[bool] = False
    kind: Literal["repair"]
    base: str
    part: Literal["norm", "affine", "head", "block"]
    depths: tuple[int, ...]

    def trained_depths(self, model: Model) -> tuple[int, ...]:
        return tuple(range(1, model.n_blocks + 1))

    def problems(self, model: Model) -> list[tuple[str, object, str, str]]:
        if not self.depths:
            return [("base", self.base, "trains every depth: there is nothing to repair", "choose another base")]
        segments = (range(start + 1, end + 1) for start, end in itertools.pairwise((0, *model.exits)))
        untrained = [str(segment[-1]) for segment in segments if set(segment) <= set(self.depths)]
        if self.part != "head" and untrained:
            rule = f"keeps the read-out of a segment, and {self.base} never trained that of k = {', '.join(untrained)}"
            return [("part", self.part, rule, "use head")]
        if self.part == "block" and model.document_attention == "block_diagonal":
            return [("part", self.part, "needs model.document_attention leak: the extra block sees the whole row", "use head")]
        return []

    def kept(self, model: Model) -> tuple[tuple[BlockShape, ...], int]:
        """One repair at a time; the frozen trunk keeps nothing but the streams that are read out."""
        shapes = [model.blocks[depth - 1].dense for depth in self.depths]
        blocks = (max(shapes, key=lambda shape: shape.d_model),) if self.part == "block" else ()
        return blocks, sum(shape.d_model for shape in shapes)


def repair_settings(arm: Arm, name: str, part: Literal["norm", "affine", "head", "block"]) -> Settings:
    """The repair of all depths that `arm` never trains."""
    trained = arm.objective.trained_depths(arm.model)
    depths = tuple(depth for depth in range(1, arm.model.n_blocks + 1) if depth not in trained)
    return Settings(kind="repair", base=name, part=part, depths=depths)


class Objective(base.Objective):
    def __init__(self, settings: Settings, model: Model, vocab_size: int, seed: int) -> None:
        super().__init__(model, vocab_size, seed)
        self._settings = settings

    def new_model(self) -> Repaired:
        from components.models.repaired import Repaired

        return Repaired(self.model, self.vocab_size, self._settings.part, self._settings.depths)

    def start(self, model: Cascade, base_dir: Path | None) -> None:
        from components.config.problems import CheckpointError
        from components.models.files import load_model

        if base_dir is None:
            raise CheckpointError("a repair needs the trained model of its base arm")
        trained, _ = load_model(base_dir)
        repaired = cast("Repaired", model)
        fresh = {name: tensor for name, tensor in repaired.state_dict().items() if name.startswith("repairs.")}
        repaired.load_state_dict({**trained.state_dict(), **fresh})
        repaired.start_repairs(self.seed)

    def depths_at(self, step: int) -> tuple[int, ...]:
        return self._settings.depths

    def backward(self, model: Cascade, batch: base.TokenBatch, step: int) -> dict[str, Tensor]:
        import torch

        from components.models.readout import nll_sum

        with torch.no_grad():
            residuals = list(model.residuals(batch.tokens_BT, self._settings.depths, batch.documents_BT))
        sums: dict[str, Tensor] = {}
        for depth, x_BTD in residuals:
            nll = nll_sum(*model.read_residual(x_BTD, depth), batch.labels_BT.flatten())
            (nll * batch.scale).backward()  # type: ignore[no-untyped-call]
            sums["loss"] = sums.get("loss", 0) + nll.detach()
        return sums

    def parameter_counts(self) -> tuple[int, int]:
        model = self.model
        shapes = [model.blocks[depth - 1].dense for depth in self._settings.depths]
        widths = [shape.d_model for shape in shapes]
        own = {
            "norm": sum(widths),
            "affine": sum(width**2 + width for width in widths),
            "head": sum(width * (self.vocab_size + 1) for width in widths),
            "block": sum(block_parameters(shape) for shape in shapes),
        }[self._settings.part]
        return stored_parameters(model, self.vocab_size) + own, own

    def step_flops(self, step: int, seq_len: int) -> int:
        model, depths = self.model, self._settings.depths
        # A frozen head still costs its backward to the hidden states, though not to its own weights.
        passes = 3 if self._settings.part == "head" else 2
        readouts = sum(passes * head_flops(model, self.vocab_size, depth) for depth in depths)
        shapes = [model.blocks[depth - 1].dense for depth in depths]
        own = {
            "norm": 0,
            "head": 0,
            "affine": sum(2 * 2 * shape.d_model**2 for shape in shapes),  # its input is the frozen trunk's: no gradient there
            "block": sum(3 * block_flops(shape, seq_len) for shape in shapes),
        }
        return trunk_flops(model, max(depths), seq_len) + readouts + own[self._settings.part]

    def expected_flops(self, seq_len: int) -> float:
        return float(self.step_flops(0, seq_len))
