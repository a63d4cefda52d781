"""Small real corpora and packings for the tests of the data path."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from components.config.schema import BpeTokenizer
from components.data.manifest import RowsHeader, id_dtype
from components.data.rows import join_documents, n_rows_of, write_rows
from components.data.sources import Document
from components.data.stream import PackedRows
from components.data.tokenizer import Tokenizer, train_bpe

EOS = 0


class ListCorpus:
    """A source over texts in memory; ids are `doc-0`, `doc-1`, ..."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = list(texts)

    def documents(self) -> Iterator[Document]:
        for i, text in enumerate(self.texts):
            yield Document(f"doc-{i}", text, f"list: row {i}")


def byte_tokenizer() -> Tokenizer:
    """The smallest BPE: the 256 bytes and the end-of-text token, id 0."""
    return train_bpe(["unused"], BpeTokenizer(kind="bpe", vocab_size=257, training_bytes=100))[0]


def sentences(n: int, first: int = 0) -> list[str]:
    """`n` different documents of different lengths."""
    return [f"Document {i}: " + " ".join(f"word{i * j % 97}" for j in range(1, 3 + i % 11)) + "." for i in range(first, first + n)]


def pack(
    folder: Path,
    documents: Sequence[Sequence[int]],
    seq_len: int,
    vocab_size: int = 64,
    bytes_per_file: int = 1 << 20,
    documents_per_piece: int = 2,
) -> PackedRows:
    """Rows of documents given as ids (never 0, the EOS)."""
    total = sum(len(document) + 1 for document in documents)
    header = RowsHeader(
        version=1,
        split="train",
        seq_len=seq_len,
        vocab_size=vocab_size,
        eos_id=EOS,
        tokenizer_hash="t",
        corpus_fingerprint="c",
        fingerprint=hashlib.sha256(repr((documents, seq_len)).encode()).hexdigest(),
        n_documents=len(documents),
        n_rows=n_rows_of(total, seq_len),
        tokens_in=total,
        tokens_out=total,
        tokens_dropped=0,
    )

    def pieces() -> Iterator[np.ndarray]:
        for at in range(0, len(documents), documents_per_piece):
            some = documents[at : at + documents_per_piece]
            ids = np.array([i for document in some for i in document], id_dtype(vocab_size))
            yield join_documents(ids, np.cumsum([len(document) for document in some]), EOS)

    write_rows(folder, header, pieces(), bytes_per_file)
    return PackedRows.open(folder)
