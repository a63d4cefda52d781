"""Arrow files whose record batches carry their own checksum: a bit that flipped on the disk is an error, never data.

The checksum of a batch is in its custom metadata, over the schema (with its header), the batch and its number. An empty batch at
the end holds how many there are. A reader checks a batch when it first uses it, so a file of any size opens at once.
"""

from __future__ import annotations

import hashlib
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa

from components.config.problems import DataError

CHECKSUM, N_BATCHES = b"checksum", b"n_batches"


class CheckedWriter:
    """Writes record batches with their checksums; use it as a context manager, or close it."""

    def __init__(self, path: Path, schema: Any) -> None:
        self._schema = schema
        self._writer = pa.ipc.new_file(str(path), schema)
        self._n_batches = 0

    def __enter__(self) -> CheckedWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, batch: Any) -> None:
        """Appends one record batch of the schema."""
        checksum = batch_checksum(self._schema, batch, self._n_batches)
        self._writer.write_batch(batch, custom_metadata={CHECKSUM: checksum})
        self._n_batches += 1

    def close(self) -> None:
        """Ends the file; without it the file is not one."""
        last = pa.RecordBatch.from_pylist([], self._schema)
        self._writer.write_batch(last, custom_metadata={N_BATCHES: str(self._n_batches)})
        self._writer.close()


class CheckedFile:
    """A memory-mapped file that `CheckedWriter` wrote.

    Attributes:
        schema: of the file.
        batches: its record batches; not to be trusted before `check`.
    """

    def __init__(self, path: Path, stage: str) -> None:
        """Opens the file; nothing but its structure is read.

        Args:
            stage: that writes the file, and can write it again.

        Raises:
            DataError: the file is missing, truncated or not such a file.
        """
        self.path, self._stage = path, stage
        try:
            reader = pa.ipc.open_file(pa.memory_map(str(path)))
            self.schema = reader.schema
            found = [reader.get_batch_with_custom_metadata(i) for i in range(reader.num_record_batches)]
            for batch, _ in found:
                batch.validate()
        except (pa.ArrowException, OSError, UnicodeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise self.damage(f"missing, truncated or damaged ({reason})") from None
        about = [dict(metadata or {}) for _, metadata in found]
        if not about or about.pop().get(N_BATCHES) != str(len(about)).encode():
            raise self.damage("missing, truncated or damaged (not all record batches are there)")
        self.batches = [batch for batch, _ in found[:-1]]
        self._checksums = [metadata.get(CHECKSUM) for metadata in about]
        self._is_checked = [False] * len(about)

    def check(self, i: int) -> Any:
        """Record batch `i`, once its content is known to be what was written.

        Raises:
            DataError: it is not.
        """
        if not self._is_checked[i]:
            try:
                self.batches[i].validate(full=True)  # a broken offset would lead the checksum out of the file
                is_whole = batch_checksum(self.schema, self.batches[i], i) == self._checksums[i]
            except (pa.ArrowException, UnicodeError, ValueError):
                is_whole = False
            if not is_whole:
                raise self.damage(f"damaged: record batch {i} of {len(self.batches)} does not have its checksum")
            self._is_checked[i] = True
        return self.batches[i]

    def damage(self, what: str) -> DataError:
        """The error that names the file, what is wrong with it, and the remedy.

        DVC trusts a file whose time has not changed, and its own copy of it, which may be the same file, while it is read-only.
        """
        again = f"dvc repro {self._stage}"
        if self.path.exists():
            file = shlex.quote(str(self.path))
            again = f"chmod u+w {file} && touch {file} && {again}"
        return DataError(f"{self.path}: {what}; run `{again}`")


def batch_checksum(schema: Any, batch: Any, number: int) -> bytes:
    """BLAKE2b of a schema, with its metadata, and one record batch and its place in the file."""
    digest = hashlib.blake2b(memoryview(schema.serialize()), digest_size=16)
    digest.update(str(number).encode())
    digest.update(memoryview(batch.serialize()))
    return digest.hexdigest().encode()
