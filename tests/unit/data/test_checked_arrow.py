"""Arrow files with checksums: whatever bit flips, no wrong data comes out, and the error names the file and a remedy."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from components.config.problems import DataError
from components.data.checked_arrow import CheckedFile, CheckedWriter
from components.data.stream import PackedRows
from tests.toys import toy_rows

SCHEMA = pa.schema([("id", pa.string()), ("tokens", pa.list_(pa.uint16()))], metadata={"header": "text"})


def batches() -> list[pa.RecordBatch]:
    texts = [[f"document {i}" for i in range(start, start + 5)] for start in (0, 5)]
    return [pa.record_batch([text, [[ord(c) for c in word] for word in text]], schema=SCHEMA) for text in texts]


def written(folder: Path) -> Path:
    path = folder / "a file.arrow"
    with CheckedWriter(path, SCHEMA) as writer:
        for batch in batches():
            writer.write(batch)
    return path


def read(path: Path) -> list[pa.RecordBatch]:
    file = CheckedFile(path, "pack")
    return [file.check(i) for i in range(len(file.batches))]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    assert read(written(tmp_path)) == batches()


def test_slices_have_the_checksum_of_their_content(tmp_path: Path) -> None:
    path = tmp_path / "rows.arrow"
    with CheckedWriter(path, SCHEMA) as writer:
        writer.write(batches()[0].slice(1, 3))
    assert read(path) == [batches()[0].slice(1, 3)]


def test_no_flipped_bit_gives_other_data(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole, random_bits = path.read_bytes(), random.Random(1)
    refused = 0
    for _ in range(600):
        at = random_bits.randrange(len(whole))
        flipped = bytearray(whole)
        flipped[at] ^= 1 << random_bits.randrange(8)
        path.write_bytes(flipped)
        try:
            found = read(path)
        except DataError:
            refused += 1
        else:
            assert found == batches()
    assert refused > 150  # the other bits are padding, or the copy of the schema that no reader looks at


def test_truncation_at_any_length_is_an_error(tmp_path: Path) -> None:
    path = written(tmp_path)
    whole = path.read_bytes()
    for length in range(0, len(whole), 97):
        path.write_bytes(whole[:length])
        with pytest.raises(DataError, match="missing, truncated or damaged"):
            read(path)


def test_the_remedy_quotes_the_path_and_names_the_stage(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(DataError, match=r"chmod u\+w '.*a file\.arrow' && touch '.*a file\.arrow' && dvc repro pack"):
        read(path)
    path.unlink()
    with pytest.raises(DataError, match=r"run `dvc repro pack`$"):
        read(path)


def test_a_flipped_token_in_packed_rows_is_an_error_not_a_target(tmp_path: Path) -> None:
    folder = toy_rows(tmp_path) / "train"
    tokens, _ = PackedRows.open(folder).rows([0])
    path = folder / "rows-00000.arrow"
    raw = bytearray(path.read_bytes())
    at = raw.index(tokens[0].astype("u1").tobytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    rows = PackedRows.open(folder)
    with pytest.raises(DataError, match=r"rows-00000\.arrow: damaged: record batch 0 of 1 does not have its checksum"):
        rows.rows([3])
