"""A folder is replaced only when it is an earlier output: nobody else's files are ever deleted."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.config.problems import ConfigError
from components.data.folders import replaced_folder

SIGN = "manifest.json"


def _write(target: Path, content: str) -> None:
    with replaced_folder(target, SIGN) as folder:
        (folder / SIGN).write_text(content)


def test_an_earlier_output_and_an_empty_folder_are_replaced(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    for content in ("first", "second"):
        _write(tmp_path / "out", content)
        assert (tmp_path / "out" / SIGN).read_text() == content
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ConfigError, match=r"has files in it, but no manifest\.json: not an earlier output"):
        _write(tmp_path, "mine")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    _write(tmp_path / "out", "before")
    with pytest.raises(KeyError), replaced_folder(tmp_path / "out", SIGN):
        raise KeyError
    assert (tmp_path / "out" / SIGN).read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
