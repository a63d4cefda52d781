"""The list of validation documents, in the order of their tokens in the packed stream: what a score per document needs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from components.data.checked_arrow import CheckedFile

DOCUMENTS_FILE = "documents.arrow"
DOCUMENTS_SCHEMA = pa.schema([("id", pa.string()), ("n_tokens", pa.int64()), ("n_bytes", pa.int64())])


@dataclass(frozen=True)
class ValidationDocuments:
    """One entry per document; document `i` owns the `n_tokens[i]` targets after those of the documents before it.

    Attributes:
        n_tokens: int64, the end-of-text token included.
        n_bytes: int64, UTF-8 bytes of the text.
    """

    ids: tuple[str, ...]
    n_tokens: npt.NDArray[np.int64]
    n_bytes: npt.NDArray[np.int64]


def read_documents(folder: Path) -> ValidationDocuments:
    """The documents under `artifacts/data/validation`.

    Raises:
        DataError: the file is missing or damaged.
    """
    file = CheckedFile(folder / DOCUMENTS_FILE, "pack")
    if not file.schema.equals(DOCUMENTS_SCHEMA):
        raise file.damage("not the list of documents of this version")
    table = pa.Table.from_batches([file.check(i) for i in range(len(file.batches))], DOCUMENTS_SCHEMA)
    ids, n_tokens, n_bytes = (table.column(name) for name in DOCUMENTS_SCHEMA.names)
    return ValidationDocuments(tuple(ids.to_pylist()), n_tokens.to_numpy().copy(), n_bytes.to_numpy().copy())
