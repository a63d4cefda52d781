"""FineWeb-Edu streamed from the Hugging Face hub, or from a local folder in the hub's layout.

`datasets` says which files a configuration has, pinned to a commit; they are read with range requests, a row group at a time,
and nothing is kept. `HF_ENDPOINT` and `HF_TOKEN` are read by the hub's own client, at import; the token never appears in a message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from components.config.problems import DataError
from components.config.schema import FineWebEduSource
from components.data.files import ID_COLUMN, document_id
from components.data.hub_folder import local_files
from components.data.parquet import read_parquet
from components.data.sources import Document

TEXT_COLUMN = "text"
SCORE_COLUMN = "score"


class HubCorpus:
    """The documents of a configuration's `train` split, in the hub's order; those under `minimum_score` come out marked.

    A null score is not known to reach any minimum: with `minimum_score` above 0 such a document is turned away, and counted apart
    (`without_score`). With 0 the scores are not read at all.
    """

    def __init__(self, settings: FineWebEduSource) -> None:
        self._settings = settings
        self._where = f"{settings.dataset} ({settings.config})"

    def documents(self) -> Iterator[Document]:
        """All documents of the configuration; the token budget is the reader's affair."""
        try:
            for name, file in self._files():
                yield from self._file_documents(name, file)
        except hub_errors() as error:
            raise DataError(
                f"{self._where}: cannot be streamed: {reason(error)}; check data.source.dataset, config and revision, the "
                "network, HF_ENDPOINT, and HF_TOKEN for a private data set"
            ) from None

    def _files(self) -> Iterator[tuple[str, Any]]:
        """Name below the data set's root, and path or open file, of each parquet file."""
        wanted, folder = self._settings, Path(self._settings.dataset)
        if folder.is_dir():
            yield from ((path.relative_to(folder).as_posix(), path) for path in local_files(folder, wanted.config))
            return
        from datasets import load_dataset_builder
        from huggingface_hub import HfFileSystem

        builder = load_dataset_builder(wanted.dataset, wanted.config, revision=wanted.revision)
        urls = [str(url) for url in (builder.config.data_files or {}).get("train", ())]
        if not urls or not all(url.endswith(".parquet") for url in urls):
            raise DataError(f"{self._where}: its train split is not made of parquet files; choose another data.source.config")
        hub = HfFileSystem()
        for url in urls:
            with hub.open(url, "rb") as file:
                yield url.partition("@")[2].partition("/")[2], file  # hf://datasets/ID@COMMIT/PATH

    def _file_documents(self, name: str, file: Any) -> Iterator[Document]:
        where, minimum = f"{self._where}: {name}", self._settings.minimum_score
        columns = (ID_COLUMN, SCORE_COLUMN) if minimum > 0 else (ID_COLUMN,)
        for first, texts, piece in read_parquet(file, where, TEXT_COLUMN, columns):
            names = piece.schema.names
            if minimum > 0 and SCORE_COLUMN not in names:
                raise DataError(f"{where}: no column {SCORE_COLUMN!r} to filter by; set data.source.minimum_score to 0")
            ids = piece.column(ID_COLUMN).to_pylist() if ID_COLUMN in names else [None] * len(texts)
            scores = piece.column(SCORE_COLUMN).to_pylist() if minimum > 0 else [None] * len(texts)
            for row, (text, found, score) in enumerate(zip(texts, ids, scores, strict=True), first):
                yield Document(document_id(found, f"{name}:{row}"), text, f"{where}: row {row}", _rejection(score, minimum))


def _rejection(score: float | None, minimum: float) -> str:
    if minimum == 0:
        return ""
    if score is None:
        return "without_score"
    return "below_minimum_score" if score < minimum else ""


def hub_errors() -> tuple[type[Exception], ...]:
    """What the hub's client raises; its HTTP library, whose errors come through, is not the same in every version."""
    from huggingface_hub.errors import HfHubHTTPError

    return OSError, ValueError, *HfHubHTTPError.__bases__


def reason(error: Exception) -> str:
    """The error in one line, without the user's token."""
    text = re.sub(r"\bhf_[\w-]{6,}", "***", " ".join(str(error).split()))
    token = os.environ.get("HF_TOKEN")
    return f"{type(error).__name__}: {text.replace(token, '***') if token else text}"[:300]
