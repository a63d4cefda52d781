"""An output folder is whole or absent, whatever stood in its place; nobody else's files are ever deleted."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from components.config.problems import ConfigError, StorageError
from components.data.folders import replaced_folder

SIGN = "manifest.json"


def _write(target: Path, content: str) -> None:
    with replaced_folder(target, SIGN) as folder:
        (folder / SIGN).write_text(content)


def _fill(out: Path) -> None:
    with replaced_folder(out, "config.json") as folder:
        (folder / "config.json").write_text("{}")
        (folder / "model.safetensors").write_text("weights")


def _stop_after_writing(path: Path) -> None:
    path.write_text("half")
    raise KeyboardInterrupt


@pytest.fixture
def mount_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that cannot be replaced."""

    def busy(path: Path, target: Path) -> None:
        raise OSError(16, "Device or resource busy", str(path))

    (tmp_path / "out").mkdir()
    monkeypatch.setattr(Path, "rename", busy)
    return tmp_path / "out"


@pytest.mark.parametrize("exists", [False, True])
def test_it_appears_with_all_its_files(exists: bool, tmp_path: Path) -> None:
    if exists:
        (tmp_path / "out").mkdir()
    _fill(tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_mount_point_is_filled_and_what_makes_it_an_output_comes_last(mount_point: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[str] = []
    move = shutil.move
    monkeypatch.setattr(shutil, "move", lambda path, to: (moved.append(path.name), move(path, to)))
    _fill(mount_point)
    assert sorted(path.name for path in mount_point.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in mount_point.parent.iterdir()] == ["out"]
    assert moved == ["model.safetensors", "config.json"]


def test_an_earlier_output_in_a_mount_point_is_replaced(mount_point: Path) -> None:
    (mount_point / "config.json").write_text("old")
    (mount_point / "figures").mkdir()
    (mount_point / "figures" / "old.png").touch()
    _fill(mount_point)
    assert sorted(path.name for path in mount_point.iterdir()) == ["config.json", "model.safetensors"]
    assert (mount_point / "config.json").read_text() == "{}"


def test_a_failure_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), replaced_folder(tmp_path / "out", SIGN) as folder:
        _stop_after_writing(folder / "model.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere" / "real").mkdir(parents=True)
    (tmp_path / "link").symlink_to("elsewhere/real")
    for content in ("first", "second"):
        _write(tmp_path / "link", content)
        assert (tmp_path / "elsewhere" / "real" / SIGN).read_text() == content
    assert (tmp_path / "link").is_symlink()
    assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["real"]


def test_two_at_once_do_not_touch_each_other(tmp_path: Path) -> None:
    with replaced_folder(tmp_path / "out", SIGN) as folder:
        (folder / SIGN).write_text("first")
        with pytest.raises(ConfigError, match=r"out: another command is writing it; wait for it or choose another folder"):
            _write(tmp_path / "out", "second")
    assert (tmp_path / "out" / SIGN).read_text() == "first"
    _write(tmp_path / "out", "third")
    assert (tmp_path / "out" / SIGN).read_text() == "third"


def test_a_place_that_takes_no_folder_is_named() -> None:
    with pytest.raises(StorageError, match=r"^/proc/x: cannot be used: No such file or directory; .*name another place"):
        _write(Path("/proc/x"), "")


def test_an_error_of_what_is_written_is_not_said_of_its_place(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), replaced_folder(tmp_path / "out", SIGN):
        (tmp_path / "absent").read_text()


def test_files_that_came_meanwhile_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    (tmp_path / "out").mkdir()
    with pytest.raises(ConfigError, match="not an earlier output"), replaced_folder(tmp_path / "out", SIGN):
        (tmp_path / "thesis.txt").rename(tmp_path / "out" / "thesis.txt")
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


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


def test_a_file_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(ConfigError, match="is no folder"):
        _write(tmp_path / "out", "new")
    assert (tmp_path / "out").read_text() == "mine"


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    _write(tmp_path / "out", "before")
    with pytest.raises(KeyError), replaced_folder(tmp_path / "out", SIGN):
        raise KeyError
    assert (tmp_path / "out" / SIGN).read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
