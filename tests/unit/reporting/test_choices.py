"""The report says what the papers leave open and what this study adds, as far as the study uses it."""

from __future__ import annotations

from components.config.loader import load_study
from components.reporting.differences import hidden_decoding_choices, training_choices
from tests.toys import ROOT


def test_only_what_the_study_uses_is_stated() -> None:
    every = "\n".join(hidden_decoding_choices(load_study(ROOT / "scales" / "hidden-decoding.yaml")))
    assert all(word in every for word in ("Expansion:", "Controls:", "Sampled streams:", "Supervision `sum`:", "KV-Mirror:"))
    one = "\n".join(hidden_decoding_choices(load_study(ROOT / "scales" / "tiny.yaml")))
    assert "Expansion:" in one
    assert "Controls:" not in one
    assert "KV-Mirror" not in one
    assert "1 of 4 cross_full at 2, positions by_layer" in one
    assert hidden_decoding_choices(load_study(ROOT / "scales" / "proxy-200m.yaml")) == []


def test_objectives_of_ours_are_named_where_the_study_has_them() -> None:
    every = "\n".join(training_choices(load_study(ROOT / "scales" / "all-arms.yaml")))
    for words in (
        "TLM: one draw",
        "does not have: roundrobin and sandwich.",
        "MLMS backward:",
        "MLMS distillation:",
        "LayerDrop",
        "head: affine, block and norm.",
    ):
        assert words in every, words
    stories = training_choices(load_study(ROOT / "scales" / "stories.yaml"))
    assert [choice.split(":")[0] for choice in stories] == ["Schedule", "TLM"]  # by an expansion
