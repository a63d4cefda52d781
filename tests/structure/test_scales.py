"""The presets that say they are the quick study with other arms are just that, for whatever seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from components.config.loader import read_yaml

ROOT = Path(__file__).resolve().parents[2]
ARMS = ("arms", "repairs", "expansions", "controls")


@pytest.mark.parametrize("scale", ["all-arms", "hidden-decoding"])
def test_presets_differ_from_quick_only_in_their_arms_and_seeds(scale: str) -> None:
    quick, preset = (read_yaml(ROOT / "scales" / f"{name}.yaml") for name in ("quick", scale))
    for file in (quick, preset):
        file["training"].pop("seeds")
    assert {key: value for key, value in preset.items() if key not in ARMS} == {
        key: value for key, value in quick.items() if key not in ARMS
    }
