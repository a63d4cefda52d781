"""Reading and writing of results files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from components.config.problems import ResultsError
from components.results.record import RESULTS_VERSION, Record

RecordT = TypeVar("RecordT", bound=Record)


def write_record(record: Record, path: Path) -> None:
    """Writes the record so that a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(record.model_dump(mode="json"), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    aside.replace(path)


def read_record(kind: type[RecordT], path: Path) -> RecordT:
    """The record in the file.

    Raises:
        ResultsError: no such file, another schema version, or not such a record.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultsError(f"{path}: no such results file; run `dvc repro` first") from None
    except ValueError as error:
        raise ResultsError(f"{path}: not a results file ({error}); delete it and run `dvc repro`") from None
    version = raw.get("version") if isinstance(raw, dict) else None
    if version != RESULTS_VERSION:
        raise ResultsError(
            f"{path}: results version {version!r}, this code reads {RESULTS_VERSION}; re-run its stage with `dvc repro -f`"
        )
    try:
        return kind.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = ".".join(str(part) for part in first["loc"])
        raise ResultsError(f"{path}: {at}: {first['msg']}; re-run its stage with `dvc repro -f`") from None
