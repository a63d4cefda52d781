"""Hidden Decoding on the cascade: n streams per token, each with its own embedding table; the last one predicts.

Rows are token-major: row p of the n T rows is stream p % n of token p // n. Norms, projections and SwiGLUs work on rows and are
the cascade's own; only attention knows streams, and each block has its kind: `intra` within a stream, `cross_full` causal over all
rows, `cross_local` causal over the latest rows. Table 1 is the cascade's, in slices per segment, and so are the others: every
stream gets its fresh slice at a junction, and every depth k is a language model at every n.

Easy to miss: what cannot reach the prediction is not computed. When only the last stream predicts, the last block that looks across
streams and all deeper ones run for that stream alone, and so do all mirrored blocks (their K and V come from an earlier block's
input); a depth before the first such block runs as without streams. The numbers are the same.

A model with n streams can be run with fewer: the last tables are used, so that the predicting stream keeps its table.

Shapes: B batch, T tokens, R = n T rows, Q rows that ask (R or T), D width, H heads, K channels per head.

Source:
    Hidden Decoding at Scale (arXiv 2607.08186); on a cascade, with a depth per request, it is ours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from components.config.schema import Model
from components.config.streams import LayerKind, Streams
from components.models.blocks import Block, Rotary, rotary_angles
from components.models.cascade import Cascade, Table, document_mask
from components.models.experts import Imbalance
from components.models.stream_attention import Window, cross_attention, intra_attention

EVERY_ROW = slice(None)


class BlockRule(NamedTuple):
    """Which rows one block works on, and where they stand: the same for a whole pass and for decoding.

    Attributes:
        entering: rows that come into the block: all, or the last stream's.
        asking: rows of these that go through it.
        read: rows that K and V are made of.
        counts_tokens: whether positions are counted in tokens; else in rows.
    """

    kind: LayerKind
    entering: slice
    asking: slice
    read: slice
    counts_tokens: bool
    window: Window | None


@dataclass(frozen=True)
class LayerRows:
    """How one block runs over the rows of a pass.

    Attributes:
        rotary: angles of all rows.
        documents_BT: number of each token's document when attention stays within documents.
    """

    rule: BlockRule
    n_streams: int
    n_tokens: int
    rotary: Rotary
    documents_BT: Tensor | None

    def taken(self, x_BQD: Tensor, rows: slice) -> Tensor:
        """A choice of all rows, from all of them or from the last stream's, which it is then."""
        return x_BQD if rows == EVERY_ROW or x_BQD.shape[1] == self.n_tokens else x_BQD[:, rows]

    def attend(self, q_BQHK: Tensor, k_BRHK: Tensor, v_BRHK: Tensor) -> Tensor:
        """Mixed values of the rows that ask, [B, Q, H, K]."""
        if self.rule.kind == "intra":
            mask = None if self.documents_BT is None else document_mask(self.documents_BT)
            return intra_attention(q_BQHK, k_BRHK, v_BRHK, self.n_tokens, mask)
        documents = None if self.documents_BT is None else self.documents_BT.repeat_interleave(self.n_streams, dim=1)
        asking = range(self.n_streams * self.n_tokens)[self.rule.asking]
        return cross_attention(q_BQHK, k_BRHK, v_BRHK, asking, self.rule.window, documents)


class StreamBlock(Block):
    """The cascade's block, same weights, over the rows of several streams."""

    def forward(self, x_BQD: Tensor, rows: LayerRows, context_BRD: Tensor | None) -> Tensor:  # type: ignore[override]
        """The residual stream of the rows that ask.

        Args:
            context_BRD: normed input of the earlier block that K and V are made of; None: this block's own.
        """
        x_BQD = rows.taken(x_BQD, rows.rule.entering)
        normed_BQD = self.attention_norm(x_BQD)
        mixed_BQD = self._attention(normed_BQD, normed_BQD if context_BRD is None else context_BRD, rows)
        x_BQD = rows.taken(x_BQD, rows.rule.asking) + mixed_BQD
        out: Tensor = x_BQD + self.ffn(self.ffn_norm(x_BQD))
        return out

    def _attention(self, normed_BQD: Tensor, context_BRD: Tensor, rows: LayerRows) -> Tensor:
        attention, rule = self.attention, rows.rule
        asked_BQD, angles = rows.taken(normed_BQD, rule.asking), _angles(rows.rotary, rule.asking)
        if normed_BQD is context_BRD and rule.asking == rule.read:
            q, k, v = attention.project(asked_BQD, angles)
        else:
            q = attention.queries(asked_BQD, angles)
            k, v = attention.keys_and_values(rows.taken(context_BRD, rule.read), _angles(rows.rotary, rule.read))
        mixed: Tensor = attention.out(rows.attend(q, k, v).flatten(2))
        return mixed


class StreamedCascade(Cascade):
    """A cascade that runs `settings.streams.n_streams` streams per token, or fewer."""

    block_type = StreamBlock

    def __init__(self, settings: Model, vocab_size: int) -> None:
        super().__init__(settings, vocab_size)
        self.streams = cast(Streams, settings.streams)
        self.stream_embeddings = nn.ModuleList(
            nn.ModuleList(Table(vocab_size, cast(Table, table).embedding_dim) for table in self.embeddings)
            for _ in range(self.streams.n_streams - 1)
        )
        self.skips_streams = True  # False computes also what cannot reach the prediction
        self._n, self._reads_all = self.streams.n_streams, False

    @property
    def stream_counts(self) -> tuple[int, ...]:
        return self.streams.counts

    @property
    def n_running(self) -> int:
        return self._n

    @property
    def running_tables(self) -> list[nn.ModuleList]:
        """The embedding table of every running stream, in slices per segment: the last tables that there are."""
        return [self.embeddings, *(cast(nn.ModuleList, own) for own in self.stream_embeddings)][-self._n :]

    @contextlib.contextmanager
    def running(self, n_streams: int, reads_all: bool = False) -> Iterator[None]:
        """As in the cascade.

        Raises:
            ValueError: more streams than the model has, or none.
        """
        if not 1 <= n_streams <= self.streams.n_streams:
            raise ValueError(f"{n_streams} streams outside 1..{self.streams.n_streams}")
        before = self._n, self._reads_all
        self._n, self._reads_all = n_streams, reads_all
        try:
            yield
        finally:
            self._n, self._reads_all = before

    def residuals(
        self,
        tokens_BT: Tensor,
        depths: Collection[int],
        documents_BT: Tensor | None = None,
        skipped: Collection[int] = (),
    ) -> Iterator[tuple[int, Tensor]]:
        """As in the cascade, but each residual stream holds the rows that are read out: [B, T, D], or all [B, n T, D]."""
        deepest = max(depths)
        for depth in depths:
            self.segment_at(depth)
        by_row, by_token = self._rotaries(tokens_BT)
        contexts: dict[int, Tensor] = {}
        sources = {source for depth in range(1, deepest + 1) if (source := self.streams.mirror_source(depth)) is not None}
        takes_all = self.rule(1, deepest).entering == EVERY_ROW  # else tables that nothing reads get no gradient, not one of zero
        x_BQD = self.fresh_slice(tokens_BT, 0, None if takes_all else tokens_BT.shape[1])
        imbalance = Imbalance()
        for depth in range(1, deepest + 1):
            x_BQD = x_BQD if depth == 1 else self.enter(x_BQD, tokens_BT, depth)
            block = cast(StreamBlock, self.blocks[depth - 1])
            if depth in sources:
                contexts[depth] = block.attention_norm(x_BQD)
            if depth not in skipped:
                source = self.streams.mirror_source(depth)
                rule = self.rule(depth, deepest)
                rotary = by_token if rule.counts_tokens else by_row
                rows = LayerRows(rule, self._n, tokens_BT.shape[1], rotary, documents_BT)
                x_BQD = block(x_BQD, rows, None if source is None else contexts[source])
                imbalance.take(block.ffn)
            if depth in depths:
                yield depth, imbalance.attached(self._read_out(x_BQD, tokens_BT.shape[1]))

    def fresh_slice(self, tokens_BT: Tensor, segment: int, n_rows: int | None = None) -> Tensor:
        """The segment's slice of every running stream's table, rows token-major: [..., n T, slice] of tokens [..., T].

        Where only the last stream's T rows are left, of its table alone.
        """
        tables = self.running_tables if n_rows != tokens_BT.shape[-1] else self.running_tables[-1:]
        return torch.stack([table[segment](tokens_BT) for table in tables], dim=-2).flatten(-3, -2)

    def _rotaries(self, tokens_BT: Tensor) -> tuple[Rotary, Rotary]:
        """Angles of all rows, their positions counted in rows and in tokens."""
        rows_R = torch.arange(self._n * tokens_BT.shape[1], device=tokens_BT.device)
        rope = self.settings.head_dim, self.settings.rope_theta, self.settings.rope_scaling
        return rotary_angles(rows_R, *rope), rotary_angles(rows_R // self._n, *rope)

    def rule(self, depth: int, deepest: int) -> BlockRule:
        """How block `depth` works on the rows of the running streams, in a pass that goes no deeper than `deepest`."""
        streams, n = self.streams, self._n
        kind = streams.layers[depth - 1]
        mixing = streams.mixing_depth(deepest) if self._skips() else deepest + 1
        counts_tokens = streams.rope_rule == "logical" or (streams.rope_rule == "by_layer" and kind == "intra")
        if n == 1 and kind == "cross_full":
            kind = "intra"  # the same, with one stream
        first, last = slice(0, None, n), slice(n - 1, None, n)
        entering, asking = last if depth > mixing else EVERY_ROW, last if depth >= mixing else EVERY_ROW
        read = EVERY_ROW
        if kind == "intra" and n > 1:
            read = first if streams.kv == "shared" else asking
        window = _window(streams, n) if kind == "cross_local" else None
        return BlockRule(kind, entering, asking, read, counts_tokens, window)

    def _skips(self) -> bool:
        """Whether rows that reach no prediction are left out: those of the streams that do not predict, after the last mixing."""
        return self.skips_streams and self._n > 1 and not self._reads_all and self.streams.supervision != "sum"

    def _read_out(self, x_BQD: Tensor, n_tokens: int) -> Tensor:
        """The rows that predict: the last stream's, the sum of a token's streams, or all.

        Deviation: where streams are summed is not public; here before the exit's norm, so that equal streams predict as one does.
        """
        if self._reads_all or x_BQD.shape[1] == n_tokens:
            return x_BQD
        if self.streams.supervision == "sum":
            return x_BQD.view(len(x_BQD), n_tokens, self._n, -1).sum(dim=2)
        return x_BQD[:, self._n - 1 :: self._n]


def build_cascade(settings: Model, vocab_size: int) -> Cascade:
    """The model of these settings, weights not set."""
    return Cascade(settings, vocab_size) if settings.streams is None else StreamedCascade(settings, vocab_size)


def _angles(rotary: Rotary, rows: slice) -> Rotary:
    return Rotary(rotary.cos[rows], rotary.sin[rows])


def _window(streams: Streams, n_streams: int) -> Window | None:
    if streams.local is None:
        return None
    return Window(streams.local.size, 1 if streams.local.unit == "rows" else n_streams)
