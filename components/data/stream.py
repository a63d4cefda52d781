"""The deterministic batch stream over packed rows: what the training loop reads.

Batch `s` is a pure function of (data fingerprint, seed, s). There is no iterator, no buffer and no position to lose: a resumed run
asks for its next step, and any number of workers share the same global batch. Nothing here knows the arm, so every arm sees the
same batches. The order of an epoch comes from the raw 64-bit output of Philox, which NumPy keeps the same in every version (the
methods of `Generator` it does not).
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import ValidationError

from components.config.problems import DataError
from components.data.checked_arrow import CheckedFile
from components.data.manifest import IGNORED, RowsHeader

HEADER_KEY = b"telescopic_study.rows"

Ints = npt.NDArray[np.int64]


class PackedRows:
    """The rows of one split, memory-mapped; of the files, only the record batches of the rows asked for are read, and checked.

    Attributes:
        header: what the files say about themselves.
    """

    def __init__(self, folder: Path, header: RowsHeader, files: list[CheckedFile]) -> None:
        self.folder = folder
        self.header = header
        self._batches = [(file, i) for file in files for i in range(len(file.batches))]
        self._starts = np.cumsum([0, *(len(file.batches[i]) for file, i in self._batches)])
        self._chunks: dict[int, tuple[npt.NDArray[Any], npt.NDArray[Any]]] = {}

    @classmethod
    def open(cls, folder: Path) -> PackedRows:
        """The rows under `artifacts/data/train` or `artifacts/data/validation`.

        Raises:
            DataError: no row files, one is damaged, they do not belong together, or some are missing.
        """
        paths = sorted(folder.glob("rows-*.arrow"))
        if not paths:
            raise DataError(f"{folder}: no row files (rows-*.arrow); run `dvc repro pack` first")
        header, files = None, []
        for path in paths:
            found, file = _read_file(path)
            if header is not None and found != header:
                raise DataError(
                    f"{path}: belongs to another packing than {paths[0].name}; delete {folder} and run `dvc repro pack`"
                )
            header = found
            files.append(file)
        n_found = sum(len(batch) for file in files for batch in file.batches)
        if header is None or n_found != header.n_rows:
            expected = header.n_rows if header else 0
            raise DataError(f"{folder}: {n_found} rows, expected {expected}: a file is missing; run `dvc repro pack` again")
        return cls(folder, header, files)

    def __len__(self) -> int:
        return self.header.n_rows

    @property
    def seq_len(self) -> int:
        """Predicted tokens per row; a row holds one more."""
        return self.header.seq_len

    @property
    def fingerprint(self) -> str:
        """Names the content of the rows: texts, tokenizer, split and row length."""
        return self.header.fingerprint

    @property
    def vocab_size(self) -> int:
        """Entries of the tokenizer; every id is below it."""
        return self.header.vocab_size

    @property
    def eos_id(self) -> int:
        """Id of the token that starts the stream and ends every document."""
        return self.header.eos_id

    def rows(self, indices: Sequence[int] | Ints) -> tuple[Ints, Ints]:
        """The rows at `indices`, in that order, and how many targets of each count.

        Shapes:
            tokens: int64 [n, seq_len + 1]; n_valid: int64 [n].

        Raises:
            IndexError: an index outside the rows.
            DataError: the rows are not those that were packed: a file is damaged.
        """
        wanted, chunks, offsets = self._locate(indices)
        tokens = np.empty((len(wanted), self.seq_len + 1), np.int64)
        for row, (chunk, offset) in enumerate(zip(chunks, offsets, strict=True)):
            tokens[row] = self._chunk(chunk)[0][offset]
        if tokens.size and int(tokens.max()) >= self.vocab_size:
            raise DataError(
                f"{self.folder}: token id {tokens.max()} outside the vocabulary of {self.vocab_size}: a row file is damaged; "
                "run `dvc repro pack` again"
            )
        return tokens, self.n_valid(wanted)

    def n_valid(self, indices: Sequence[int] | Ints) -> Ints:
        """How many targets of each row at `indices` count, from the column beside the rows."""
        wanted, chunks, offsets = self._locate(indices)
        found = (self._chunk(chunk)[1][offset] for chunk, offset in zip(chunks, offsets, strict=True))
        return np.fromiter(found, np.int64, len(wanted))

    def _chunk(self, i: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Tokens [n, seq_len + 1] and valid targets [n] of one record batch, checked when first asked for."""
        if i not in self._chunks:
            file, number = self._batches[i]
            batch = file.check(number)
            # neither is copied; `to_numpy` would import pandas
            flat, n_valid = (np.from_dlpack(column) for column in (batch.column("tokens").flatten(), batch.column("n_valid")))
            self._chunks[i] = flat.reshape(-1, self.seq_len + 1), n_valid
        return self._chunks[i]

    def _locate(self, indices: Sequence[int] | Ints) -> tuple[Ints, Ints, Ints]:
        wanted = np.asarray(indices, np.int64)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < len(self)):
            raise IndexError(f"row {wanted.min()}..{wanted.max()} outside the {len(self)} rows of {self.folder}")
        chunks = np.searchsorted(self._starts, wanted, side="right") - 1
        return wanted, chunks, wanted - self._starts[chunks]


@dataclass(frozen=True)
class Batch:
    """One worker's share of the global batch of one step.

    Attributes:
        inputs: int64 [rows, seq_len].
        labels: int64 [rows, seq_len]; -100 does not count.
        n_valid_global: labels that count in the whole global batch, all workers together.
    """

    inputs: Ints
    labels: Ints
    n_valid_global: int


def inputs_and_labels(tokens: Ints, n_valid: Ints) -> tuple[Ints, Ints]:
    """Splits rows of seq_len + 1 tokens into inputs and next-token labels; labels past `n_valid` are -100.

    Only filling is ignored, by position. The end-of-text tokens that end documents stay labels, though filling uses the same id.

    Shapes:
        tokens: int64 [n, seq_len + 1]; n_valid: int64 [n]; both results: int64 [n, seq_len].
    """
    labels = tokens[:, 1:].copy()
    labels[np.arange(labels.shape[1]) >= n_valid[:, None]] = IGNORED
    return np.ascontiguousarray(tokens[:, :-1]), labels


class BatchStream:
    """The endless, seekable sequence of global batches of one run."""

    def __init__(self, rows: PackedRows, seed: int, batch_rows: int) -> None:
        """A stream of `batch_rows` rows per step, shuffled anew in every epoch.

        Raises:
            DataError: fewer rows than one batch.
        """
        if len(rows) < batch_rows:
            raise DataError(
                f"{rows.folder}: the corpus is smaller than one batch: {len(rows)} rows of {rows.seq_len} tokens, batch_rows is "
                f"{batch_rows}; add documents, or lower training.batch_rows or data.seq_len"
            )
        self.rows = rows
        self.seed = seed
        self.batch_rows = batch_rows
        self._orders: dict[int, Ints] = {}
        self._chained = (0, "")

    def batch(self, step: int, rank: int = 0, workers: int = 1) -> Batch:
        """Worker `rank`'s contiguous share of the global batch of `step` (from 0).

        Raises:
            ValueError: the workers cannot share the batch evenly, or there is no such rank or step.
        """
        if self.batch_rows % workers or not 0 <= rank < workers:
            raise ValueError(f"rank {rank} of {workers} workers cannot share a batch of {self.batch_rows} rows")
        order = self.global_rows(step)
        share = self.batch_rows // workers
        tokens, n_valid = self.rows.rows(order[rank * share : (rank + 1) * share])
        inputs, labels = inputs_and_labels(tokens, n_valid)
        return Batch(inputs, labels, int(self.rows.n_valid(order).sum()))

    def global_rows(self, step: int) -> Ints:
        """Indices of the rows of the global batch of `step`; a batch may go over the end of an epoch into the next one."""
        if step < 0:
            raise ValueError(f"there is no step {step}")
        first, n_rows = step * self.batch_rows, len(self.rows)
        epoch, at = divmod(first, n_rows)
        head = self._order(epoch)[at : at + self.batch_rows]
        left = self.batch_rows - len(head)
        return head.copy() if not left else np.concatenate([head, self._order(epoch + 1)[:left]])

    def fingerprint(self, upto_step: int, known: tuple[int, str] = (0, "")) -> str:
        """Hash of the global batches of steps 0 .. `upto_step` - 1, tokens and counts, in order.

        It is a chain, hash(s + 1) = H(hash(s), batch s), so going on costs only the new steps. `known` = (step, hash) goes on from
        a hash that a checkpoint stored; without it the stream goes on from its own last answer.
        """
        behind = [at for at in (known, self._chained) if at[0] <= upto_step]
        step, digest = max(behind, default=(0, ""))
        while step < upto_step:
            tokens, n_valid = self.rows.rows(self.global_rows(step))
            running = hashlib.blake2b(digest.encode(), digest_size=16)
            running.update(tokens.astype("<u4").data)
            running.update(n_valid.astype("<u4").data)
            step, digest = step + 1, running.hexdigest()
        self._chained = (step, digest)
        return digest

    def _order(self, epoch: int) -> Ints:
        """The permutation of all rows in `epoch`; those of the current epoch and its neighbour are kept."""
        if epoch not in self._orders:
            keys = np.random.Philox(key=np.array([self.seed, epoch], np.uint64)).random_raw(len(self.rows))
            self._orders = {known: self._orders[known] for known in self._orders if abs(known - epoch) == 1}
            self._orders[epoch] = np.argsort(keys, kind="stable")
        return self._orders[epoch]


def _read_file(path: Path) -> tuple[RowsHeader, CheckedFile]:
    file = CheckedFile(path, "pack")
    try:
        header = RowsHeader.model_validate_json((file.schema.metadata or {})[HEADER_KEY])
    except (KeyError, ValidationError) as error:
        reason = " ".join(str(error).split())[:200]
        raise file.damage(f"damaged, or not a row file of this project ({reason})") from None
    return header, file
