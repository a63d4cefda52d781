"""The learning-rate schedule against its closed form."""

from __future__ import annotations

import pytest

from components.config.loader import load_study
from components.training.schedule import learning_rate
from tests.toys import ROOT, toy_training


def test_warm_up_stable_and_cool_down_follow_the_closed_form() -> None:
    training = toy_training(steps=100, warmup_steps=10, cooldown_share=0.2, lr=2.0)
    rates = [learning_rate(training, step) for step in range(100)]
    assert rates[:10] == pytest.approx([0.2 * (i + 1) for i in range(10)])
    assert rates[10:80] == [2.0] * 70
    assert rates[80:] == pytest.approx([2.0 * left / 20 for left in range(20, 0, -1)])


def test_phases_of_the_papers_recipe_add_up_to_all_steps() -> None:
    training = load_study(ROOT / "scales" / "proxy-200m.yaml").training
    rates = [learning_rate(training, step) for step in range(training.steps)]
    assert training.steps == 19073
    assert training.cooldown_steps == 1734  # 9.09 %
    assert sum(rate == training.lr for rate in rates) == 19073 - 999 - 1733
    assert min(rates) > 0


@pytest.mark.parametrize("step", [-1, 100])
def test_there_is_no_learning_rate_past_the_end(step: int) -> None:
    with pytest.raises(ValueError, match=r"outside 0\.\.99"):
        learning_rate(toy_training(steps=100), step)


def test_without_phases_the_rate_is_constant() -> None:
    training = toy_training(steps=5, warmup_steps=0, cooldown_share=0.0)
    assert [learning_rate(training, step) for step in range(5)] == [training.lr] * 5
