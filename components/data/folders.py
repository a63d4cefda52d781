"""Output folders that appear whole or not at all."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from components.config.problems import disk_trouble


@contextmanager
def replaced_folder(target: Path) -> Iterator[Path]:
    """An empty folder beside `target` to write into: it takes `target`'s place when the block ends well, else it is removed.

    What a killed run left there goes when the next one starts.

    Raises:
        StorageError: the disk is full.
    """
    target = target.absolute()
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
