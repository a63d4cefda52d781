"""Output folders that appear whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from components.config.problems import ConfigError, disk_trouble


@contextmanager
def replaced_folder(target: Path, sign: str) -> Iterator[Path]:
    """An empty folder beside `target` to write into: it takes `target`'s place when the block ends well, else it is removed.

    What a killed run left there goes when the next one starts.

    Args:
        sign: a file that every earlier output in this place has; a folder with something else in it is left alone.

    Raises:
        ConfigError: `target` has files, and not this one.
        StorageError: the disk is full.
    """
    target = target.absolute()
    if target.is_dir() and any(target.iterdir()) and not (target / sign).exists():
        raise ConfigError(f"{target}: has files in it, but no {sign}: not an earlier output; empty it or choose another folder")
    aside = target.with_name(f".{target.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        with disk_trouble(target):
            aside.mkdir(parents=True)
            yield aside
            if target.exists():
                shutil.rmtree(target)
            aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
