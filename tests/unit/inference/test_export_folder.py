"""The folder of an export: whole or absent, whatever stood in its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.inference.export_folder import new_folder


def _fill(out: Path) -> None:
    with new_folder(out) as folder:
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text("weights")


def _stop_after_writing(path: Path) -> None:
    path.write_text("half")
    raise KeyboardInterrupt


@pytest.mark.parametrize("exists", [False, True])
def test_it_appears_with_all_its_files(exists: bool, tmp_path: Path) -> None:
    if exists:
        (tmp_path / "out").mkdir()
    _fill(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_cannot_be_replaced_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a mount point."""

    def busy(path: Path) -> None:
        raise OSError(16, "Device or resource busy", str(path))

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "rmdir", busy)
    _fill(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "out") as folder:
        _stop_after_writing(folder / "model.safetensors")
    assert list(tmp_path.iterdir()) == []
