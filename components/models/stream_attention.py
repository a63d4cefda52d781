"""Attention over the rows of several streams, without ever holding a mask of all rows by all rows.

A sequence of L tokens with n streams has n L rows, token-major: row p is stream p % n of token p // n. Within a stream, attention
is plain causal attention with n folded into the batch. Across streams it is causal over the rows; where only some queries run, or
only a window of keys is visible, queries go in chunks, each against the keys that any of them sees, so that the cost of a window
is linear in L.

Queries may have more heads than keys and values (grouped-query attention): head h of the queries reads head h // (H / G).

Shapes: B batch, L tokens, R rows, Q rows that ask, H query heads, G key and value heads, K channels per head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK_ROWS = 128  # queries at once; the mask of a chunk is CHUNK_ROWS x keys


class Window(NamedTuple):
    """A row sees the rows of its own group and of the `size - 1` groups before; a group is one row or the n of a token."""

    size: int
    group_rows: int


def intra_attention(q_BQHK: Tensor, k_BRGK: Tensor, v_BRGK: Tensor, n_tokens: int, mask_B1LL: Tensor | None) -> Tensor:
    """Causal attention of every stream within itself; with the keys of one stream only, of every stream to that one.

    Shapes:
        q_BQHK: [B, L x streams, H, K]; k and v: the same, or [B, L, G, K] for keys that all streams share.
        mask_B1LL: bool [B, 1, L, L], True where a token may attend; None is plain causal. Returns [B, Q, H, K].
    """
    n_queries = q_BQHK.shape[1] // n_tokens
    q_SHLK, k_SGLK, v_SGLK = (_fold(x, n_tokens, n_queries) for x in (q_BQHK, k_BRGK, v_BRGK))
    mask = None if mask_B1LL is None else mask_B1LL.repeat_interleave(n_queries, dim=0)
    grouped = q_SHLK.shape[1] != k_SGLK.shape[1]
    mixed_SHLK = F.scaled_dot_product_attention(q_SHLK, k_SGLK, v_SGLK, attn_mask=mask, is_causal=mask is None, enable_gqa=grouped)
    _, n_heads, _, head_dim = mixed_SHLK.shape
    return mixed_SHLK.view(-1, n_queries, n_heads, n_tokens, head_dim).permute(0, 3, 1, 2, 4).flatten(1, 2)


def _fold(x_BRHK: Tensor, n_tokens: int, n_streams: int) -> Tensor:
    """[B, L x s, H, K] as [B x n_streams, H, L, K]; the only stream of s = 1 is repeated."""
    batch, _, n_heads, head_dim = x_BRHK.shape
    x_BLSHK = x_BRHK.reshape(batch, n_tokens, -1, n_heads, head_dim).expand(-1, -1, n_streams, -1, -1)
    return x_BLSHK.permute(0, 2, 3, 1, 4).flatten(0, 1)


def cross_attention(
    q_BQHK: Tensor, k_BRGK: Tensor, v_BRGK: Tensor, asking: range, window: Window | None, documents_BR: Tensor | None
) -> Tensor:
    """Causal attention over all rows, of the rows that ask; within a window and within documents where these are given.

    Args:
        asking: index of each query's row.

    Shapes:
        q_BQHK: [B, len(asking), H, K]. documents_BR: int64 [B, R], number of each row's document. Returns [B, Q, H, K].
    """
    q_BHQK, k_BGRK, v_BGRK = (x.transpose(1, 2) for x in (q_BQHK, k_BRGK, v_BRGK))
    grouped = q_BHQK.shape[1] != k_BGRK.shape[1]
    if window is None and documents_BR is None and len(asking) == k_BGRK.shape[2]:
        mixed = F.scaled_dot_product_attention(q_BHQK, k_BGRK, v_BGRK, is_causal=True, enable_gqa=grouped)
        return mixed.transpose(1, 2)
    chunks = []
    for start in range(0, len(asking), CHUNK_ROWS):
        rows = asking[start : start + CHUNK_ROWS]
        first = 0 if window is None else max(0, (rows[0] // window.group_rows - window.size + 1) * window.group_rows)
        keys = range(first, rows[-1] + 1)
        chunks.append(
            F.scaled_dot_product_attention(
                q_BHQK[:, :, start : start + len(rows)],
                k_BGRK[:, :, keys.start : keys.stop],
                v_BGRK[:, :, keys.start : keys.stop],
                attn_mask=_visible(rows, keys, window, documents_BR, k_BGRK.device),
                enable_gqa=grouped,
            )
        )
    return torch.cat(chunks, dim=2).transpose(1, 2)


def _visible(rows: range, keys: range, window: Window | None, documents_BR: Tensor | None, device: torch.device) -> Tensor:
    """Bool [rows, keys] or [B, 1, rows, keys]: True where the row sees the key."""
    row = torch.arange(rows.start, rows.stop, rows.step, device=device)
    key = torch.arange(keys.start, keys.stop, device=device)
    visible = key <= row[:, None]
    if window is not None:
        visible &= row[:, None] // window.group_rows - key // window.group_rows < window.size
    if documents_BR is None:
        return visible
    return visible & (documents_BR[:, None, row, None] == documents_BR[:, None, None, keys.start : keys.stop])
