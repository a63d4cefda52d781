"""Parameters and FLOPs of every prefix, from the settings alone (no torch): what planning and every results file quote.

A multiply-add counts as two operations. Counted are the matrix products (projections, router, SwiGLU or those of
the experts that a row goes to, heads, attention scores and mixing); norms, rotary, softmax and look-ups are left out, as is usual.
A backward pass costs twice its forward pass.
"""

from __future__ import annotations

from collections.abc import Collection

from components.config.model import BlockShape
from components.config.schema import Model
from components.models.stream_sizes import streamed_trunk_flops


def block_parameters(shape: BlockShape) -> int:
    """Weights of one block: q, k, v, out, gate, up, down of all experts, router, two norms, and those of queries and keys."""
    attention = shape.d_model * (2 * shape.d_queries + 2 * shape.d_keys)
    norms = 2 * shape.d_model + (2 * shape.head_dim if shape.qk_norm else 0)
    return attention + shape.d_model * shape.ffn_columns + norms + idle_parameters(shape)


def idle_parameters(shape: BlockShape) -> int:
    """Weights of one block that a row does not meet: those of the experts that it does not go to."""
    experts = shape.experts
    return 0 if experts is None else 3 * shape.d_model * experts.d_inner * (experts.n_experts - experts.top_k)


def prefix_parameters(model: Model, vocab_size: int, depth: int) -> int:
    """Parameters of F_depth as a stand-alone model: embedding slices up to its width, its blocks, its segment's norm and head.

    With streams, every stream has its own slices.
    """
    shape = model.prefix(depth)
    blocks = sum(block_parameters(block) for block in shape.blocks)
    width = shape.segments[-1].d_model
    tables = (1 if model.streams is None else model.streams.n_streams) + (0 if model.tied_embeddings else 1)  # the head is one
    return tables * vocab_size * width + blocks + width


def stored_parameters(model: Model, vocab_size: int) -> int:
    """Parameters of the whole cascade with the exits of all its segments."""
    other_exits = sum(segment.d_model * (vocab_size + 1) for segment in model.segments[:-1])
    return prefix_parameters(model, vocab_size, model.n_blocks) + other_exits


def block_flops(shape: BlockShape, seq_len: int) -> int:
    """Forward FLOPs per token of one block: its matrices, and causal attention over on average (seq_len + 1) / 2 positions."""
    matrices = 2 * shape.d_model * (2 * shape.d_queries + 2 * shape.d_keys + shape.ffn_columns)
    attention = 4 * shape.d_queries * (seq_len + 1) // 2
    return matrices + attention


def trunk_flops(model: Model, depth: int, seq_len: int) -> int:
    """Forward FLOPs per token of the first `depth` blocks, over all its streams."""
    if model.streams is not None:
        return streamed_trunk_flops(model, model.streams, depth, seq_len)
    return sum(block_flops(shape, seq_len) for shape in model.blocks[:depth])


def head_flops(model: Model, vocab_size: int, depth: int) -> int:
    """Forward FLOPs per token of the head that reads out depth k: once, or for every stream when every stream predicts."""
    readings = model.streams.n_streams if model.streams is not None and model.streams.supervision == "all" else 1
    return readings * 2 * model.prefix(depth).segments[-1].d_model * vocab_size


def prefix_flops(model: Model, vocab_size: int, depth: int, seq_len: int) -> int:
    """Forward FLOPs per token of F_depth."""
    return trunk_flops(model, depth, seq_len) + head_flops(model, vocab_size, depth)


def sweep_flops(model: Model, vocab_size: int, depths: Collection[int], seq_len: int) -> int:
    """Forward FLOPs per token of one shared trunk pass that is read out at several depths."""
    return trunk_flops(model, max(depths), seq_len) + sum(head_flops(model, vocab_size, depth) for depth in depths)
