"""The parts of a Llama-style decoder block: RMSNorm, rotary attention, SwiGLU.

Shapes: B batch, T tokens, D width of the residual stream, H heads, K channels per head, F inner width of the SwiGLU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Rotary(NamedTuple):
    """cos and sin of the rotary angles, shaped to broadcast over q and k: [T, 1, 1, K/2]."""

    cos: Tensor
    sin: Tensor


def rotary_angles(positions_T: Tensor, head_dim: int, theta: float) -> Rotary:
    """Rotary angles of the given positions, always computed in float32.

    Shapes:
        positions_T: int64 [T]. Returns float32 [T, 1, 1, head_dim / 2], twice.
    """
    channels = torch.arange(0, head_dim, 2, dtype=torch.float32, device=positions_T.device)
    angles_TK = positions_T.float()[:, None] * theta ** (-channels / head_dim)
    angles = angles_TK[:, None, None, :]
    return Rotary(angles.cos(), angles.sin())


def rotate(x_BTCHK: Tensor, rotary: Rotary) -> Tensor:
    """Turns each pair of channels (i, i + K/2) by its position's angle.

    Shapes:
        x_BTCHK: [B, T, C, H, K], C the tensors that share the rotation (q and k).
    """
    cos, sin = rotary.cos.to(x_BTCHK.dtype), rotary.sin.to(x_BTCHK.dtype)
    first, second = x_BTCHK.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class RMSNorm(nn.Module):
    """Divides by the root mean square over the width and multiplies by a learned gain."""

    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.rms_norm(x_BTD, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    """Causal multi-head self-attention with rotary positions; q, k and v come from one matrix."""

    def __init__(self, d_model: int, head_dim: int) -> None:
        super().__init__()
        self.n_heads, self.head_dim = d_model // head_dim, head_dim
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x_BTD: Tensor, rotary: Rotary, mask_B1TT: Tensor | None) -> Tensor:
        """Attention output before it is added to the residual stream.

        Shapes:
            x_BTD: [B, T, D]. mask_B1TT: bool [B, 1, T, T], True where attending is allowed; None is plain causal.
        """
        batch, length, width = x_BTD.shape
        qkv = self.qkv(x_BTD).view(batch, length, 3, self.n_heads, self.head_dim)
        qk = rotate(qkv[:, :, :2], rotary)
        q_BHTK, k_BHTK = (qk[:, :, i].transpose(1, 2) for i in range(2))
        v_BHTK = qkv[:, :, 2].transpose(1, 2)
        mixed_BHTK = F.scaled_dot_product_attention(q_BHTK, k_BHTK, v_BHTK, attn_mask=mask_B1TT, is_causal=mask_B1TT is None)
        mixed: Tensor = self.out(mixed_BHTK.transpose(1, 2).reshape(batch, length, width))
        return mixed


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)); gate and up are one matrix."""

    def __init__(self, d_model: int, d_inner: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.down = nn.Linear(d_inner, d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate_BTF, up_BTF = self.gate_up(x_BTD).chunk(2, dim=-1)
        out: Tensor = self.down(F.silu(gate_BTF) * up_BTF)
        return out


class Block(nn.Module):
    """Pre-norm attention and SwiGLU, each added to the residual stream."""

    def __init__(self, d_model: int, head_dim: int, ffn_ratio: int, norm_eps: float) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(d_model, norm_eps)
        self.attention = Attention(d_model, head_dim)
        self.ffn_norm = RMSNorm(d_model, norm_eps)
        self.ffn = SwiGLU(d_model, ffn_ratio * d_model)

    def forward(self, x_BTD: Tensor, rotary: Rotary, mask_B1TT: Tensor | None) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), rotary, mask_B1TT)
        out: Tensor = x_BTD + self.ffn(self.ffn_norm(x_BTD))
        return out
