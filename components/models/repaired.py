"""A frozen cascade with a small trained read-out at the depths its training left out.

The ladder of head-only repairs, from least to most: a norm of its own; a zero-initialised affine map before the segment's exit; a
norm and head of its own; one extra block before the segment's exit. Every repair starts as the raw read-out of the segment's exit,
and depths that are not repaired are read out as before, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from components.config.schema import Model
from components.models.blocks import Block, RMSNorm
from components.models.cascade import Cascade, Exit
from components.models.sizes import block_flops, block_parameters

RepairPart = Literal["norm", "affine", "head", "block"]


class Repaired(Cascade):
    """A cascade that reads out some depths through a repair; parameters `repairs.<depth>.*` are the only ones that train."""

    def __init__(self, settings: Model, vocab_size: int, part: RepairPart, depths: Sequence[int]) -> None:
        super().__init__(settings, vocab_size)
        self.part = part
        self.requires_grad_(False)
        self.repairs = nn.ModuleDict({str(depth): self._repair(depth) for depth in depths})

    def _repair(self, depth: int) -> nn.Module:
        shape, eps = self.settings.blocks[depth - 1], self.settings.norm_eps
        if self.part == "norm":
            return RMSNorm(shape.d_model, eps)
        if self.part == "affine":
            return nn.Linear(shape.d_model, shape.d_model)
        if self.part == "head":
            return Exit(shape.d_model, self.vocab_size, eps)
        return Block(shape.dense)

    def start_repairs(self, seed: int) -> None:
        """Sets every repair to the raw read-out, from the exits as they are now; what that leaves open is drawn from `seed`."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for depth, repair in self.repairs.items():
                out = self.exit_at(int(depth))
                if isinstance(repair, RMSNorm):
                    repair.weight.copy_(out.norm.weight)
                elif isinstance(repair, Exit):
                    repair.norm.weight.copy_(out.norm.weight)
                    repair.head.weight.copy_(out.head.weight)
                elif isinstance(repair, Block):
                    for name, parameter in repair.named_parameters():
                        if name in ("attention.out.weight", "ffn.down.weight"):
                            parameter.zero_()
                        elif parameter.ndim == 1:
                            parameter.fill_(1.0)
                        else:
                            parameter.copy_(torch.empty(parameter.shape).normal_(0.0, self.settings.init_std, generator=generator))
                else:
                    for parameter in repair.parameters():
                        parameter.zero_()

    def added_cost(self, depth: int, seq_len: int) -> tuple[int, int]:
        d_model = self.exit_at(depth).head.in_features
        if str(depth) in self.repairs and self.part == "affine":
            return d_model**2 + d_model, 2 * d_model**2
        if str(depth) in self.repairs and self.part == "block":
            shape = self.settings.blocks[depth - 1].dense
            return block_parameters(shape), block_flops(shape, seq_len)
        return 0, 0  # a norm or a head replaces the exit's

    def read_residual(self, x_BTD: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        out = self.exit_at(depth)
        if str(depth) not in self.repairs:
            return super().read_residual(x_BTD, depth)
        repair = self.repairs[str(depth)]
        if isinstance(repair, RMSNorm):
            return repair(x_BTD).flatten(0, 1), out.head.weight
        if isinstance(repair, Exit):
            return repair.norm(x_BTD).flatten(0, 1), repair.head.weight
        if isinstance(repair, Block):
            x_BTD = repair(x_BTD, self.rotary(x_BTD.shape[1], x_BTD.device), None)
        else:
            x_BTD = x_BTD + repair(x_BTD)
        return out.norm(x_BTD).flatten(0, 1), out.head.weight
