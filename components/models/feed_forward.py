"""The feed-forward of a dense block: SwiGLU.

Shapes: B batch, T tokens, D width of the residual stream, F inner width.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)); gate and up are halves of one matrix."""

    def __init__(self, d_model: int, d_inner: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.down = nn.Linear(d_inner, d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate_BTF, up_BTF = (F.linear(x_BTD, part_FD) for part_FD in self.gate_up.weight.chunk(2))  # contiguous both
        out: Tensor = self.down(F.silu(gate_BTF) * up_BTF)
        return out
