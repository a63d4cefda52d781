"""A model's card, however it is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.config.problems import CheckpointError
from components.models.files import CARD, read_card


@pytest.mark.parametrize("damage", [b"", b"{", b"{}", b'{"version": "\xff"}'])
def test_a_damaged_card_is_named(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / CARD).write_bytes(damage)
    with pytest.raises(CheckpointError, match=r"model\.json: not a model card of this version"):
        read_card(tmp_path)
