"""Cuts a stream of documents into rows and writes them as memory-mapped Arrow files.

The token stream is EOS doc1 EOS doc2 EOS ... docN EOS: one end-of-text token first, as start token, then exactly one after each
document. Rows hold seq_len + 1 tokens and start every seq_len tokens, so the last token of a row is also the first of the next one,
and every token but the leading EOS is a target exactly once.

Worked example, seq_len 4, documents `a b c` and `d e`:
stream `| a b c | d e |` -> rows `| a b c |` (4 targets) and `| d e | .` (3 targets, `.` = filling, an EOS that does not count).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from components.config.problems import DataError
from components.data.checked_arrow import CheckedWriter
from components.data.manifest import RowFile, RowsHeader, id_dtype
from components.data.stream import HEADER_KEY

BYTES_PER_BATCH = 8 << 20
BYTES_PER_FILE = 256 << 20

Ids = npt.NDArray[Any]


def n_rows_of(n_tokens: int, seq_len: int) -> int:
    """Rows that hold `n_tokens` targets (documents with their EOS, without the leading one)."""
    return -(-n_tokens // seq_len)


def join_documents(ids: Ids, ends: Ids, eos_id: int) -> Ids:
    """The documents one after another, each followed by EOS.

    Shapes:
        ids: all ids of the documents; ends: where each document ends in `ids`, ascending.
    """
    return np.insert(ids, ends, eos_id)


class RowCutter:
    """Turns pieces of the token stream into full rows, and what is left at the end into one filled-up row."""

    def __init__(self, seq_len: int, eos_id: int, dtype: npt.DTypeLike) -> None:
        self.seq_len = seq_len
        self.eos_id = eos_id
        self._rest = np.array([eos_id], dtype)

    def cut(self, piece: Ids) -> Ids:
        """The rows [n, seq_len + 1] that `piece` completes."""
        stream = np.concatenate([self._rest, piece.astype(self._rest.dtype, copy=False)])
        n_rows = (len(stream) - 1) // self.seq_len
        self._rest = stream[n_rows * self.seq_len :].copy()
        windows = (
            np.lib.stride_tricks.sliding_window_view(stream, self.seq_len + 1)
            if n_rows
            else stream[:0].reshape(0, self.seq_len + 1)
        )
        return windows[:: self.seq_len][:n_rows]

    def last(self) -> tuple[Ids, int]:
        """The filled-up last row [0 or 1, seq_len + 1] and how many of its targets count."""
        n_valid = len(self._rest) - 1
        row = np.full((1 if n_valid else 0, self.seq_len + 1), self.eos_id, self._rest.dtype)
        if n_valid:
            row[0, : n_valid + 1] = self._rest
        return row, n_valid


class RowWriter:
    """Writes rows to `rows-00000.arrow`, `rows-00001.arrow`, ... of bounded size; use it as a context manager.

    Columns: `tokens` (fixed-size list of the smallest unsigned type that holds every id) and `n_valid` (int32).
    """

    def __init__(self, folder: Path, header: RowsHeader, bytes_per_file: int = BYTES_PER_FILE) -> None:
        self.folder = folder
        self.dtype = id_dtype(header.vocab_size)
        row_bytes = (header.seq_len + 1) * self.dtype.itemsize
        self._width = header.seq_len + 1
        self._rows_per_batch = max(1, min(BYTES_PER_BATCH, bytes_per_file) // row_bytes)
        self._rows_per_file = self._rows_per_batch * max(1, bytes_per_file // (self._rows_per_batch * row_bytes))
        self._schema = pa.schema(
            [
                pa.field(
                    "tokens",
                    pa.list_(pa.field("item", pa.from_numpy_dtype(self.dtype), nullable=False), self._width),
                    nullable=False,
                ),
                pa.field("n_valid", pa.int32(), nullable=False),
            ],
            metadata={HEADER_KEY: header.model_dump_json().encode()},
        )
        self._pending: list[Ids] = []
        self._pending_rows = 0
        self._writer: CheckedWriter | None = None
        self._files: list[RowFile] = []
        self._rows_in_file = 0
        self._digest = hashlib.blake2b(digest_size=16)

    def __enter__(self) -> RowWriter:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, rows: Ids) -> None:
        """Appends full rows [n, seq_len + 1]."""
        if len(rows):
            self._pending.append(rows)
            self._pending_rows += len(rows)
        if self._pending_rows >= self._rows_per_batch:
            joined = np.concatenate(self._pending)
            whole = len(joined) - len(joined) % self._rows_per_batch
            for at in range(0, whole, self._rows_per_batch):
                self._write_batch(joined[at : at + self._rows_per_batch], None)
            self._pending, self._pending_rows = [joined[whole:].copy()], len(joined) - whole

    def finish(self, last_row: Ids, n_valid: int) -> tuple[RowFile, ...]:
        """Appends the filled-up last row, closes the files and says what they are."""
        rows = np.concatenate([*self._pending, last_row.astype(self.dtype)])
        if len(rows):
            self._write_batch(rows, n_valid if len(last_row) else None)
        self._close_file()
        return tuple(self._files)

    def _write_batch(self, rows: Ids, last_n_valid: int | None) -> None:
        n_valid = np.full(len(rows), self._width - 1, np.int32)
        if last_n_valid is not None:
            n_valid[-1] = last_n_valid
        flat = np.ascontiguousarray(rows, self.dtype).reshape(-1)
        if self._writer is None:
            self._writer = CheckedWriter(self.folder / f"rows-{len(self._files):05d}.arrow", self._schema)
        tokens = pa.FixedSizeListArray.from_arrays(pa.array(flat), type=self._schema.field("tokens").type)
        self._writer.write(pa.record_batch([tokens, pa.array(n_valid)], schema=self._schema))
        self._digest.update(flat.data)
        self._digest.update(n_valid.data)
        self._rows_in_file += len(rows)
        if self._rows_in_file >= self._rows_per_file:
            self._close_file()

    def _close_file(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        name = f"rows-{len(self._files):05d}.arrow"
        self._files.append(RowFile(file=name, rows=self._rows_in_file, digest=self._digest.hexdigest()))
        self._writer, self._rows_in_file, self._digest = None, 0, hashlib.blake2b(digest_size=16)


def write_rows(
    folder: Path, header: RowsHeader, pieces: Iterator[Ids], bytes_per_file: int = BYTES_PER_FILE
) -> tuple[RowFile, ...]:
    """Packs pieces of the token stream (documents with their EOS, in order) into row files.

    Raises:
        DataError: the pieces do not hold as many tokens as the header says.
    """
    cutter = RowCutter(header.seq_len, header.eos_id, id_dtype(header.vocab_size))
    with RowWriter(folder, header, bytes_per_file) as writer:
        n_tokens = 0
        for piece in pieces:
            writer.write(cutter.cut(piece))
            n_tokens += len(piece)
        if n_tokens != header.tokens_out:
            raise DataError(
                f"{folder.name}: the token shards hold {n_tokens} tokens, their manifest says {header.tokens_out}; "
                "run `dvc repro -f tokenize`"
            )
        return writer.finish(*cutter.last())
