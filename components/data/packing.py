"""From token shards to packed rows of both splits: the work of the stage `pack`.

Training documents keep the order of the corpus; the stream shuffles rows. Validation documents come in the order of their hash,
until `validation_max_tokens` is reached: which ones does not depend on the order of the corpus. The others stay unused, never
trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from components.data.checked_arrow import CheckedFile, CheckedWriter
from components.data.documents import DOCUMENTS_FILE, DOCUMENTS_SCHEMA
from components.data.folders import replaced_folder
from components.data.manifest import MANIFEST_FILE, DataManifest, RowsHeader, Split, SplitRows, TokensManifest, id_dtype
from components.data.rows import BYTES_PER_FILE, Ids, join_documents, n_rows_of, write_rows
from components.results import read_record, write_record


def pack_study(
    tokens_folder: Path, out: Path, seq_len: int, validation_max_tokens: int, on_tokens: Callable[[int], None]
) -> DataManifest:
    """Packs both splits into `out`, which appears whole.

    Args:
        on_tokens: called with the number of new tokens as they are packed.

    Raises:
        DataError: a token shard is missing or damaged.
        ResultsError: there is no manifest of the stage tokenize.
    """
    tokens = read_record(TokensManifest, tokens_folder / MANIFEST_FILE)
    with replaced_folder(out, MANIFEST_FILE) as folder:
        manifest = DataManifest(
            version=1,
            dtype=str(id_dtype(tokens.vocab_size)),
            documents=tokens.documents,
            train=_pack_train(tokens, tokens_folder, folder / "train", seq_len, on_tokens),
            validation=_pack_validation(tokens, tokens_folder, folder / "validation", seq_len, validation_max_tokens, on_tokens),
        )
        write_record(manifest, folder / MANIFEST_FILE)
    return manifest


def _pack_train(tokens: TokensManifest, shards: Path, folder: Path, seq_len: int, on_tokens: Callable[[int], None]) -> SplitRows:
    train = tokens.train

    def pieces() -> Iterator[Ids]:
        for batch in _batches(shards, train.files):
            column = batch.column("tokens")
            ends = column.offsets.to_numpy()[1:] - column.offsets[0].as_py()
            yield _counted(join_documents(column.flatten().to_numpy(), ends, tokens.eos_id), on_tokens)

    header = _header(tokens, "train", seq_len, train.documents, train.tokens, train.fingerprint)
    return _split_rows(folder, header, pieces(), train.bytes, 0, 0)


def _pack_validation(
    tokens: TokensManifest, shards: Path, folder: Path, seq_len: int, max_tokens: int, on_tokens: Callable[[int], None]
) -> SplitRows:
    batches = list(_batches(shards, tokens.validation.files))
    about = pa.Table.from_batches([batch.select(["id", "digest", "n_bytes"]) for batch in batches])
    n_tokens = np.concatenate([batch.column("tokens").value_lengths().to_numpy(zero_copy_only=False) + 1 for batch in batches])
    starts = np.cumsum([0, *(len(batch) for batch in batches)])
    order = _order_by_hash(about.column("digest"))
    reached = np.cumsum(n_tokens[order], dtype=np.int64)
    chosen = order[: int(np.searchsorted(reached, max_tokens)) + 1]
    about, n_chosen = about.take(pa.array(chosen)), n_tokens[chosen].astype(np.int64)

    def pieces() -> Iterator[Ids]:
        for row in chosen:
            at = int(np.searchsorted(starts, row, side="right")) - 1
            ids = batches[at].column("tokens")[int(row - starts[at])].values.to_numpy()
            yield _counted(np.append(ids, ids.dtype.type(tokens.eos_id)), on_tokens)

    fingerprint = hashlib.blake2b(b"".join(about.column("digest").to_pylist()), digest_size=16).hexdigest()
    header = _header(tokens, "validation", seq_len, len(chosen), int(n_chosen.sum()), fingerprint)
    n_unused = len(order) - len(chosen)
    n_bytes = int(about.column("n_bytes").to_numpy().sum())
    packed = _split_rows(folder, header, pieces(), n_bytes, n_unused, tokens.validation.tokens - header.tokens_in)
    listing = pa.table([about.column("id"), pa.array(n_chosen), about.column("n_bytes")], schema=DOCUMENTS_SCHEMA)
    with CheckedWriter(folder / DOCUMENTS_FILE, DOCUMENTS_SCHEMA) as writer:
        for batch in listing.combine_chunks().to_batches():
            writer.write(batch)
    return packed


def _header(tokens: TokensManifest, split: Split, seq_len: int, n_documents: int, n_tokens: int, texts: str) -> RowsHeader:
    content = "|".join((split, str(seq_len), tokens.tokenizer_hash, texts))
    return RowsHeader(
        version=1,
        split=split,
        seq_len=seq_len,
        vocab_size=tokens.vocab_size,
        eos_id=tokens.eos_id,
        tokenizer_hash=tokens.tokenizer_hash,
        corpus_fingerprint=tokens.corpus_fingerprint,
        fingerprint=hashlib.blake2b(content.encode(), digest_size=16).hexdigest(),
        n_documents=n_documents,
        n_rows=n_rows_of(n_tokens, seq_len),
        tokens_in=n_tokens,
        tokens_out=n_tokens,
        tokens_dropped=0,
    )


def _split_rows(
    folder: Path, header: RowsHeader, pieces: Iterator[Ids], n_bytes: int, unused_documents: int, unused_tokens: int
) -> SplitRows:
    return SplitRows(
        header=header,
        bytes=n_bytes,
        padding_tokens=header.n_rows * header.seq_len - header.tokens_out,
        unused_documents=unused_documents,
        unused_tokens=unused_tokens,
        files=write_rows(folder, header, pieces, BYTES_PER_FILE),
    )


def _counted(piece: Ids, on_tokens: Callable[[int], None]) -> Ids:
    on_tokens(len(piece))
    return piece


def _batches(folder: Path, files: tuple[str, ...]) -> Iterator[Any]:
    for name in files:
        shard = CheckedFile(folder / name, "tokenize")
        for i in range(len(shard.batches)):
            yield shard.check(i)


def _order_by_hash(digests: Any) -> npt.NDArray[np.int64]:
    flat = np.frombuffer(b"".join(digests.to_pylist()), ">u8").reshape(-1, 2)
    order: npt.NDArray[np.int64] = np.lexsort((flat[:, 1], flat[:, 0]))
    return order
