"""Documents in one parquet file, local or remote, a few hundred rows at a time.

`ParquetFile.iter_batches` reads only the columns asked for, and with `pre_buffer=False` on the calling thread. Otherwise threads
of Arrow's read ahead: from a Python file (the hub's) they free Python's bytes, and one that does so while the interpreter ends
aborts the process. So does the `pyarrow.dataset` scanner that `datasets` streams with (apache/arrow#45214).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from components.config.problems import DataError

ROWS_PER_READ = 256


def read_parquet(file: Any, where: str, text_column: str, other_columns: tuple[str, ...]) -> Iterator[tuple[int, list[str], Any]]:
    """Pieces of a file: the row of their first document, the texts (a null is the empty text), and the other columns that exist.

    Args:
        file: a path or an open binary file.
        where: names the file in messages.

    Raises:
        DataError: corrupt file, no such text column, or a text that is not UTF-8 (names its row, counted from 0).
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = 0
    try:
        with pq.ParquetFile(file, pre_buffer=False) as parquet:
            _check_text_column(parquet.schema_arrow, text_column, where)
            columns = [text_column, *(name for name in other_columns if name in parquet.schema_arrow.names and name != text_column)]
            for piece in parquet.iter_batches(ROWS_PER_READ, columns=columns, use_threads=False):
                yield row, _texts(piece.column(text_column), where, row), piece
                row += len(piece)
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(
            f"{where}: cannot be read as parquet after row {row}: corrupt, truncated or not readable ({reason}); replace the file "
            "(or check the network, for a remote one)"
        ) from None


def not_utf8(where: str, error: UnicodeDecodeError) -> DataError:
    """What to say about bytes that are not text."""
    return DataError(f"{where}: the text is not UTF-8 (byte {error.start}: {error.reason}); convert the corpus to UTF-8")


def _texts(column: Any, where: str, first_row: int) -> list[str]:
    try:
        return [_text(value) for value in column.to_pylist()]
    except UnicodeDecodeError:
        for i, scalar in enumerate(column):
            try:
                _text(scalar.as_py())
            except UnicodeDecodeError as error:
                raise not_utf8(f"{where}: row {first_row + i}", error) from None
        raise


def _text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def _check_text_column(schema: Any, text_column: str, where: str) -> None:
    import pyarrow.types as types

    if text_column not in schema.names:
        raise DataError(
            f"{where}: no column {text_column!r}; its columns are {', '.join(schema.names)}; set "
            "data.source.text_column to one of them"
        )
    kind = schema.field(text_column).type
    kind = kind.value_type if types.is_dictionary(kind) else kind
    is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind)
    if not (is_text or types.is_binary(kind) or types.is_large_binary(kind)):
        raise DataError(
            f"{where}: column {text_column!r} holds {kind}, expected text; set data.source.text_column to a text column"
        )
