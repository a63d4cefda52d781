"""FLOPs of a step: expectation against the mean of the steps, and the paper's ratios."""

from __future__ import annotations

from typing import Any

import pytest

from components.config.loader import load_study, resolve_arm
from components.objectives.base import Objective, build_objective
from tests.toys import ROOT, telescopic, toy_objective

MLMS = {"kind": "fixed_exits", "distill_weight": 0.0}


@pytest.mark.parametrize(
    "settings",
    [
        telescopic("uniform"),
        telescopic("loguniform", exclude_full=True),
        telescopic("exitgrid", distill_weight=0.3),
        telescopic("roundrobin", anchor_weight=0.0),
        telescopic("roundrobin", exclude_full=True),
        telescopic("sandwich"),
        {**MLMS, "backward": "per_exit"},
        {"kind": "twin", "exit": 2},
    ],
)
def test_expected_cost_is_the_mean_of_the_steps(settings: dict[str, Any]) -> None:
    objective = toy_objective(settings)
    n_steps = 4000
    mean = sum(objective.step_flops(step, 32) for step in range(n_steps)) / n_steps
    assert objective.expected_flops(32) == pytest.approx(mean, rel=0.02)  # 4,000 draws: standard error below 1 %


def _at_paper_scale(settings: dict[str, Any]) -> Objective:
    study = load_study(ROOT / "scales" / "proxy-200m.yaml")
    arm = resolve_arm("arm", {"objective": settings}, study.model, study.training, [])
    assert arm is not None
    return build_objective(arm, 49152, 0)


@pytest.mark.parametrize(
    ("settings", "ratio"),
    [
        (telescopic("loguniform"), 0.90),
        (telescopic("exitgrid"), 1.15),
        ({**MLMS, "backward": "joint"}, 0.94),
        ({**MLMS, "backward": "per_exit"}, 1.15),
        ({**MLMS, "backward": "separate"}, 1.25),
    ],
)
def test_cost_ratios_to_uniform_at_paper_scale(settings: dict[str, Any], ratio: float) -> None:
    # the reference ratios count matrices only: at one token of context attention hardly adds to them
    uniform = _at_paper_scale(telescopic("uniform")).expected_flops(1)
    assert _at_paper_scale(settings).expected_flops(1) / uniform == pytest.approx(ratio, abs=0.006)


def test_cost_ratio_with_attention_equals_hand_arithmetic() -> None:
    widths = [320] * 11 + [576] * 5 + [960] * 4
    context = 2048
    blocks = [2 * 16 * d * d + 4 * d * (context + 1) / 2 for d in widths]
    heads = [2 * d * 49152 for d in widths]
    trunk = [sum(blocks[: k + 1]) for k in range(20)]
    uniform = 3 * sum(trunk[k] + heads[k] for k in range(20)) / 20 + 3 * (trunk[19] + heads[19])
    joint = 3 * (trunk[19] + heads[10] + heads[15] + heads[19])
    ours = [
        _at_paper_scale(settings).expected_flops(context) for settings in ({**MLMS, "backward": "joint"}, telescopic("uniform"))
    ]
    assert ours[0] / ours[1] == pytest.approx(joint / uniform, rel=1e-6)
