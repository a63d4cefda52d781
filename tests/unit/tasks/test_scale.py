"""Putting a preset in the place of params.yaml, without losing an edited file."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from components.config.loader import load_study
from components.config.problems import ConfigError
from tasks.scale import preset, put_in_place, with_seeds

PREVIOUS = "params.previous.yaml"


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


def test_no_edit_is_ever_overwritten(checkout: Path) -> None:
    """Neither by a preset with other seeds, which nobody wrote, nor by a second edit."""
    params, edits = checkout / "params.yaml", []
    for lr in ("7.7e-3", "8.8e-3", "7.7e-3"):
        edits.append((checkout / "scales" / "quick.yaml").read_text().replace("lr: 2.0e-3", f"lr: {lr}"))
        params.write_text(edits[-1])
        for seeds in ([42, 43], [42, 43, 44]):
            put_in_place(preset("quick"), params, seeds)
    kept = {path.name: path.read_text() for path in checkout.glob("params.previous*")}
    assert kept == {PREVIOUS: edits[0], "params.previous-2.yaml": edits[1]}


def test_a_file_that_is_no_text_is_kept_as_it_is(checkout: Path) -> None:
    params = checkout / "params.yaml"
    params.write_bytes(b"note: caf\xe9\n")
    put_in_place(preset("tiny"), params)
    assert (checkout / PREVIOUS).read_bytes() == b"note: caf\xe9\n"
    assert params.read_bytes() == (checkout / "scales" / "tiny.yaml").read_bytes()


def test_wrong_file_changes_nothing(checkout: Path) -> None:
    before = (checkout / "params.yaml").read_bytes()
    (checkout / "mine.yaml").write_text("schema_version: 1\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml: data: missing key"):
        put_in_place(checkout / "mine.yaml", checkout / "params.yaml")
    assert (checkout / "params.yaml").read_bytes() == before


@pytest.mark.parametrize(("name", "remedy"), [("qick", "did you mean quick"), ("", "there are .*quick, .*tiny")])
def test_unknown_scale_names_the_known(checkout: Path, name: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy):
        preset(name)


def test_seeds_are_written_where_dvc_reads_them_and_nothing_else_changes(checkout: Path) -> None:
    params = checkout / "params.yaml"
    put_in_place(params, params, [7, 8])
    assert load_study(params).training.seeds == (7, 8)
    assert params.read_text().replace("seeds: [7, 8]", "seeds: [42]") == (checkout / "scales" / "quick.yaml").read_text()
    put_in_place(params, params, [7, 8])
    assert not (checkout / PREVIOUS).exists(), "what stood there was a copy of a preset"


def test_seeds_written_as_a_block_are_found(checkout: Path) -> None:
    text = (checkout / "params.yaml").read_text().replace("  seeds: [42]\n", "  seeds:\n    - 42\n    - 43\n")
    (checkout / "params.yaml").write_text(with_seeds(text, [1]))
    assert load_study(checkout / "params.yaml").training.seeds == (1,)


def test_seeds_as_far_left_as_their_key_are_found_and_the_comments_after_them_stay(checkout: Path) -> None:
    params = checkout / "params.yaml"
    params.write_text(params.read_text().replace("  seeds: [42]", "  seeds: # mine\n  - 42\n  - 43 # twice\n  # of the rest\n"))
    put_in_place(params, params, [1, 2])
    assert load_study(params).training.seeds == (1, 2)
    assert "  seeds: # mine\n   [1, 2] # twice\n  # of the rest\n" in params.read_text()


def test_seeds_that_others_name_change_for_them_too(checkout: Path) -> None:
    params = checkout / "params.yaml"
    text = params.read_text().replace("  seeds: [42]", "  seeds: &all [42]")
    params.write_text(text.replace("backward: per_exit}\n", "backward: per_exit}\n    training: {seeds: *all}\n", 1))
    put_in_place(params, params, [1, 2])
    assert "    training: {seeds: *all}\n" in params.read_text()
    assert {arm.training.seeds for arm in load_study(params).arms.values()} == {(1, 2)}


def test_seeds_that_cannot_be_replaced_change_nothing(checkout: Path) -> None:
    """They stand in no `training` of their own, but are merged into it."""
    params = checkout / "params.yaml"
    text = params.read_text().replace("  seeds: [42]", "  <<: {seeds: [42]}")
    params.write_text(text)
    assert load_study(params).training.seeds == (42,)
    with pytest.raises(ConfigError, match=r"params\.yaml: training\.seeds: .*write them there as `seeds: \[42\]`"):
        put_in_place(params, params, [1, 2])
    assert params.read_text() == text


@pytest.mark.parametrize(("seeds", "said"), [([7, 7], "training.seeds: must not repeat"), ([-1], "training.seeds.0: ")])
def test_wrong_seeds_change_nothing(checkout: Path, seeds: list[int], said: str) -> None:
    before = (checkout / "params.yaml").read_bytes()
    with pytest.raises(ConfigError, match=said):
        put_in_place(preset("tiny"), checkout / "params.yaml", seeds)
    assert (checkout / "params.yaml").read_bytes() == before
