"""Packing into rows loses nothing and counts everything once."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.config.problems import DataError
from components.data.manifest import id_dtype
from components.data.rows import write_rows
from components.data.stream import IGNORED, PackedRows, inputs_and_labels
from tests.unit.data.tiny_corpus import EOS, pack

documents_of_ids = st.lists(st.lists(st.integers(1, 63), max_size=30), min_size=1, max_size=12)


@settings(max_examples=60, deadline=None)
@given(
    documents=documents_of_ids,
    seq_len=st.integers(8, 20),
    bytes_per_file=st.sampled_from([1, 50, 1 << 20]),
    piece=st.integers(1, 5),
)
def test_every_token_is_a_target_exactly_once(documents: list[list[int]], seq_len: int, bytes_per_file: int, piece: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = pack(Path(folder), documents, seq_len, bytes_per_file=bytes_per_file, documents_per_piece=piece)
        inputs, labels = inputs_and_labels(*rows.rows(range(len(rows))))
    expected = [i for document in documents for i in [*document, EOS]]
    counted = labels != IGNORED
    assert labels[counted].tolist() == expected, "no token lost, none twice, the tail included"
    assert inputs[counted].tolist() == [EOS, *expected[:-1]], "each target is predicted from the token before it"
    assert int((labels == EOS).sum()) == len(documents)
    assert rows.header.tokens_out == len(expected)


def test_the_worked_example_of_the_module(tmp_path: Path) -> None:
    rows = pack(tmp_path, [[11, 12, 13], [14, 15], [16, 17, 18, 19]], seq_len=8)
    tokens, n_valid = rows.rows([0, 1])
    assert tokens.tolist() == [[0, 11, 12, 13, 0, 14, 15, 0, 16], [16, 17, 18, 19, 0, 0, 0, 0, 0]]
    assert n_valid.tolist() == [8, 4]


def test_filling_is_ignored_but_real_end_of_text_labels_are_not(tmp_path: Path) -> None:
    rows = pack(tmp_path, [[5, 6], [7]], seq_len=8)
    _, labels = inputs_and_labels(*rows.rows([0]))
    assert labels.tolist() == [[5, 6, EOS, 7, EOS, IGNORED, IGNORED, IGNORED]]


def test_no_empty_row_when_the_tokens_fill_the_rows_exactly(tmp_path: Path) -> None:
    rows = pack(tmp_path, [[1] * 7, [2] * 7], seq_len=8)
    assert len(rows) == 2
    assert rows.n_valid([0, 1]).tolist() == [8, 8]


def test_row_files_are_bounded_and_read_as_one(tmp_path: Path) -> None:
    one = pack(tmp_path / "one", [[i % 60 + 1] * 9 for i in range(100)], seq_len=8)
    many = pack(tmp_path / "many", [[i % 60 + 1] * 9 for i in range(100)], seq_len=8, bytes_per_file=100)
    paths = sorted((tmp_path / "many").glob("*.arrow"))
    assert len(paths) == 12, "125 rows of 9 bytes, 11 rows in a file of 100 bytes"
    np.testing.assert_array_equal(one.rows(range(len(one)))[0], many.rows(range(len(many)))[0])


@pytest.mark.parametrize(
    ("vocab_size", "dtype"), [(2, "uint8"), (256, "uint8"), (257, "uint16"), (65536, "uint16"), (65537, "uint32")]
)
def test_the_id_type_is_the_smallest_that_holds_the_largest_id(vocab_size: int, dtype: str) -> None:
    assert id_dtype(vocab_size) == np.dtype(dtype)


def test_the_row_file_uses_that_type(tmp_path: Path) -> None:
    large = pack(tmp_path, [[70_000, 3]], seq_len=8, vocab_size=70_001)
    assert large.rows([0])[0][0, :4].tolist() == [0, 70_000, 3, 0]
    assert (tmp_path / "rows-00000.arrow").stat().st_size < 2000


def test_tokens_that_do_not_add_up_are_an_error(tmp_path: Path) -> None:
    header = pack(tmp_path / "a", [[1, 2, 3]], seq_len=8).header
    with pytest.raises(DataError, match=r"hold 3 tokens.*manifest says 4"):
        write_rows(tmp_path / "b", header, iter([np.array([1, 2, 0], np.uint8)]))


def test_rows_are_read_without_loading_the_file(tmp_path: Path) -> None:
    rows = pack(tmp_path, [[i % 60 + 1] * 50 for i in range(50)], seq_len=8)
    views = [rows._chunk(i)[0] for i in range(len(rows._batches))]
    assert not any(view.flags.owndata or view.flags.writeable for view in views), "views of the memory map"


def test_an_index_outside_the_rows_is_an_error(tmp_path: Path) -> None:
    rows = pack(tmp_path, [[1, 2, 3]], seq_len=8)
    for wrong in (-1, 1):
        with pytest.raises(IndexError, match="outside the 1 rows"):
            rows.rows([wrong])
    assert isinstance(rows, PackedRows)
