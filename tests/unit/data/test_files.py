"""The source `files`: every format, and an error that names file and row for everything that can be wrong with one."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.config.problems import DataError
from components.data.files import FilesCorpus
from components.data.sources import Document

LINES = [{"id": "a", "text": "one"}, {"text": "zwei, größer \u2603"}, {"id": 7, "text": None}]
JSONL = "\n".join(json.dumps(line) for line in LINES).encode() + b"\n\n"


def read(*patterns: object, text_column: str = "text") -> list[Document]:
    return list(FilesCorpus([str(pattern) for pattern in patterns], text_column).documents())


def write_parquet(path: Path, **columns: object) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=2)
    return path


def zstd(data: bytes) -> bytes:
    return pa.Codec("zstd").compress(data, asbytes=True)


@pytest.mark.parametrize(("name", "pack"), [("x.jsonl", bytes), ("x.jsonl.gz", gzip.compress), ("x.jsonl.zst", zstd)])
def test_jsonl_plain_or_compressed_gives_one_document_a_line(tmp_path: Path, name: str, pack: object) -> None:
    (tmp_path / name).write_bytes(pack(JSONL))
    assert [(doc.id, doc.text) for doc in read(tmp_path / name)] == [("a", "one"), (f"{name}:2", "zwei, größer \u2603"), ("7", "")]


@pytest.mark.parametrize(("name", "pack"), [("x.jsonl.gz", gzip.compress), ("x.jsonl.zst", zstd)])
def test_joined_compressed_files_are_read_to_the_end(tmp_path: Path, name: str, pack: object) -> None:
    (tmp_path / name).write_bytes(pack(JSONL) + pack(JSONL))
    assert len(read(tmp_path / name)) == 6


def test_a_name_that_is_no_unicode_is_escaped(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"id": "half \\ud83d", "text": "one"}')
    assert read(tmp_path / "x.jsonl")[0].id == "half \\ud83d"


def test_parquet_gives_one_document_a_row_over_all_row_groups(tmp_path: Path) -> None:
    texts = [f"text {i}" for i in range(700)]
    path = write_parquet(tmp_path / "x.parquet", text=texts, other=list(range(700)))
    documents = read(path)
    assert [doc.text for doc in documents] == texts
    assert [doc.id for doc in documents[:2]] == ["x.parquet:0", "x.parquet:1"]
    assert documents[699].where.endswith("x.parquet: row 699")


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.dictionary(pa.int32(), pa.string())])
def test_parquet_text_may_be_stored_in_any_text_type(tmp_path: Path, kind: pa.DataType) -> None:
    column = pa.array(["eins", None, "zwölf"], pa.string()).cast(kind)
    assert [doc.text for doc in read(write_parquet(tmp_path / "x.parquet", body=column), text_column="body")] == [
        "eins",
        "",
        "zwölf",
    ]


def test_txt_gives_one_document_a_file_without_its_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_bytes(b"\xef\xbb\xbfsecond\r\nline")
    (tmp_path / "a.txt").write_bytes(b"first")
    assert [(doc.id, doc.text) for doc in read(tmp_path / "*.txt")] == [("a.txt", "first"), ("b.txt", "second\r\nline")]


def test_globs_descend_and_a_file_that_matches_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "a.txt").write_text("a")
    (tmp_path / "deep" / "b.txt").write_text("b")
    found = read(tmp_path / "**" / "*.txt", tmp_path / "deep" / "b.txt")
    assert [doc.id for doc in found] == ["deep/b.txt", "deep/er/a.txt"]


def test_no_id_holds_a_path_outside_the_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "corpus").mkdir()
    (tmp_path / "work").mkdir()
    (tmp_path / "corpus" / "a.txt").write_text("a")
    monkeypatch.chdir(tmp_path / "work")
    ids = [doc.id for pattern in ("../corpus/*.txt", tmp_path / "corp*" / "*.txt") for doc in read(pattern)]
    assert ids == ["a.txt", "corpus/a.txt"]


def test_a_glob_without_a_match_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data\.source\.paths: no file matches .*\*\.parquet"):
        read(tmp_path / "*.parquet")


def test_an_unknown_kind_of_file_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("text\na\n")
    with pytest.raises(DataError, match=r"x\.csv: not a known kind.*\.parquet, \.jsonl"):
        read(tmp_path / "*")


def test_a_missing_text_column_is_an_error_that_names_the_columns(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", content=["a"], url=["b"])
    with pytest.raises(
        DataError, match=r"x\.parquet: no column 'text'; its columns are content, url; set data\.source\.text_column"
    ):
        read(path)


def test_a_text_column_of_numbers_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"column 'text' holds int64, expected text"):
        read(write_parquet(tmp_path / "x.parquet", text=[1, 2]))


def test_a_missing_json_key_is_an_error_that_names_line_and_keys(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"text": "a"}\n{"body": "b", "n": 1}\n')
    with pytest.raises(DataError, match=r"x\.jsonl: line 2: no key 'text'; its keys are body, n"):
        read(tmp_path / "x.jsonl")


@pytest.mark.parametrize(
    ("line", "message"),
    [('{"text": "b"', "line 2: not valid JSON"), ('["b"]', "line 2: a JSON list"), ('{"text": 5}', "line 2: 'text' holds int")],
)
def test_a_bad_json_line_is_an_error_that_names_file_and_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "x.jsonl").write_text(f'{{"text": "a"}}\n{line}\n')
    with pytest.raises(DataError, match=rf"x\.jsonl: {message}"):
        read(tmp_path / "x.jsonl")


def test_text_that_is_not_utf8_is_an_error_that_names_file_and_row(tmp_path: Path) -> None:
    latin = "größer".encode("latin-1")
    (tmp_path / "x.txt").write_bytes(latin)
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "a"}\n{"text": "' + latin + b'"}\n')
    column = pa.array([b"fine", b"", b"fine", latin], pa.binary())
    write_parquet(tmp_path / "x.parquet", text=column)
    # a string column that holds bytes which are no UTF-8, as other writers leave them
    unchecked = pa.Array.from_buffers(pa.string(), 4, column.buffers())
    write_parquet(tmp_path / "y.parquet", text=unchecked)
    for name, place in (("x.txt", ""), ("x.jsonl", "line 2: "), ("x.parquet", "row 3: "), ("y.parquet", "row 3: ")):
        with pytest.raises(DataError, match=rf"{name}: {place}the text is not UTF-8"):
            read(tmp_path / name)


def test_a_corrupt_parquet_file_is_an_error_that_names_it(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", text=[f"{i} " * 50 for i in range(500)])
    whole = path.read_bytes()
    for broken in (b"", b"not parquet", whole[: len(whole) // 2], b"PAR1" + bytes(len(whole) - 500) + whole[-496:]):
        path.write_bytes(broken)
        with pytest.raises(DataError, match=r"x\.parquet: cannot be read as parquet"):
            read(path)


def test_corruption_deep_in_a_parquet_file_names_the_row_before(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "x.parquet", text=[f"{i} " * 50 for i in range(1000)])
    data = bytearray(path.read_bytes())
    middle = pq.ParquetFile(path).metadata.row_group(400).column(0)
    at = middle.dictionary_page_offset or middle.data_page_offset
    data[at : at + 40] = b"\xff" * 40
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"after row 768"):
        read(path)


@pytest.mark.parametrize(("name", "pack"), [("x.jsonl.gz", gzip.compress), ("x.jsonl.zst", zstd)])
def test_a_truncated_or_damaged_compressed_file_is_an_error(tmp_path: Path, name: str, pack: object) -> None:
    data = pack("".join(json.dumps({"text": f"line {i * i}"}) + "\n" for i in range(3000)).encode())
    for broken in (data[: len(data) // 2], b"plain text"):
        (tmp_path / name).write_bytes(broken)
        with pytest.raises(DataError, match=rf"{name}: cannot be read as jsonl"):
            read(tmp_path / name)
