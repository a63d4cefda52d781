"""What is wrong with the user's input, and how it is said.

Every part of the project reports bad input through these classes, so that a command can print one clean message and exit.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_SPACE, _ACCESS, OTHER_PLACE = "free some space there", "make it accessible or name another place", "name another place"
DISK_TROUBLES: Mapping[int, str] = {  # what a disk can have against a path, and the remedy
    errno.ENOSPC: _SPACE,
    errno.EDQUOT: _SPACE,
    errno.EFBIG: _SPACE,
    errno.EROFS: _ACCESS,
    errno.EACCES: _ACCESS,
    errno.EPERM: _ACCESS,
    errno.ENOTDIR: OTHER_PLACE,
    errno.EISDIR: OTHER_PLACE,
    errno.ENAMETOOLONG: OTHER_PLACE,
}


class StudyError(Exception):
    """A mistake in the input or its files that the user can mend; commands print it without a traceback."""


class ConfigError(StudyError):
    """A value in `params.yaml` (or in the environment) is missing, unknown or out of range."""


class DataError(StudyError):
    """A corpus, tokenizer or packed data file cannot be used."""


class CheckpointError(StudyError):
    """A checkpoint or a model file is missing, truncated, or belongs to something else."""


class ResultsError(StudyError):
    """A results file is missing, of another schema version, or not comparable with the others."""


class StorageError(StudyError):
    """The disk is full, over its quota or read-only, or a path is no place for the file; what was whole before still is."""


@dataclass(frozen=True)
class Problem:
    """One mistake in one configuration file.

    Attributes:
        key: dotted path of the value, as the user would write it (`arms.mlms.training.lr`).
        value: what stands there; None when the key is missing.
        rule: what the value has to satisfy.
        remedy: what to do about it.
    """

    key: str
    value: object
    rule: str
    remedy: str

    def __str__(self) -> str:
        got = "" if self.value is None else f" (got {self.value!r})"
        return f"{self.key}: {self.rule}{got}; {self.remedy}"


def config_error(path: object, problems: list[Problem]) -> ConfigError:
    """One error that lists all the problems of one file, one a line."""
    lines = [f"{path}: {problem}" for problem in problems]
    return ConfigError("\n".join(lines))


@contextmanager
def disk_trouble(
    path: Path | None = None, kept: str = "nothing that was whole is lost", otherwise: str | None = None
) -> Iterator[None]:
    """Inside the block, a full disk or a path that cannot be used is a `StorageError` with a remedy.

    Args:
        path: what is written; None when many files are.
        kept: what the user still has.
        otherwise: the remedy of any other error, where it can only be the path's.
    """
    try:
        yield
    except OSError as error:
        remedy = DISK_TROUBLES.get(error.errno or 0, otherwise)
        where = path or error.filename or (Path.cwd() if remedy == _SPACE else None)
        if remedy is None or where is None:
            raise
        done = "written" if remedy == _SPACE else "used"
        reason = os.strerror(error.errno) if error.errno else error
        raise StorageError(f"{where}: cannot be {done}: {reason}; {kept}; {remedy} and run the same command again") from None
