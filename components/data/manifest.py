"""What the data stages write down about themselves: counts, fingerprints and files, typed and strict.

`TokensManifest` goes from tokenize to pack, `DataManifest` from pack to the report, `RowsHeader` sits in the schema metadata of
every row file. None holds a clock reading or a path outside its own folder: the same corpus gives the same bytes. A count of tokens
includes one end-of-text token per document, unless its name says otherwise.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from components.results import Record

MANIFEST_FILE = "manifest.json"
IGNORED = -100  # label of a position that does not count

Split = Literal["train", "validation"]
SPLITS: tuple[Split, ...] = ("train", "validation")


class DocumentCounts(Record):
    """Where every document that the source held went; `total` = the sum of the others without `with_nul`.

    Attributes:
        empty: null, no text, or nothing but whitespace; dropped.
        duplicates: exact copies of an earlier document; dropped.
        below_minimum_score: scored under `minimum_score`; dropped.
        without_score: no score, while `minimum_score` asks for one; dropped.
        with_nul: kept documents with a NUL character. It is valid UTF-8 and has a token: nothing is done about it.
    """

    total: int = 0
    empty: int = 0
    duplicates: int = 0
    below_minimum_score: int = 0
    without_score: int = 0
    train: int = 0
    validation: int = 0
    with_nul: int = 0


class SplitTokens(Record):
    """The tokenized documents of one split.

    Attributes:
        tokens: end-of-text tokens included.
        bytes: UTF-8 bytes of the text.
        fingerprint: of the documents' texts, in order.
        files: Arrow shards, in order.
    """

    documents: int
    tokens: int
    bytes: int
    fingerprint: str
    files: tuple[str, ...]


class TokensManifest(Record):
    """`artifacts/tokens/manifest.json`.

    Attributes:
        corpus_fingerprint: of all kept documents, in order, with their split.
    """

    version: Literal[1]
    corpus_fingerprint: str
    tokenizer_hash: str
    vocab_size: int
    eos_id: int
    documents: DocumentCounts
    train: SplitTokens
    validation: SplitTokens


class RowsHeader(Record):
    """Schema metadata of every row file of one split.

    Attributes:
        fingerprint: names the content: texts, tokenizer, split and row length.
        n_rows: of all files of the split together.
        tokens_in: of the documents that were packed.
        tokens_out: targets in the rows; equal to `tokens_in` minus `tokens_dropped`.
    """

    version: Literal[1]
    split: Split
    seq_len: int
    vocab_size: int
    eos_id: int
    tokenizer_hash: str
    corpus_fingerprint: str
    fingerprint: str
    n_documents: int
    n_rows: int
    tokens_in: int
    tokens_out: int
    tokens_dropped: int


class RowFile(Record):
    """One row file and the hash of its columns."""

    file: str
    rows: int
    digest: str


class SplitRows(Record):
    """The packed rows of one split.

    Attributes:
        bytes: UTF-8 bytes of the packed documents.
        padding_tokens: positions of the last row that do not count.
        unused_documents, unused_tokens: held out beyond `validation_max_tokens`: neither trained on nor scored.
    """

    header: RowsHeader
    bytes: int
    padding_tokens: int
    unused_documents: int
    unused_tokens: int
    files: tuple[RowFile, ...]


class DataManifest(Record):
    """`artifacts/data/manifest.json`.

    Attributes:
        dtype: of the token ids in the row files.
    """

    version: Literal[1]
    dtype: str
    documents: DocumentCounts
    train: SplitRows
    validation: SplitRows


def id_dtype(vocab_size: int) -> np.dtype[np.unsignedinteger]:
    """The smallest unsigned integer type that holds every id of a vocabulary."""
    dtype: np.dtype[np.unsignedinteger] = np.min_scalar_type(vocab_size - 1)
    return dtype
