"""NLL of every depth from one trunk pass, summed per validation document.

All prefixes share their blocks, so one pass through the trunk gives the residual stream of every depth; only the exits are applied
N times. Sums per document, not the mean, are what the intervals are computed from.
"""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from components.data.documents import ValidationDocuments
from components.data.stream import PackedRows, inputs_and_labels
from components.evaluation.frontier import aulb, aulb_clipped
from components.models.cascade import Cascade, document_numbers
from components.models.readout import token_nll
from components.models.sizes import prefix_flops, prefix_parameters
from components.results import DepthScore, SeedEvaluation, finite, perplexity


@dataclass(frozen=True)
class DepthSweep:
    """What one pass over the validation rows gave.

    Attributes:
        n_streams: streams per token that ran.
        nll_nats: float64 [documents, N], NLL of all tokens of a document at depth 1..N.
        blocks_run: blocks that had been executed when depth 1..N was read out, counted by hooks while running.
    """

    n_streams: int
    nll_nats: npt.NDArray[np.float64]
    blocks_run: tuple[int, ...]


def sweep_cells(
    model: Cascade,
    rows: PackedRows,
    documents: ValidationDocuments,
    batch_rows: int,
    on_rows: Callable[[int], object] = lambda _: None,
) -> tuple[DepthSweep, ...]:
    """One sweep for every number of streams that the model is trained with, ascending."""
    return tuple(sweep_depths(model, rows, documents, batch_rows, on_rows, n) for n in model.stream_counts)


def sweep_depths(
    model: Cascade,
    rows: PackedRows,
    documents: ValidationDocuments,
    batch_rows: int,
    on_rows: Callable[[int], object] = lambda _: None,
    n_streams: int | None = None,
) -> DepthSweep:
    """Scores all rows at every depth, each token once.

    Args:
        on_rows: told how many rows each finished batch had.
        n_streams: streams that run; all of the model's when None.
    """
    running = model.stream_counts[-1] if n_streams is None else n_streams
    device = next(model.parameters()).device
    sums = torch.zeros(model.n_blocks, len(documents.n_tokens), dtype=torch.float64, device=device)

    def batches() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for batch in _validation_batches(rows, batch_rows, device):
            yield batch
            on_rows(len(batch[0]))

    def add(depth: int, nll_N: Tensor, owner_BT: Tensor) -> None:
        sums[depth - 1].index_add_(0, owner_BT.flatten(), nll_N.double())

    blocks_run = sweep_batches(model, batches(), rows.eos_id, running, add)
    return DepthSweep(running, sums.T.cpu().numpy(), blocks_run)


def sweep_batches(
    model: Cascade,
    batches: Iterable[tuple[Tensor, Tensor, Tensor]],
    eos_id: int,
    n_streams: int,
    add: Callable[[int, Tensor, Tensor], None],
    depths: Collection[int] | None = None,
) -> tuple[int, ...]:
    """NLL of every token of the batches at every depth, from one trunk pass for each batch.

    Args:
        batches: (tokens, labels, whatever `add` needs to know of them), all [B, T].
        add: told (depth, NLL of the batch's tokens, the third of the batch); keep sums, not tokens.
        depths: read out; all when None.

    Shapes:
        tokens, labels: int64 [B, T]. NLL: float32 [B * T], nats, 0 where the label does not count.

    Returns:
        Blocks that had been executed when each depth was read out, counted by hooks while running.
    """
    wanted = range(1, model.n_blocks + 1) if depths is None else depths
    blocks_run: dict[int, int] = {}
    with torch.inference_mode(), model.running(n_streams), counted_blocks(model) as counted:
        for tokens_BT, labels_BT, known_BT in batches:
            within = document_numbers(tokens_BT, eos_id) if model.settings.document_attention == "block_diagonal" else None
            counted.clear()
            for depth, x_BTD in model.residuals(tokens_BT, wanted, within):
                blocks_run[depth] = len(counted)
                add(depth, token_nll(*model.read_residual(x_BTD, depth), labels_BT.flatten()), known_BT)
    return tuple(blocks_run[depth] for depth in wanted)


def score_cells(
    model: Cascade, sweeps: Sequence[DepthSweep], documents: ValidationDocuments, seed: int, seq_len: int
) -> SeedEvaluation:
    """All (depth, streams) cells; the areas are those of the most streams."""
    per_n = [score_depths(model, sweep, documents, seed, seq_len) for sweep in sweeps]
    return per_n[-1].model_copy(update={"depths": tuple(score for evaluation in per_n for score in evaluation.depths)})


def score_depths(model: Cascade, sweep: DepthSweep, documents: ValidationDocuments, seed: int, seq_len: int) -> SeedEvaluation:
    """The sweep as means over the whole validation set, with size and FLOPs of every prefix."""
    n_tokens, n_bytes = int(documents.n_tokens.sum()), int(documents.n_bytes.sum())
    shape = model.settings.serving(sweep.n_streams)
    scores = []
    for depth, total in enumerate(sweep.nll_nats.sum(axis=0).tolist(), 1):
        state, nll = finite(total / n_tokens)
        added_parameters, added_flops = model.added_cost(depth, seq_len)
        scores.append(
            DepthScore(
                depth=depth,
                n_streams=sweep.n_streams,
                state=state,
                nll_nats=nll,
                ppl=perplexity(nll),
                bits_per_byte=None if nll is None else total / (math.log(2.0) * n_bytes),
                parameters=prefix_parameters(shape, model.vocab_size, depth) + added_parameters,
                flops_per_token=prefix_flops(shape, model.vocab_size, depth, seq_len) + added_flops,
                blocks_run=sweep.blocks_run[depth - 1],
            )
        )
    nlls = [score.nll_nats for score in scores]
    return SeedEvaluation(
        seed=seed, depths=tuple(scores), aulb_nats=aulb(nlls), aulb_clipped_nats=aulb_clipped(nlls, model.vocab_size)
    )


def write_document_scores(path: Path, sweeps: Sequence[tuple[int, DepthSweep]], documents: ValidationDocuments) -> None:
    """One line per (seed, streams, document): the input of the paired bootstrap."""
    n_documents = len(documents.n_tokens)
    nll = np.concatenate([sweep.nll_nats for _, sweep in sweeps])
    table = pa.table(
        {
            "seed": np.repeat([seed for seed, _ in sweeps], n_documents),
            "n_streams": np.repeat([sweep.n_streams for _, sweep in sweeps], n_documents),
            "document": np.tile(np.arange(n_documents), len(sweeps)),
            "n_tokens": np.tile(documents.n_tokens, len(sweeps)),
            "n_bytes": np.tile(documents.n_bytes, len(sweeps)),
            "nll_nats": pa.FixedSizeListArray.from_arrays(pa.array(nll.ravel()), nll.shape[1]),
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")  # never written in place: DVC links the file to its cache
    pq.write_table(table, aside)
    aside.replace(path)


def _validation_batches(rows: PackedRows, batch_rows: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """(tokens, labels, index of the document that owns each label), each int64 [rows, seq_len], in stream order."""
    seen = 0
    for start in range(0, len(rows), batch_rows):
        tokens, n_valid = rows.rows(range(start, min(start + batch_rows, len(rows))))
        inputs, labels = inputs_and_labels(tokens, n_valid)
        # An end-of-text input predicts the first token of the next document, and the rows' inputs follow each other without a gap.
        owner = seen + np.cumsum(inputs == rows.eos_id).reshape(inputs.shape) - 1
        seen = int(owner[-1, -1]) + 1
        owner = np.minimum(owner, rows.header.n_documents - 1)  # filling after the last document, which does not count
        yield tuple(torch.from_numpy(array).to(device) for array in (inputs, labels, owner))  # type: ignore[misc]


@contextlib.contextmanager
def counted_blocks(model: Cascade) -> Iterator[list[int]]:
    """A list that grows by one entry whenever a block is executed."""
    ran: list[int] = []
    handles = [block.register_forward_hook(lambda *_: ran.append(1)) for block in model.blocks]
    try:
        yield ran
    finally:
        for handle in handles:
            handle.remove()
