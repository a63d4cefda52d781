"""The folder of an export: whether it can be taken; no torch, so that a command can say no at once."""

from __future__ import annotations

import os
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
