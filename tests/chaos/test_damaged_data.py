"""A bit that flips in the packed data under DVC's eyes: the error names the file, and its remedy works as it stands."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.pipeline.workspace import Workspace

pytestmark = pytest.mark.slow


def flip_a_bit_unnoticed(path: Path) -> None:
    """As a disk does it: neither time nor mode of the file change, and DVC's copy, a hard link, is damaged too."""
    before = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(before.st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    path.chmod(before.st_mode)


def test_the_remedy_of_a_flipped_bit_mends_the_data(make_workspace: Callable[[str], Workspace]) -> None:
    workspace = make_workspace("study")
    workspace.run("dvc", "config", "--local", "cache.type", "hardlink")
    workspace.run("dvc", "repro", "pack")
    rows = workspace.root / "artifacts" / "data" / "train" / "rows-00000.arrow"
    whole = rows.read_bytes()
    flip_a_bit_unnoticed(rows)
    assert "up to date" in workspace.run("dvc", "status", "pack")
    output = workspace.run("tasks.train", "--arm", "tlm-uniform", expected=2)
    error = re.search(r"error: .*rows-00000\.arrow: damaged: .* does not have its checksum; run `(.*)`", output)
    assert error, output
    subprocess.run(error[1], shell=True, cwd=workspace.root, env=workspace.environment(), check=True, capture_output=True)
    assert rows.read_bytes() == whole
    workspace.run("tasks.train", "--arm", "tlm-uniform")
