"""The section `model` of `params.yaml`: the shape of the cascade, and of the blocks that it is made of.

A model of one width is a cascade of one segment, so the same section describes a Llama, SmolLM2 or Qwen3: all depths of its one
segment share the final norm and the head.
"""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from pydantic import Field, model_validator

from components.config.experts import Experts
from components.config.section import Count, Section, broken_rule
from components.config.streams import Streams


class BlockShape(NamedTuple):
    """Sizes of one block, whatever they were derived from.

    Attributes:
        n_kv_heads: heads of keys and values; several query heads read one (grouped-query attention) when they are fewer.
        d_inner: inner width of the SwiGLU; with experts, that which one row goes through.
        qk_norm: queries and keys pass an RMSNorm of their own, per head, before the rotation.
        experts: the mixture that takes the SwiGLU's place; None: it is dense.
    """

    d_model: int
    head_dim: int
    n_heads: int
    n_kv_heads: int
    d_inner: int
    qk_norm: bool
    norm_eps: float
    experts: Experts | None = None

    @property
    def d_queries(self) -> int:
        """Width of all queries together, and of what attention mixes."""
        return self.n_heads * self.head_dim

    @property
    def d_keys(self) -> int:
        """Width of all keys together; the values have the same."""
        return self.n_kv_heads * self.head_dim

    @property
    def ffn_columns(self) -> int:
        """Columns of width d_model that a row is multiplied with in the feed-forward: gate, up, down, and the router's."""
        return 3 * self.d_inner + (0 if self.experts is None else self.experts.n_experts)

    @property
    def dense(self) -> BlockShape:
        """The same with a SwiGLU as wide as what one row goes through: what a repair adds beside a mixture."""
        return self._replace(experts=None)

    @property
    def is_grouped(self) -> bool:
        """Whether several query heads read one head of keys and values."""
        return self.n_kv_heads != self.n_heads


class Segment(Section):
    """A run of equal blocks of the cascade, with its own exit (norm and head) at the end."""

    n_blocks: int = Field(ge=1, description="transformer blocks in the segment")
    d_model: int = Field(ge=2, description="width of the residual stream")
    n_heads: Count | None = Field(default=None, description="query heads; absent: d_model / head_dim")
    n_kv_heads: Count | None = Field(default=None, description="heads of keys and values; absent: as many as of queries")
    d_inner: Count | None = Field(default=None, description="inner width of the SwiGLU; absent: ffn_ratio x d_model")


class LinearRope(Section):
    """All rotary frequencies divided by one factor (position interpolation)."""

    kind: Literal["linear"]
    factor: float = Field(ge=1.0, description="how many times longer the context is than the one it was trained on")


class Llama3Rope(Section):
    """Low rotary frequencies divided by a factor, high ones kept, those between them blended."""

    kind: Literal["llama3"]
    factor: float = Field(ge=1.0, description="how many times longer the context is than the one it was trained on")
    low_freq_factor: float = Field(gt=0.0, description="wavelengths above original_context / this are divided by the factor")
    high_freq_factor: float = Field(gt=0.0, description="wavelengths below original_context / this are kept")
    original_context: Count = Field(description="tokens of the context that the model was first trained on")

    @model_validator(mode="after")
    def _check(self) -> Llama3Rope:
        if self.high_freq_factor <= self.low_freq_factor:
            rule = f"must be more than low_freq_factor {self.low_freq_factor}"
            raise broken_rule("high_freq_factor", self.high_freq_factor, rule, "Llama 3 has 1.0 and 4.0")
        return self


RopeScaling = Annotated[LinearRope | Llama3Rope, Field(discriminator="kind")]


class Model(Section):
    """The cascade: Llama-style blocks in segments of strictly growing width."""

    segments: tuple[Segment, ...] = Field(min_length=1)
    head_dim: int = Field(ge=2, description="channels per attention head; even (rotary pairs); divides a width without n_heads")
    ffn_ratio: Count | None = Field(default=None, description="inner width of the SwiGLU / d_model, of segments without d_inner")
    qk_norm: bool = Field(default=False, description="RMSNorm of queries and keys, per head, before the rotation (Qwen3)")
    tied_embeddings: bool = Field(default=False, description="the head is the embedding table; one segment only")
    junction_norm: bool = Field(
        description="rescale the incoming stream, per token, to the L2 norm of the fresh slice at a junction"
    )
    rope_theta: float = Field(gt=0.0, description="base of the rotary angles")
    rope_scaling: RopeScaling | None = Field(default=None, description="change of the rotary frequencies; absent: none")
    norm_eps: float = Field(gt=0.0, description="epsilon of RMSNorm")
    init_std: float = Field(gt=0.0, description="standard deviation of the normal initialisation")
    document_attention: Literal["leak", "block_diagonal"] = Field(
        description="may a token attend to earlier documents packed into the same row"
    )
    streams: Streams | None = Field(default=None, description="Hidden Decoding: several streams per token; absent: one")
    experts: Experts | None = Field(
        default=None, description="mixture of experts in every block, in place of ffn_ratio; absent: dense"
    )

    @property
    def n_blocks(self) -> int:
        """N, the number of blocks of the whole cascade."""
        return sum(segment.n_blocks for segment in self.segments)

    @property
    def exits(self) -> tuple[int, ...]:
        """Depth k of the last block of every segment, e.g. (11, 16, 20)."""
        depths: list[int] = []
        for segment in self.segments:
            depths.append(segment.n_blocks + (depths[-1] if depths else 0))
        return tuple(depths)

    @property
    def blocks(self) -> tuple[BlockShape, ...]:
        """The shape of every block, in order."""
        return tuple(self._block(segment) for segment in self.segments for _ in range(segment.n_blocks))

    def prefix(self, depth: int) -> Model:
        """The model made of just the first `depth` blocks (it keeps the fresh slices up to its own width only)."""
        segments: list[Segment] = []
        left = depth
        for segment in self.segments:
            if left > 0:
                segments.append(segment.model_copy(update={"n_blocks": min(left, segment.n_blocks)}))
            left -= segment.n_blocks
        streams = self.streams and self.streams.prefix(min(depth, self.n_blocks))
        return self.model_copy(update={"segments": tuple(segments), "streams": streams})

    def running(self, n_streams: int) -> Model:
        """The model as it runs with `n_streams` of its streams; itself when it has none."""
        if self.streams is None:
            return self
        return self.model_copy(update={"streams": self.streams.model_copy(update={"n_streams": n_streams, "sampled": None})})

    def serving(self, n_streams: int) -> Model:
        """The model as it predicts with `n_streams` of its streams: where all were trained to predict, the last one does."""
        running = self.running(n_streams)
        if running.streams is None or running.streams.supervision != "all":
            return running
        return running.model_copy(update={"streams": running.streams.model_copy(update={"supervision": "last"})})

    def _block(self, segment: Segment) -> BlockShape:
        n_heads = segment.n_heads or segment.d_model // self.head_dim
        n_kv_heads = segment.n_kv_heads or n_heads
        d_inner = self.experts.active_inner if self.experts else segment.d_inner or (self.ffn_ratio or 0) * segment.d_model
        return BlockShape(segment.d_model, self.head_dim, n_heads, n_kv_heads, d_inner, self.qk_norm, self.norm_eps, self.experts)

    @model_validator(mode="after")
    def _check(self) -> Model:
        if self.head_dim % 2:
            raise broken_rule("head_dim", self.head_dim, "must be even (rotary pairs)", "use an even head_dim")
        for i, segment in enumerate(self.segments):
            self._check_segment(i, segment)
        if self.tied_embeddings and len(self.segments) > 1:
            rule = "needs one segment: a head for each width cannot be one table"
            raise broken_rule("tied_embeddings", True, rule, "leave it out")
        if self.tied_embeddings and self.streams is not None:
            rule = "needs one stream: with several tables there is none that is the head"
            raise broken_rule("tied_embeddings", True, rule, "leave it out")
        self._check_streams()
        return self

    def _check_segment(self, i: int, segment: Segment) -> None:
        if segment.n_heads is None and segment.d_model % self.head_dim:
            raise broken_rule(
                f"segments.{i}.d_model",
                segment.d_model,
                f"must be a multiple of head_dim {self.head_dim}",
                f"use {max(1, segment.d_model // self.head_dim) * self.head_dim}, or change head_dim, or write n_heads",
            )
        shape = self._block(segment)
        if shape.n_heads % shape.n_kv_heads:
            rule = f"must divide the {shape.n_heads} query heads"
            raise broken_rule(f"segments.{i}.n_kv_heads", shape.n_kv_heads, rule, "use a divisor, or leave it out")
        if self.experts is not None and segment.d_inner is not None:
            rule = "is the width of a dense SwiGLU, and experts take its place"
            raise broken_rule(f"segments.{i}.d_inner", segment.d_inner, rule, "leave it out, or leave experts out")
        if not shape.d_inner:
            rule = f"is needed by segment {i}, which has no d_inner"
            raise broken_rule("ffn_ratio", None, rule, "add ffn_ratio: 4, or d_inner to the segment")
        if i and segment.d_model <= self.segments[i - 1].d_model:
            raise broken_rule(
                f"segments.{i}.d_model",
                segment.d_model,
                f"widths must grow strictly (previous segment: {self.segments[i - 1].d_model})",
                "widen this segment or merge it with the previous one",
            )

    def _check_streams(self) -> None:
        if self.streams is None:
            return
        if len(self.streams.layers) != self.n_blocks:
            raise broken_rule(
                "streams.layers",
                len(self.streams.layers),
                f"needs one kind per block, {self.n_blocks}",
                "write intra, cross_full or cross_local for every block",
            )
        if 2 * self.streams.n_mirrored > self.segments[-1].n_blocks:
            raise broken_rule(
                "streams.n_mirrored",
                self.streams.n_mirrored,
                f"mirrored blocks and their sources must fit in the last segment of {self.segments[-1].n_blocks} blocks",
                f"use at most {self.segments[-1].n_blocks // 2}",
            )
