"""The folder of an export: whether it can be taken, and how it is filled; no torch, so that a command can say no at once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from components.config.problems import ConfigError


def check_out(out: Path) -> None:
    """Refuses a folder that cannot become an export.

    Raises:
        ConfigError: it is a file, has something in it, or its parent cannot be written.
    """
    if out.is_file() or (out.is_dir() and any(out.iterdir())):
        raise ConfigError(f"--out {out}: exists and is not an empty folder; remove it or choose another")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot make {out.parent} ({error.strerror}); choose another folder") from None
    if not os.access(out.parent, os.W_OK):
        raise ConfigError(f"--out {out}: {out.parent} is not writable; choose another folder")


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A folder beside `out` to write into; it becomes `out`, absent or empty, when the block ends well, else it is removed."""
    aside = out.with_name(f".{out.name}.{os.getpid()}")
    shutil.rmtree(aside, ignore_errors=True)
    try:
        aside.mkdir(parents=True)
        yield aside
        try:
            if out.exists():
                out.rmdir()
            aside.replace(out)
        except OSError:  # a mount point stays; what makes it a model comes last
            for path in sorted(aside.iterdir(), key=lambda path: path.name == "config.json"):
                shutil.move(path, out / path.name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
