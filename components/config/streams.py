"""Hidden Decoding in the parameter file: how a model runs several streams per token.

Row p of the n L rows of a sequence is stream p % n of token p // n. Which earlier rows a row attends to is set per block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, model_validator

from components.config.section import ArmName, Count, Section, broken_rule

LayerKind = Literal["intra", "cross_full", "cross_local"]


class LocalWindow(Section):
    """How far back a `cross_local` block sees."""

    size: Count = Field(description="a row sees the `size` latest rows, or all rows of the `size` latest tokens, its own included")
    unit: Literal["rows", "tokens"] = Field(description="what `size` counts")


class Streams(Section):
    """The streams of a model; only the last one predicts.

    Source:
        Hidden Decoding at Scale (arXiv 2607.08186).
    """

    n_streams: Count = Field(description="n, streams per token, each with its own embedding table")
    layers: tuple[LayerKind, ...] = Field(
        min_length=1, description="per block: attention within a stream, causal over all rows, or over the latest rows"
    )
    local: LocalWindow | None = Field(default=None, description="window of the cross_local blocks; only with such a block")
    rope_rule: Literal["by_layer", "physical", "logical"] = Field(
        description="positions: by_layer = token index in intra blocks, row index in cross blocks; physical = row; logical = token"
    )
    kv: Literal["separate", "shared"] = Field(description="shared: all streams of an intra block read the first stream's K and V")
    supervision: Literal["last", "all", "sum"] = Field(
        description="what predicts: the last stream; every stream (in training); the sum of a token's streams"
    )
    n_mirrored: int = Field(ge=0, description="KV-Mirror: so many last blocks take K and V from an earlier block's input")
    sampled: tuple[Count, ...] | None = Field(
        default=None, description="each training step draws one of these n and runs the last n streams; absent: always n_streams"
    )

    @property
    def counts(self) -> tuple[int, ...]:
        """Every n that the model is trained with, ascending."""
        return (self.n_streams,) if self.sampled is None else self.sampled

    def mirror_source(self, depth: int) -> int | None:
        """Depth of the block whose normed input block `depth` makes its K and V from; None when that is its own.

        The pairing is U-shaped around the last block that is not mirrored: the next block takes from it, the one after from the
        block before it, and so on.
        """
        own = len(self.layers) - self.n_mirrored
        return 2 * own + 1 - depth if depth > own else None

    def mixing_depth(self, deepest: int) -> int:
        """Depth of the last block, in a pass that ends after block `deepest`, that needs all streams of its input; 0 for none.

        That block and all deeper ones run for the last stream alone when only it predicts: the others would reach no prediction.
        """
        readers = [depth for depth in range(1, deepest + 1) if self.layers[depth - 1] != "intra" or self.kv == "shared"]
        return max((self.mirror_source(depth) or depth for depth in readers), default=0)

    def prefix(self, depth: int) -> Streams:
        """The streams of the first `depth` blocks; those that are left keep their mirror sources."""
        cut = len(self.layers) - depth
        return self.model_copy(update={"layers": self.layers[:depth], "n_mirrored": max(0, self.n_mirrored - cut)})

    @model_validator(mode="after")
    def _check(self) -> Streams:
        is_local = "cross_local" in self.layers
        if is_local and self.local is None:
            raise broken_rule("local", None, "cross_local blocks need a window", "add local: {size: 256, unit: rows}")
        if self.local is not None and not is_local:
            raise broken_rule(
                "local", self.local.size, "is read by cross_local blocks only", "remove it or make a block cross_local"
            )
        if self.n_mirrored and self.supervision != "last":
            raise broken_rule("n_mirrored", self.n_mirrored, "needs supervision: last", "use n_mirrored: 0 or supervision: last")
        counts = self.counts
        if counts != tuple(sorted(set(counts))) or counts[-1:] != (self.n_streams,):
            raise broken_rule(
                "sampled", counts, f"must rise to n_streams = {self.n_streams}", "for example [1, 2, 4] with n_streams: 4"
            )
        return self


class ExpansionBlock(Section):
    """A finished model trained further with more streams, another objective, or both, as written in the file."""

    base: ArmName = Field(description="arm, backbone or earlier expansion that it starts from; one model per seed")
    streams: Mapping[str, Any] | None = Field(
        default=None, description="keys of the streams; with a base that has streams, those that differ; absent: as the base"
    )
    objective: Mapping[str, Any] | None = Field(
        default=None, description="as in `arms`, e.g. telescopic to make every depth of a backbone a model; absent: the base's"
    )
    replication: Literal["cyclic", "block"] = Field(
        default="cyclic", description="new tables copy the old ones as 1 2 1 2, or as 1 1 2 2"
    )
    optimizer: Literal["keep", "fresh"] = Field(description="keep: the base's moments, zero for new tables; fresh: all zero")
    training: Mapping[str, Any] = Field(default={}, description="keys of `training` that differ for this expansion")


class ControlBlock(Section):
    """A base trained further without streams, as written in the file: what data or compute alone would have given."""

    base: ArmName = Field(description="arm or backbone that it starts from: the one that the expansion comes from")
    of: ArmName = Field(description="expansion that it is the control of; its recipe is taken over")
    equal: Literal["tokens", "flops"] = Field(description="it gets as many of these as all expansions from the base to `of`")
