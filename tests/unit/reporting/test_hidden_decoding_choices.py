"""The report says what Hidden Decoding's paper leaves open, as far as the study uses it."""

from __future__ import annotations

from components.config.loader import load_study
from components.reporting.differences import hidden_decoding_choices
from tests.toys import ROOT


def test_only_what_the_study_uses_is_stated() -> None:
    every = "\n".join(hidden_decoding_choices(load_study(ROOT / "scales" / "hidden-decoding.yaml")))
    assert all(word in every for word in ("Expansion:", "Controls:", "Sampled streams:", "Supervision `sum`:", "KV-Mirror:"))
    one = "\n".join(hidden_decoding_choices(load_study(ROOT / "scales" / "tiny.yaml")))
    assert "Expansion:" in one
    assert "Controls:" not in one
    assert "KV-Mirror" not in one
    assert hidden_decoding_choices(load_study(ROOT / "scales" / "proxy-200m.yaml")) == []
