"""Putting a preset in the place of params.yaml, without losing an edited file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from components.config.problems import ConfigError
from tasks.scale import PREVIOUS, preset, put_in_place


@pytest.fixture
def checkout(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(repository / "scales", tmp_path / "scales")
    shutil.copyfile(repository / "scales" / "quick.yaml", tmp_path / "params.yaml")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_preset_takes_the_place_of_another_preset(checkout: Path) -> None:
    put_in_place(preset("tiny"), checkout / "params.yaml")
    assert (checkout / "params.yaml").read_bytes() == (checkout / "scales" / "tiny.yaml").read_bytes()
    assert not (checkout / PREVIOUS).exists()


def test_edited_parameters_are_kept(checkout: Path) -> None:
    params = checkout / "params.yaml"
    params.write_text(params.read_text() + "# mine\n")
    put_in_place(preset("tiny"), params)
    assert (checkout / PREVIOUS).read_text().endswith("# mine\n")


def test_wrong_file_changes_nothing(checkout: Path) -> None:
    before = (checkout / "params.yaml").read_bytes()
    (checkout / "mine.yaml").write_text("schema_version: 1\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml: data: missing key"):
        put_in_place(checkout / "mine.yaml", checkout / "params.yaml")
    assert (checkout / "params.yaml").read_bytes() == before


@pytest.mark.parametrize(("name", "remedy"), [("qick", "did you mean quick"), ("", "there are .*quick, tiny")])
def test_unknown_scale_names_the_known(checkout: Path, name: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        preset(name)
