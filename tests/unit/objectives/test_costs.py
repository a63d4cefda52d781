"""FLOPs of a step: against what its passes really multiply, expectation against the mean of the steps, and the paper's ratios."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from components.config.loader import load_study, resolve_arm
from components.config.schema import Arm
from components.models.cascade import Cascade
from components.objectives.base import Objective, build_objective
from components.objectives.repair import repair_settings
from tests.toys import ROOT, VOCAB, telescopic, toy_arm, toy_objective, toy_token_batch, toy_training
from tests.unit.models.test_experts import toy_experts

MLMS = {"kind": "fixed_exits", "distill_weight": 0.0}


def _multiplied(objective: Objective, model: Cascade, step: int) -> float:
    """FLOPs per token of the matrix products of one forward and backward, counted by PyTorch; it does not see attention's."""
    batch = toy_token_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16), FlopCounterMode(display=False) as counter:  # so that heads are plain products
        objective.backward(model, batch, step)
    return counter.get_total_flops() / batch.tokens_BT.numel()


def _without_attention(objective: Objective, step: int) -> int:
    """The formula's FLOPs, less those that grow with the context: attention's are in proportion to its length and one."""
    return 2 * objective.step_flops(step, 1) - objective.step_flops(step, 3)


@pytest.mark.parametrize("step", [0, 1, 4])
@pytest.mark.parametrize(
    "settings",
    [
        telescopic("uniform"),
        telescopic("uniform", anchor_weight=0.0),
        telescopic("uniform", distill_weight=0.3),
        telescopic("uniform", anchor_weight=0.0, distill_weight=0.3),
        telescopic("sandwich"),
        *({**MLMS, "backward": backward} for backward in ("joint", "per_exit", "separate")),
        {"kind": "fixed_exits", "distill_weight": 0.3, "backward": "per_exit"},
        {"kind": "twin", "exit": 2},
        {"kind": "layerdrop", "drop_probability": 0.4},
    ],
)
def test_a_step_multiplies_as_much_as_its_formula_says(settings: dict[str, Any], step: int) -> None:
    objective = toy_objective(settings)
    model = objective.new_model()
    model.init_weights(0)
    assert _multiplied(objective, model, step) == _without_attention(objective, step)


@pytest.mark.parametrize("part", ["norm", "affine", "head", "block"])
def test_a_repair_multiplies_as_much_as_its_formula_says(part: str) -> None:
    counted, formula = _repair_flops(part)
    assert counted == formula


def test_the_block_that_repairs_a_mixture_of_experts_multiplies_as_a_dense_one() -> None:
    (counted, formula), (norm_counted, norm_formula) = (_repair_flops(part, experts=toy_experts()) for part in ("block", "norm"))
    assert counted - norm_counted == formula - norm_formula  # the trunk's experts, which PyTorch does not count, are in both


def _repair_flops(part: str, **changes: Any) -> tuple[float, int]:
    base = toy_arm({**MLMS, "backward": "joint"}, **changes)
    settings = repair_settings(base, "base", part)  # type: ignore[arg-type]
    objective = build_objective(Arm(name="r", base="base", model=base.model, training=toy_training(), objective=settings), VOCAB, 0)
    model = objective.new_model()
    model.init_weights(0)
    return _multiplied(objective, model, 0), _without_attention(objective, 0)


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
