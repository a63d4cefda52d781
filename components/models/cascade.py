"""The cascade of the Telescopic and Matryoshka papers: blocks in segments of growing width, a language model at every depth.

Segment m works at width d_m. At its junction the residual stream of the previous segment is widened by a fresh slice of the input
embedding. Every segment has its own exit (final norm and head), so the first k blocks with the exit of block k's segment are a
complete language model F_k, for every k.

The one shared embedding table is stored as one table per segment, each holding the channels that segment adds. A prefix then reads,
and gives gradients to, exactly the slices it uses; the numbers are those of one wide table.

Shapes: B batch, T tokens, D width of the residual stream, V vocabulary.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from components.config.schema import Model
from components.models.blocks import Block, RMSNorm, Rotary, rotary_angles
from components.models.experts import Imbalance
from components.models.parts import put


class Table(nn.Embedding):
    """A slice of an embedding table, its weights not set: they come from `init_weights` or a file.

    Drawn on the device `meta`, where a model is made before it is loaded, they would have torch import its compiler, for a second.
    """

    def reset_parameters(self) -> None:
        """Leaves the weights as they are."""


class TiedHead(nn.Module):
    """The embedding table as a head: it has no parameter of its own, and is saved and trained as the table alone."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.in_features, self.out_features = table.embedding_dim, table.num_embeddings
        self.__dict__["_table"] = table  # not as a submodule

    @property
    def weight(self) -> Tensor:
        table: nn.Embedding = self.__dict__["_table"]
        return table.weight


class Exit(nn.Module):
    """The read-out of one segment: final norm and language-model head, which may be the embedding table."""

    def __init__(self, d_model: int, vocab_size: int, norm_eps: float, tied: nn.Embedding | None = None) -> None:
        super().__init__()
        self.norm = RMSNorm(d_model, norm_eps)
        self.head = nn.Linear(d_model, vocab_size, bias=False) if tied is None else TiedHead(tied)


class Cascade(nn.Module):
    """A telescopic language model: `n_blocks` nested models that share their blocks.

    Source:
        Matryoshka Language Model Suites (arXiv 2608.09703) for the architecture; Telescopic Language Models (arXiv 2609.35769).
    """

    block_type: ClassVar[type[Block]] = Block

    def __init__(self, settings: Model, vocab_size: int) -> None:
        super().__init__()
        self.settings, self.vocab_size = settings, vocab_size
        widths = [segment.d_model for segment in settings.segments]
        self.embeddings = nn.ModuleList(
            Table(vocab_size, width - before) for before, width in zip([0, *widths], widths, strict=False)
        )
        self.blocks = nn.ModuleList(self.block_type(shape) for shape in settings.blocks)
        tied = cast(nn.Embedding, self.embeddings[0]) if settings.tied_embeddings else None
        self.exits = nn.ModuleList(Exit(width, vocab_size, settings.norm_eps, tied) for width in widths)
        self._segment_of_block = [i for i, segment in enumerate(settings.segments) for _ in range(segment.n_blocks)]

    @property
    def n_blocks(self) -> int:
        """N, the deepest depth."""
        return len(self._segment_of_block)

    @property
    def stream_counts(self) -> tuple[int, ...]:
        """Numbers of Hidden Decoding streams that it is trained to run with, ascending: one alone, here."""
        return (1,)

    @property
    def n_running(self) -> int:
        """Streams that it runs now (`running`)."""
        return 1

    def running(self, n_streams: int, reads_all: bool = False) -> contextlib.AbstractContextManager[None]:
        """Within it, the model runs its last `n_streams` streams; `reads_all` reads out every one of them, not only the last."""
        return contextlib.nullcontext()

    def segment_at(self, depth: int) -> int:
        """Index of the segment that block `depth` is in.

        Raises:
            ValueError: `depth` outside 1..n_blocks.
        """
        if not 1 <= depth <= self.n_blocks:
            raise ValueError(f"depth {depth} outside 1..{self.n_blocks}")
        return self._segment_of_block[depth - 1]

    def exit_at(self, depth: int) -> Exit:
        """Norm and head that read out the residual stream after `depth` blocks."""
        return cast(Exit, self.exits[self.segment_at(depth)])

    def init_weights(self, seed: int) -> None:
        """Draws all weights: normal(0, init_std), residual-output projections scaled by 1/sqrt(2N), norms 1; buffers are 0.

        The draw depends on `seed` and the shape alone, and is the same on every device.
        """
        generator = torch.Generator().manual_seed(seed)
        for buffer in self.buffers():
            nn.init.zeros_(buffer)
        residual_std = self.settings.init_std / (2 * self.n_blocks) ** 0.5
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                nn.init.ones_(parameter)
                continue
            std = residual_std if name.endswith(("attention.out.weight", ".down.weight")) else self.settings.init_std
            drawn = torch.empty(parameter.shape).normal_(0.0, std, generator=generator)
            put(parameter, drawn)

    def residuals(
        self,
        tokens_BT: Tensor,
        depths: Collection[int],
        documents_BT: Tensor | None = None,
        skipped: Collection[int] = (),
    ) -> Iterator[tuple[int, Tensor]]:
        """Runs the trunk once, as deep as asked, and yields the residual stream at each wanted depth.

        Args:
            skipped: depths whose block is left out (LayerDrop); a junction widens the stream all the same.

        Shapes:
            tokens_BT: int64 [B, T]. documents_BT: int64 [B, T], number of the document each token is in; given, attention stays
            within documents. Yields (k, [B, T, d_model of k's segment]) in order of depth.

        Raises:
            ValueError: a depth outside 1..n_blocks.
        """
        wanted = set(depths)
        for depth in wanted:
            self.segment_at(depth)
        rotary = self.rotary(tokens_BT.shape[1], tokens_BT.device)
        mask_B1TT = None if documents_BT is None else document_mask(documents_BT)
        x_BTD: Tensor | None = None
        imbalance = Imbalance()
        for depth in range(1, max(wanted) + 1):
            x_BTD = self.enter(x_BTD, tokens_BT, depth)
            if depth not in skipped:
                block = cast(Block, self.blocks[depth - 1])
                x_BTD = block(x_BTD, rotary, mask_B1TT)
                imbalance.take(block.ffn)
            if depth in wanted:
                yield depth, imbalance.attached(x_BTD)

    def read(self, tokens_BT: Tensor, depth: int, documents_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Hidden states of F_depth, ready for its head, and the head's weights (`readout.py` makes losses of them).

        Shapes:
            Returns [B * T, D] and [V, D].
        """
        ((_, x_BTD),) = self.residuals(tokens_BT, [depth], documents_BT)
        return self.read_residual(x_BTD, depth)

    def read_residual(self, x_BTD: Tensor, depth: int) -> tuple[Tensor, Tensor]:
        """The same from the residual stream after `depth` blocks."""
        out = self.exit_at(depth)
        hidden_ND: Tensor = out.norm(x_BTD).flatten(0, 1)
        return hidden_ND, out.head.weight

    @torch.no_grad()
    def read_frozen(self, tokens_BT: Tensor, depth: int, documents_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """`read` without a graph: what a teacher needs."""
        return self.read(tokens_BT, depth, documents_BT)

    def added_cost(self, depth: int, seq_len: int) -> tuple[int, int]:
        """Parameters, and forward FLOPs per token, that reading out `depth` takes beyond its segment's exit: none here."""
        return 0, 0

    def enter(self, x_BTD: Tensor | None, tokens_BT: Tensor, depth: int) -> Tensor:
        """The input of block `depth`: the stream itself, or at a junction the stream widened by the segment's fresh slice."""
        segment = self.segment_at(depth)
        if x_BTD is not None and self.segment_at(depth - 1) == segment:
            return x_BTD
        fresh_BTD = self.fresh_slice(tokens_BT, segment, None if x_BTD is None else x_BTD.shape[-2])
        if x_BTD is None:
            return fresh_BTD
        if self.settings.junction_norm:
            x_BTD = match_norm(x_BTD, fresh_BTD)
        return torch.cat((x_BTD, fresh_BTD.to(x_BTD.dtype)), dim=-1)

    def fresh_slice(self, tokens_BT: Tensor, segment: int, n_rows: int | None = None) -> Tensor:
        """The channels of the embedding that the segment adds, [B, T, slice]; `n_rows`: rows that it is added to, T here."""
        fresh_BTD: Tensor = self.embeddings[segment](tokens_BT)
        return fresh_BTD

    def rotary(self, length: int, device: torch.device) -> Rotary:
        """Rotary angles of positions 0..length-1; all segments share them (one head_dim)."""
        settings = self.settings
        return rotary_angles(torch.arange(length, device=device), settings.head_dim, settings.rope_theta, settings.rope_scaling)

    def forward(self, tokens_BT: Tensor, depth: int, documents_BT: Tensor | None = None) -> Tensor:
        """Logits of F_depth.

        Shapes:
            tokens_BT: int64 [B, T]. Returns [B, T, V].

        Raises:
            ValueError: `depth` outside 1..n_blocks.
        """
        hidden_ND, head_VD = self.read(tokens_BT, depth, documents_BT)
        return (hidden_ND @ head_VD.T).view(*tokens_BT.shape, self.vocab_size)


def match_norm(x_BTD: Tensor, reference_BTD: Tensor) -> Tensor:
    """`x`, rescaled per token to the L2 norm of `reference` (whose width may differ).

    Source:
        The "norm" suites of Matryoshka Language Model Suites.
    """
    norm = torch.linalg.vector_norm(x_BTD, dim=-1, keepdim=True).clamp_min(1e-12)
    wanted = torch.linalg.vector_norm(reference_BTD, dim=-1, keepdim=True)
    rescaled_BTD: Tensor = x_BTD * (wanted / norm)
    return rescaled_BTD


def document_numbers(tokens_BT: Tensor, eos_id: int) -> Tensor:
    """Number of the document, within its row, that each input token is in; an end-of-text token starts the next document."""
    return (tokens_BT == eos_id).cumsum(dim=1)


def document_mask(documents_BT: Tensor) -> Tensor:
    """Bool [B, 1, T, T]: True where the query may attend, causally and within its own document."""
    same_BTT = documents_BT[:, :, None] == documents_BT[:, None, :]
    return same_BTT.tril()[:, None]
