"""Documents from local files: parquet, jsonl (plain, gzip, zstd) and txt, read piece by piece.

Names that leave this module (document ids) are relative to the folder that a glob starts in, so neither the machine's paths nor a
`..` ever reach a manifest, and no output file is named after a source file.
"""

from __future__ import annotations

import glob
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from components.config.problems import DataError
from components.data.parquet import not_utf8, read_parquet
from components.data.sources import Document

ID_COLUMN = "id"
KINDS = (".parquet", ".jsonl", ".jsonl.gz", ".jsonl.zst", ".txt")


class FilesCorpus:
    """The documents of all files that match the globs, in sorted order within each glob; a file that matches twice is read once.

    The id is the column (or key) `id` where there is one, otherwise `file:row` (rows from 0) or `file:line` (lines from 1).
    """

    def __init__(self, patterns: Iterable[str], text_column: str) -> None:
        self._patterns = tuple(patterns)
        self._text_column = text_column

    def documents(self) -> Iterator[Document]:
        """All documents; an unreadable file, column, line or text is a `DataError` that names it."""
        for path, name in find_files(self._patterns):
            if path.name.endswith(".parquet"):
                yield from _parquet_documents(path, name, self._text_column)
            elif path.name.endswith(".txt"):
                yield Document(name, _decode(_whole_file(path), str(path)).removeprefix("\ufeff"), str(path))
            else:
                yield from _jsonl_documents(path, name, self._text_column)


def find_files(patterns: Iterable[str]) -> list[tuple[Path, str]]:
    """Every matching file and its name below the folder where its glob starts.

    Raises:
        DataError: a glob matches no file, or a file is of no known kind.
    """
    found: dict[Path, str] = {}
    for pattern in patterns:
        root = _fixed_part(pattern)
        matches = sorted(path for path in map(Path, glob.glob(pattern, recursive=True)) if path.is_file())
        if not matches:
            raise DataError(
                f"data.source.paths: no file matches {pattern!r} (looked from {Path.cwd()}); mend the glob, relative "
                "to the repository or absolute"
            )
        for path in matches:
            if not path.name.endswith(KINDS):
                raise DataError(f"{path}: not a known kind of corpus file ({', '.join(KINDS)}); narrow the glob {pattern!r}")
            found.setdefault(path.absolute(), path.relative_to(root).as_posix())
    return list(found.items())


def document_id(found: object, otherwise: str) -> str:
    """What the column `id` holds, half characters escaped, or another name when it holds nothing."""
    name = str(found) if isinstance(found, str | int) and found != "" else otherwise
    return name.encode(errors="backslashreplace").decode()


def _parquet_documents(path: Path, name: str, text_column: str) -> Iterator[Document]:
    for first, texts, piece in read_parquet(path, str(path), text_column, (ID_COLUMN,)):
        ids = piece.column(ID_COLUMN).to_pylist() if ID_COLUMN in piece.schema.names else [None] * len(texts)
        for row, (text, found) in enumerate(zip(texts, ids, strict=True), first):
            yield Document(document_id(found, f"{name}:{row}"), text, f"{path}: row {row}")


def _jsonl_documents(path: Path, name: str, text_column: str) -> Iterator[Document]:
    line_number = 0
    try:
        with _open_lines(path) as lines:
            for line_number, line in enumerate(lines, 1):
                where = f"{path}: line {line_number}"
                text_line = _decode(line, where).removeprefix("\ufeff" if line_number == 1 else "").strip()
                if text_line:
                    record = _json_object(text_line, where)
                    text = _json_text(record, text_column, where)
                    yield Document(document_id(record.get(ID_COLUMN), f"{name}:{line_number}"), text, where)
    except OSError as error:
        raise _unreadable(path, f"after line {line_number}", "jsonl", error) from None


def _open_lines(path: Path) -> Any:
    import pyarrow as pa

    compression = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    return io.BufferedReader(pa.input_stream(str(path), compression=compression), buffer_size=1 << 20)


def _json_object(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except ValueError as error:
        raise DataError(f"{where}: not valid JSON ({error}); every line must be one JSON object") from None
    if not isinstance(record, dict):
        raise DataError(f"{where}: a JSON {type(record).__name__}, expected an object; every line must be one JSON object")
    return record


def _json_text(record: dict[str, Any], text_column: str, where: str) -> str:
    if text_column not in record:
        raise DataError(
            f"{where}: no key {text_column!r}; its keys are {', '.join(record)}; set data.source.text_column to one of them"
        )
    text = record[text_column]
    if not isinstance(text, str | None):
        raise DataError(f"{where}: {text_column!r} holds {type(text).__name__}, expected text; mend the line or choose another key")
    return text or ""


def _decode(data: bytes, where: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(where, error) from None


def _whole_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, "", "text", error) from None


def _fixed_part(pattern: str) -> Path:
    parts = Path(pattern).parts[:-1]
    n_fixed = next((i for i, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    return Path(*parts[:n_fixed])


def _unreadable(path: Path, at: str, kind: str, error: Exception) -> DataError:
    reason = " ".join(str(error).split())[:200]
    place = f" {at}" if at else ""
    return DataError(f"{path}: cannot be read as {kind}{place}: corrupt, truncated or not readable ({reason}); replace the file")
