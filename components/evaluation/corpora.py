"""Bits per byte of texts that nothing was trained on, at every depth from one pass.

A corpus is packed like the validation set (end-of-text, document, end-of-text, ...; rows of seq_len tokens that follow each other
without overlap), so the two numbers can be compared: a shorter context, not another measure, would explain no difference.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from components.config.benchmarks import TextCorpus
from components.config.problems import DataError
from components.data.files import FilesCorpus
from components.data.manifest import id_dtype
from components.data.rows import RowCutter
from components.data.stream import inputs_and_labels
from components.data.tokenizer import Tokenizer
from components.evaluation.sweep import sweep_batches
from components.models.cascade import Cascade
from components.results import CorpusDepth, CorpusScores, finite

DOCUMENTS_PER_PIECE = 256


@dataclass(frozen=True)
class PackedCorpus:
    """A corpus as rows of tokens, in memory.

    Attributes:
        rows: [n, seq_len + 1] of the smallest unsigned type; the last row is filled up with end-of-text.
        n_valid_last: targets of the last row that count.
        n_tokens: targets, one end-of-text per document included.
        n_bytes: UTF-8 bytes of the texts.
        fingerprint: of the texts, in order.
    """

    name: str
    rows: npt.NDArray[np.unsignedinteger]
    n_valid_last: int
    n_documents: int
    n_empty: int
    n_tokens: int
    n_bytes: int
    fingerprint: str


def pack_corpus(name: str, settings: TextCorpus, tokenizer: Tokenizer, seq_len: int) -> PackedCorpus:
    """Reads, tokenizes and packs the corpus, up to its `max_bytes`.

    Raises:
        DataError: the files cannot be read or hold no text.
    """
    cutter = RowCutter(seq_len, tokenizer.eos_id, id_dtype(tokenizer.vocab_size))
    digest = hashlib.blake2b(digest_size=16)
    rows, n_documents, n_tokens, n_bytes, n_empty = [], 0, 0, 0, [0]
    for texts in _pieces(name, settings, n_empty):
        for text, ids in zip(texts, tokenizer.encode_batch([text.decode() for text in texts]), strict=True):
            rows.append(cutter.cut(np.array([*ids, tokenizer.eos_id])))
            digest.update(hashlib.blake2b(text, digest_size=16).digest())
            n_documents, n_tokens, n_bytes = n_documents + 1, n_tokens + len(ids) + 1, n_bytes + len(text)
    if not n_documents:
        raise DataError(
            f"benchmarks.corpora.{name}: no text in its files ({n_empty[0]} empty documents); check paths and text_column"
        )
    last, n_valid = cutter.last()
    packed = np.concatenate([*rows, last])
    return PackedCorpus(name, packed, n_valid or seq_len, n_documents, n_empty[0], n_tokens, n_bytes, digest.hexdigest())


def score_corpus(
    model: Cascade, corpus: PackedCorpus, eos_id: int, batch_rows: int, on_rows: Callable[[int], object] = lambda _: None
) -> CorpusScores:
    """NLL and bits per byte of every prefix, for every number of streams that the model is trained with.

    Args:
        on_rows: told how many rows each finished batch had.
    """
    depths = [cell for n in model.stream_counts for cell in _score_depths(model, corpus, eos_id, batch_rows, on_rows, n)]
    return CorpusScores(
        corpus=corpus.name,
        fingerprint=corpus.fingerprint,
        n_documents=corpus.n_documents,
        n_empty=corpus.n_empty,
        n_tokens=corpus.n_tokens,
        n_bytes=corpus.n_bytes,
        depths=tuple(depths),
    )


def _score_depths(
    model: Cascade, corpus: PackedCorpus, eos_id: int, batch_rows: int, on_rows: Callable[[int], object], n_streams: int
) -> list[CorpusDepth]:
    device = next(model.parameters()).device
    sums = torch.zeros(model.n_blocks, dtype=torch.float64, device=device)

    def batches() -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for start in range(0, len(corpus.rows), batch_rows):
            rows = corpus.rows[start : start + batch_rows].astype(np.int64)
            n_valid = np.full(len(rows), rows.shape[1] - 1)
            if start + len(rows) == len(corpus.rows):
                n_valid[-1] = corpus.n_valid_last
            tokens_BT, labels_BT = (torch.from_numpy(array).to(device) for array in inputs_and_labels(rows, n_valid))
            yield tokens_BT, labels_BT, tokens_BT
            on_rows(len(rows))

    def add(depth: int, nll_N: Tensor, _: Tensor) -> None:
        sums[depth - 1] += nll_N.double().sum()

    blocks_run = sweep_batches(model, batches(), eos_id, n_streams, add)
    cells = []
    for depth, (total_nats, ran) in enumerate(zip(sums.tolist(), blocks_run, strict=True), 1):
        state, nll = finite(total_nats / corpus.n_tokens)
        bits = None if nll is None else total_nats / (math.log(2.0) * corpus.n_bytes)
        cells.append(CorpusDepth(depth=depth, n_streams=n_streams, blocks_run=ran, state=state, nll_nats=nll, bits_per_byte=bits))
    return cells


def _pieces(name: str, settings: TextCorpus, n_empty: list[int]) -> Iterator[list[bytes]]:
    """The texts, as UTF-8, a few hundred at a time; empty ones are counted in `n_empty` and left out."""
    piece: list[bytes] = []
    n_bytes = 0
    try:
        for document in FilesCorpus(settings.paths, settings.text_column).documents():
            if not document.text or document.text.isspace():
                n_empty[0] += 1
                continue
            piece.append(document.utf8())
            n_bytes += len(piece[-1])
            if len(piece) == DOCUMENTS_PER_PIECE:
                yield piece
                piece = []
            if n_bytes >= settings.max_bytes:
                break
    except DataError as error:  # its reader knows only the key of the training corpus
        raise DataError(str(error).replace("data.source.", f"benchmarks.corpora.{name}.")) from None
    if piece:
        yield piece
