"""A prefix of a telescopic cascade with Hidden Decoding streams, as a `transformers` model; it extends modeling_telescopic.py.

`tasks.export` copies both files into the exported folder; they need torch and transformers, nothing of the project they come from.

    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

Every token has a row per stream, each from its own embedding table, token by token; the last stream predicts. A block attends
within streams (`intra`), causally over all rows (`cross_full`) or over the latest ones (`cross_local`). The cache counts tokens:
the rows of a token that a block keeps lie side by side, as if they were heads.

Shapes: B batch, T new tokens, S tokens with the past, n streams, R = n T rows, Q rows that go through a block, D width of the
residual stream, H heads, K channels per head; A rows of a token that ask, C that are kept.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache

from .modeling_telescopic import Block, TelescopicConfig, TelescopicForCausalLM, _rotate

EVERY_ROW = slice(None)


class HiddenDecodingConfig(TelescopicConfig):
    """Shape of the cascade and of its streams.

    Attributes:
        layers: kind of each block.
        window: [size, unit] of cross_local blocks: they see so many latest rows, or the rows of so many latest tokens.
        rope_rule: by_layer counts positions in tokens in intra blocks and else in rows; physical in rows; logical in tokens.
        shares_kv: all streams of an intra block read the first stream's keys and values.
        is_summed: the streams of a token are summed before the final norm.
        mirror_sources: number (from 1) of the block from whose input each block makes its keys and values; 0 for its own.
    """

    model_type = "telescopic-hidden-decoding"

    def __init__(
        self,
        n_streams: int = 1,
        layers: tuple[str, ...] = ("intra",),
        window: tuple[int, str] = (1, "rows"),
        rope_rule: str = "by_layer",
        shares_kv: bool = False,
        is_summed: bool = False,
        mirror_sources: tuple[int, ...] = (0,),
        **kwargs: Any,
    ) -> None:
        self.n_streams, self.layers, self.window, self.rope_rule = n_streams, list(layers), list(window), rope_rule
        self.shares_kv, self.is_summed, self.mirror_sources = shares_kv, is_summed, list(mirror_sources)
        super().__init__(**kwargs)


class Rows(NamedTuple):
    """How one block works on the rows of a pass.

    Attributes:
        asking, read: rows that go through the block, and rows that keys and values are made of.
        folds: the rows of a token keep to themselves, as heads of their own.
        angles: of all rows, float32 [B, 1, R, K/2].
        mask: bool [B or 1, 1, queries, keys], True where attending is allowed.
    """

    n_tokens: int
    asking: slice
    read: slice
    folds: bool
    angles: Tensor
    mask: Tensor

    def taken(self, x_BRD: Tensor, rows: slice) -> Tensor:
        """A choice of all rows, from all of them or from the last stream's, which it is then."""
        return x_BRD if x_BRD.shape[1] == self.n_tokens else x_BRD[:, rows]


class StreamBlock(Block):
    """The cascade's block over the rows of several streams."""

    def forward(  # type: ignore[override]
        self, x_BQD: Tensor, context_BRD: Tensor | None, rows: Rows, past: DynamicCache | None, layer: int
    ) -> Tensor:
        """The residual stream of the rows that ask; `context_BRD` is the normed input of the block that this one mirrors."""
        normed_BQD, attention = self.attention_norm(x_BQD), self.attention
        d_queries, weight = attention.d_queries, attention.qkv.weight
        asked_BQD = rows.taken(normed_BQD, rows.asking)
        read_BRD = rows.taken(normed_BQD if context_BRD is None else context_BRD, rows.read)
        q_BHQK = attention.split_heads(F.linear(asked_BQD, weight[:d_queries]))
        k_BGRK, v_BGRK = attention.split_heads(F.linear(read_BRD, weight[d_queries:])).chunk(2, dim=1)
        q_BHQK = _rotate(attention.q_norm(q_BHQK), rows.angles[:, :, rows.asking])
        k_BGRK = _rotate(attention.k_norm(k_BGRK), rows.angles[:, :, rows.read])
        k, v = _fold(k_BGRK, rows.n_tokens), _fold(v_BGRK, rows.n_tokens)
        if past is not None:
            k, v = past.update(k, v, layer)
        if rows.folds:
            mixed = attention.mix(_fold(q_BHQK, rows.n_tokens), k, v, rows.mask)
            mixed_BHQK = _unfold(mixed, attention.n_heads)
        else:
            k, v = _unfold(k, attention.n_kv_heads), _unfold(v, attention.n_kv_heads)
            mixed_BHQK = attention.mix(q_BHQK, k, v, rows.mask)
        x_BQD = rows.taken(x_BQD, rows.asking) + attention.out(mixed_BHQK.transpose(1, 2).flatten(2))
        out: Tensor = x_BQD + self.ffn(self.ffn_norm(x_BQD))
        return out


class HiddenDecodingForCausalLM(TelescopicForCausalLM):
    """The prefix with its streams as a causal language model."""

    config_class = HiddenDecodingConfig
    block_type = StreamBlock
    _no_split_modules = ["StreamBlock"]  # noqa: RUF012

    def __init__(self, config: HiddenDecodingConfig) -> None:
        super().__init__(config)
        widths = [width for _, width in config.segments]
        slices = [width - before for before, width in zip([0, *widths], widths, strict=False)]
        self.stream_embeddings = nn.ModuleList(
            nn.ModuleList(nn.Embedding(config.vocab_size, width) for width in slices) for _ in range(config.n_streams - 1)
        )
        blocks = enumerate(zip(config.layers, config.mirror_sources, strict=True), 1)
        readers = [source or number for number, (kind, source) in blocks if kind != "intra" or config.shares_kv]
        self.mixing = max(readers, default=0)  # number of the last block that needs all streams; from it on the last one runs alone
        self.post_init()

    def _run(
        self, tokens_BT: Tensor, positions_BT: Tensor, attention_mask: Tensor | None, past: DynamicCache | None, n_past: int
    ) -> Tensor:
        n, layer = int(self.config.n_streams), 0
        masks: dict[tuple[int, int, bool], Tensor] = {}
        contexts: dict[int, Tensor] = {}
        x_BQD = self._fresh(tokens_BT, 0)
        for segment, (n_blocks, _) in enumerate(self.config.segments):
            if segment:
                x_BQD = self._widen(x_BQD, self._fresh(tokens_BT, segment, x_BQD.shape[1] == tokens_BT.shape[1]))
            for _ in range(n_blocks):
                block: Any = self.blocks[layer]
                source = self.config.mirror_sources[layer]
                if layer + 1 in self.config.mirror_sources:
                    contexts[layer + 1] = block.attention_norm(x_BQD)
                x_BQD = block(
                    x_BQD, contexts.get(source), self._rows(layer, positions_BT, attention_mask, n_past, masks), past, layer
                )
                layer += 1
        if self.config.is_summed:
            return x_BQD.view(len(x_BQD), -1, n, x_BQD.shape[-1]).sum(dim=2)
        return x_BQD if x_BQD.shape[1] == tokens_BT.shape[1] else x_BQD[:, n - 1 :: n]

    def _fresh(self, tokens_BT: Tensor, segment: int, is_last_only: bool = False) -> Tensor:
        """A segment's slice of every table, the streams of a token side by side, or of the last one's alone: [B, R, slice]."""
        tables: list[Any] = [self.embeddings, *self.stream_embeddings][-1 if is_last_only else 0 :]
        return torch.stack([table[segment](tokens_BT) for table in tables], dim=2).flatten(1, 2)

    def _rows(
        self,
        layer: int,
        positions_BT: Tensor,
        attention_mask: Tensor | None,
        n_past: int,
        masks: dict[tuple[int, int, bool], Tensor],
    ) -> Rows:
        config, n = self.config, self.config.n_streams
        kind = config.layers[layer]
        skips = n > 1 and not config.is_summed and layer + 1 >= self.mixing
        first, last = slice(0, None, n), slice(n - 1, None, n)
        asking, read = (last if skips else EVERY_ROW), EVERY_ROW
        if kind == "intra" and n > 1:
            read = first if config.shares_kv else asking
        folds = kind == "intra" and (not config.shares_kv or skips or n == 1)
        queries, keys = (1, 1) if folds else (len(range(n)[asking]), len(range(n)[read]))
        key = queries, keys, kind == "cross_local"
        if key not in masks:
            size, unit = config.window if kind == "cross_local" else (0, "rows")
            masks[key] = _row_mask(
                attention_mask, n_past, positions_BT.shape[1], key, (size, 1 if unit == "rows" else n), self.device
            )
        counts_tokens = config.rope_rule == "logical" or (config.rope_rule == "by_layer" and kind == "intra")
        streams = torch.arange(n, device=positions_BT.device)
        positions_BTn = positions_BT[:, :, None].expand(-1, -1, n) if counts_tokens else positions_BT[:, :, None] * n + streams
        angles = self._angles(positions_BTn.flatten(1))
        return Rows(positions_BT.shape[1], asking, read, folds, angles, masks[key])


def _fold(x_BHRK: Tensor, n_tokens: int) -> Tensor:
    """[B, H, T C, K] as [B, C H, T, K]: the rows of a token as heads."""
    batch, n_heads, _, head_dim = x_BHRK.shape
    return x_BHRK.reshape(batch, n_heads, n_tokens, -1, head_dim).permute(0, 3, 1, 2, 4).flatten(1, 2)


def _unfold(x_BGTK: Tensor, n_heads: int) -> Tensor:
    """The inverse: [B, C H, S, K] as [B, H, S C, K]."""
    batch, _, n_tokens, head_dim = x_BGTK.shape
    return x_BGTK.view(batch, -1, n_heads, n_tokens, head_dim).permute(0, 2, 3, 1, 4).flatten(2, 3)


def _row_mask(
    attention_mask: Tensor | None,
    n_past: int,
    n_tokens: int,
    rows: tuple[int, int, bool],
    window: tuple[int, int],
    device: torch.device,
) -> Tensor:
    """Bool [B or 1, 1, T A, S C], True where attending is allowed.

    Args:
        rows: A, C, and whether the window counts.
        window: groups of rows that are seen, and rows of a group.
    """
    queries, keys, is_local = rows
    own_A = (torch.arange(queries, device=device) + keys - queries).clamp_min(0)  # rows that ask are a token's last ones
    at_T = torch.arange(n_past, n_past + n_tokens, device=device)
    last_Q = (at_T[:, None] * keys + own_A).flatten()[:, None]
    key_S = torch.arange((n_past + n_tokens) * keys, device=device)
    mask = key_S <= last_Q
    if is_local:
        size, group = window
        mask = mask & (last_Q // group - key_S // group < size)
    if attention_mask is None:
        return mask[None, None]
    # a padding token sees itself, so that no row of the softmax is empty
    return (mask & attention_mask.bool().repeat_interleave(keys, dim=1)[:, None] | (key_S == last_Q))[:, None]
