"""FineWeb-Edu from the Hugging Face hub, streamed with `datasets`, or from a local folder in the hub's layout.

`HF_ENDPOINT` and `HF_TOKEN` are read by the hub's own client, at import; the token never appears in a message. Nothing is
downloaded but the columns that are read, and nothing is kept.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from components.config.problems import DataError
from components.config.schema import FineWebEduSource
from components.data.files import ID_COLUMN, ROWS_PER_READ, check_columns, text_rows
from components.data.sources import Document

TEXT_COLUMN = "text"
SCORE_COLUMN = "score"


class HubCorpus:
    """The documents of a hub data set's `train` split, in its own order; those under `minimum_score` come out marked.

    A null score is not known to reach any minimum: with `minimum_score` above 0 such a document is turned away, and counted apart
    (`without_score`). With 0 the scores are not read at all.
    """

    def __init__(self, settings: FineWebEduSource) -> None:
        self._settings = settings
        self._where = f"{settings.dataset} ({settings.config})"

    def documents(self) -> Iterator[Document]:
        """All documents of the configuration; the token budget is the reader's affair."""
        row = 0
        try:
            for table in self._tables():
                check_columns(table.schema, TEXT_COLUMN, self._where)
                names = table.schema.names
                if self._settings.minimum_score > 0 and SCORE_COLUMN not in names:
                    raise DataError(
                        f"{self._where}: no column {SCORE_COLUMN!r}; its columns are {', '.join(names)}; set "
                        "data.source.minimum_score to 0"
                    )
                for document in self._rows(table, row):
                    yield document
                    row += 1
        except _hub_errors() as error:
            raise self._unavailable(error, f"after row {row}" if row else "") from None

    def _tables(self) -> Iterator[Any]:
        """Arrow tables of a few hundred rows with the needed columns that exist."""
        from datasets import load_dataset

        wanted = self._settings
        folder = Path(wanted.dataset)
        is_local = folder.is_dir()
        corpus = load_dataset(
            str(folder.absolute()) if is_local else wanted.dataset,
            wanted.config,
            split="train",
            streaming=True,
            revision=None if is_local else wanted.revision,
        )
        if corpus.column_names is not None:
            needed = {TEXT_COLUMN, ID_COLUMN, SCORE_COLUMN}
            if TEXT_COLUMN in corpus.column_names:
                corpus = corpus.select_columns([name for name in corpus.column_names if name in needed])
        yield from corpus.with_format("arrow").iter(batch_size=ROWS_PER_READ)

    def _rows(self, table: Any, first_row: int) -> Iterator[Document]:
        names, minimum = table.schema.names, self._settings.minimum_score
        texts = text_rows(table, TEXT_COLUMN, self._where, first_row)
        ids = table.column(ID_COLUMN).to_pylist() if ID_COLUMN in names else [None] * len(texts)
        scores = table.column(SCORE_COLUMN).to_pylist() if minimum > 0 else [minimum] * len(texts)
        for i, (text, found, score) in enumerate(zip(texts, ids, scores, strict=True), first_row):
            rejected = (
                "" if minimum == 0 else "without_score" if score is None else "below_minimum_score" if score < minimum else ""
            )
            yield Document(found or f"{self._settings.config}:{i}", text, f"{self._where}: row {i}", rejected)

    def _unavailable(self, error: Exception, at: str) -> DataError:
        return DataError(
            f"{self._where}: cannot be streamed{' ' + at if at else ''}: {_reason(error)}; check data.source.dataset, config and "
            "revision, the network, HF_ENDPOINT, and HF_TOKEN for a private data set"
        )


def fetch_file(hub_id: str, revision: str, name: str) -> Path:
    """A file of a hub repository, downloaded into the hub's own cache.

    Raises:
        DataError: no such repository, revision or file, or no network.
    """
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(hub_id, name, revision=revision))
    except _hub_errors() as error:
        raise DataError(
            f"{hub_id}@{revision}: cannot fetch {name}: {_reason(error)}; give a local path, or check the id, the network, "
            "HF_ENDPOINT and HF_TOKEN"
        ) from None


def _hub_errors() -> tuple[type[Exception], ...]:
    import httpx

    return OSError, ValueError, httpx.HTTPError


def _reason(error: Exception) -> str:
    reason = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    token = os.environ.get("HF_TOKEN")
    return reason.replace(token, "***") if token else reason
