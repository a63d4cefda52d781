"""Training speed of a stand-alone model against `transformers`' LlamaForCausalLM with torch's AdamW.

Same shape, same weights at the start, same batch; the losses of the first step have to agree, or nothing is measured. Each side
takes whole optimizer steps as its users would: loss, backward, clipping, AdamW; ours multiplies in oneDNN where that pays, as a
training worker does. Single thread, float32. Two shapes: a width where matrix products are most of a step, and the widths of the
quick scale, where overhead counts, and where blocks are also compiled (`runtime.compile`), which takes a C++ compiler. The note
says what share of our step the same matrix products and attention take by themselves: nothing that computes this step can be
faster than they are.

    python -m bench.train_speed [--size full]
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention

from bench.peers import llama_of
from bench.turns import Goal, Row, Size, at_least, dense_model, quick_study, quotients, run_alone, take_turns
from components.config.schema import Arm
from components.data.stream import Batch
from components.models.onednn import onednn_products
from components.objectives.base import build_objective
from components.objectives.twin import Settings as Twin
from components.training.compiled import compile_blocks
from components.training.step import TrainState, train_step


class Shape(NamedTuple):
    """What is trained, and how many tokens a step takes."""

    n_blocks: int
    d_model: int
    head_dim: int
    vocab_size: int
    rows: int
    seq_len: int


WIDE, QUICK = Shape(6, 256, 64, 4096, 2, 256), Shape(16, 80, 16, 1024, 8, 128)
CASES: dict[str, tuple[Shape, Goal, bool]] = {
    "train tokens/s, width 256": (WIDE, at_least(1.0), False),
    "train tokens/s, quick widths": (QUICK, at_least(1.5), False),
    "train tokens/s, quick widths, compiled": (QUICK, at_least(1.5), True),
}
SMOKE = Shape(2, 32, 16, 64, 2, 16)
ROUNDS = {"smoke": 1, "short": 3, "full": 9}


def rows(size: Size) -> list[Row]:
    """Our tokens per second over the peer's, for each shape."""
    torch.set_num_threads(1)
    found = []
    for measure, (shape, goal, compiles) in CASES.items():
        if compiles and shutil.which("g++") is None:
            found.append(Row(1, measure, "transformers + torch AdamW", goal, None, "needs g++"))
            continue
        shape = SMOKE if size == "smoke" else shape
        ours, theirs = sides(shape, compiles)
        seconds = take_turns({"ours": ours, "theirs": theirs, "floor": floor(shape)}, ROUNDS[size])
        of = {side: quotients(seconds[side], seconds["ours"]) for side in ("theirs", "floor")}
        note = f"its products and attention alone take {of['floor'].median:.2f} of our step"
        found.append(Row(1, measure, "transformers + torch AdamW", goal, of["theirs"], note))
    return found


def sides(shape: Shape, compiles: bool = False) -> tuple[Callable[[], object], Callable[[], object]]:
    """One optimizer step of each side, of ours with compiled blocks if asked.

    Raises:
        RuntimeError: the two do not compute the same loss.
    """
    arm = _arm(shape)
    training, objective = arm.training, build_objective(arm, shape.vocab_size, 0)
    network = objective.new_model()
    network.init_weights(0)
    llama = llama_of(network, shape.seq_len).train()
    if compiles:
        compile_blocks(network)
    state = TrainState.fresh(network, training)
    random = np.random.default_rng(0)
    tokens = random.integers(0, shape.vocab_size, (shape.rows, shape.seq_len + 1))
    batch = Batch(tokens[:, :-1].copy(), tokens[:, 1:].copy(), shape.rows * shape.seq_len)
    inputs, labels = torch.from_numpy(batch.inputs), torch.from_numpy(batch.labels)
    betas = (training.beta1, training.beta2)
    optimizer = torch.optim.AdamW(llama.parameters(), lr=training.lr, betas=betas, weight_decay=training.weight_decay)
    with torch.no_grad():
        theirs = float(llama(input_ids=inputs, labels=labels, shift_labels=labels).loss)
    with onednn_products():  # as below, so that compiled blocks are made for it
        ours = train_step(state, batch, objective, training, shape.rows, eos_id=0)["loss"]
    if abs(ours - theirs) > 1e-4 * theirs:
        raise RuntimeError(f"the two do not compute the same loss: {ours} and {theirs}")

    def our_step() -> None:
        with onednn_products():  # as a training worker does
            train_step(state, batch, objective, training, shape.rows, eos_id=0)

    def their_step() -> None:
        llama(input_ids=inputs, labels=labels, shift_labels=labels).loss.backward()
        torch.nn.utils.clip_grad_norm_(llama.parameters(), training.grad_clip_norm)
        optimizer.step()
        optimizer.zero_grad()

    return our_step, their_step


def floor(shape: Shape) -> Callable[[], object]:
    """The matrix products and the attention of one step, forward and backward, and nothing else."""
    network = build_objective(_arm(shape), shape.vocab_size, 0).new_model()
    weights = [
        weight.detach()
        for name, weight in network.named_parameters()
        if weight.ndim == 2 and not name.startswith("embeddings")  # looked up, not multiplied
    ]
    n_tokens = shape.rows * shape.seq_len
    sizes = {size for weight in weights for size in weight.shape}
    rows_of = {size: torch.randn(n_tokens, size) for size in sizes}
    heads = (shape.rows, shape.d_model // shape.head_dim, shape.seq_len, shape.head_dim)
    query, key, value = (torch.randn(heads, requires_grad=True) for _ in range(3))
    of_output = torch.randn(heads)

    def products() -> None:
        with onednn_products():
            for weight in weights:
                given, received = rows_of[weight.shape[1]], rows_of[weight.shape[0]]
                given @ weight.T
                received @ weight
                received.T @ given
        for _ in range(shape.n_blocks):
            mixed = scaled_dot_product_attention(query, key, value, is_causal=True)
            torch.autograd.grad(mixed, (query, key, value), of_output)

    return products


def _arm(shape: Shape) -> Arm:
    training = quick_study().training.model_copy(update={"steps": 10**6, "warmup_steps": 0})
    model = dense_model(shape.n_blocks, shape.d_model, shape.head_dim)
    return Arm(name="bench", base=None, model=model, training=training, objective=Twin(kind="twin", exit=1))


if __name__ == "__main__":
    run_alone(rows, __doc__)
