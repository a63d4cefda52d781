"""Output folders that appear whole or not at all."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from components.config.problems import OTHER_PLACE, ConfigError, disk_trouble


@contextmanager
def replaced_folder(target: Path, sign: str) -> Iterator[Path]:
    """An empty folder beside `target` to write into: it takes `target`'s place when the block ends well, else it is removed.

    A link stays one: what it names is replaced. What a killed run left goes when the next one starts.

    Args:
        sign: a file that every earlier output in this place has; a folder with something else in it is left alone.

    Raises:
        ConfigError: `target` is a file, or has files and not this one, or another process is writing it.
        StorageError: the disk is full, or the place takes no folder.
    """
    target = target.resolve()
    _check_earlier(target, sign)
    aside = target.with_name(f".{target.name}.partial")
    with disk_trouble(target, otherwise=OTHER_PLACE):
        aside.mkdir(parents=True, exist_ok=True)
        lock = os.open(aside, os.O_RDONLY)
    try:
        with disk_trouble(target, otherwise=OTHER_PLACE):
            _take(lock, aside, target)
        try:
            with disk_trouble(target):
                yield aside
            _check_earlier(target, sign)
            with disk_trouble(target, otherwise=OTHER_PLACE):
                _put(aside, target, sign)
        finally:
            if _is_open(lock, aside):  # not put in place, nor another process's by now
                shutil.rmtree(aside, ignore_errors=True)
    finally:
        os.close(lock)


def _check_earlier(target: Path, sign: str) -> None:
    if target.exists() and not target.is_dir():
        raise ConfigError(f"{target}: is no folder; choose another place")
    if target.is_dir() and any(target.iterdir()) and not (target / sign).exists():
        raise ConfigError(f"{target}: has files in it, but no {sign}: not an earlier output; empty it or choose another folder")


def _take(lock: int, aside: Path, target: Path) -> None:
    """Keeps other processes out for as long as this one lives, and empties the folder. A file system without locks goes without."""
    is_mine = True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        is_mine = False
    except OSError:
        pass
    if not is_mine or not _is_open(lock, aside):  # the other process may have ended just now, and put it in its place
        raise ConfigError(f"{target}: another command is writing it; wait for it or choose another folder")
    _empty(aside)


def _is_open(lock: int, folder: Path) -> bool:
    return folder.exists() and os.path.samestat(os.fstat(lock), folder.stat())


def _put(aside: Path, target: Path, sign: str) -> None:
    """Renames the folder over the earlier output; a mount point stays and is filled, what makes it an output last."""
    if target.exists():
        _empty(target)
    try:
        aside.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        for path in sorted(aside.iterdir(), key=lambda path: path.name == sign):
            shutil.move(path, target / path.name)


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
