"""The plan against real models and real tensors."""

from __future__ import annotations

import contextlib

import pytest
import torch

from components.config.loader import load_study
from components.config.schema import Segment
from components.models.cascade import Cascade
from components.models.sizes import head_flops, trunk_flops
from components.profiling.plan import activation_bytes, plan_study, schedule_costs, twins_cost
from tests.toys import ROOT, toy_model


def _kept_for_backward(model: Cascade, tokens: int, bfloat16: bool) -> int:
    """Bytes of the distinct storages, parameters apart, that autograd keeps."""
    storages: dict[int, int] = {}
    own = {parameter.data_ptr() for parameter in model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in own:
            storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    cast = torch.autocast("cpu", dtype=torch.bfloat16) if bfloat16 else contextlib.nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor), cast:
        ((_, x_BTD),) = model.residuals(torch.zeros(1, tokens, dtype=torch.int64), [model.n_blocks])
        x_BTD.float().sum()
    return sum(storages.values())


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_activation_formula_is_within_five_percent_of_what_autograd_keeps(precision: str) -> None:
    def measured(n_blocks: int) -> int:
        settings = toy_model(segments=(Segment(n_blocks=n_blocks, d_model=128),), head_dim=64)
        return _kept_for_backward(Cascade(settings, 64), 256, precision == "bfloat16")

    def formula(n_blocks: int) -> int:
        settings = toy_model(segments=(Segment(n_blocks=n_blocks, d_model=128),), head_dim=64)
        return activation_bytes(settings.blocks, 64, 256, precision)

    assert formula(4) - formula(2) == pytest.approx(measured(4) - measured(2), rel=0.05)


def test_paper_scale_is_planned_with_its_tokens_and_sizes() -> None:
    plans = {plan.name: plan for plan in plan_study(load_study(ROOT / "scales" / "proxy-200m.yaml"))}
    uniform = plans["tlm-uniform"]
    assert uniform.tokens == 19073 * 512 * 2048
    assert uniform.parameters == 241_981_248
    assert uniform.relative_cost == 1.0
    # by hand: 6 operations per weight of blocks (16 d^2) and head, and 12 d x mean context (1,024.5) for attention
    matrices = 16 * (11 * 320**2 + 5 * 576**2 + 4 * 960**2) + 960 * 49152
    attention = 12 * (11 * 320 + 5 * 576 + 4 * 960) * 1024.5
    assert plans["twin-full"].flops == pytest.approx((6 * matrices + attention) * uniform.tokens, rel=1e-3)
    assert uniform.device_hours(1e15, 0.5) == pytest.approx(uniform.flops / 5e14 / 3600)


def test_the_paper_s_hours_stand_beside_the_arms_it_has() -> None:
    plans = {plan.name: plan for plan in plan_study(load_study(ROOT / "scales" / "proxy-200m.yaml"))}
    known = {name: round(plan.paper_cost, 3) for name, plan in plans.items() if plan.paper_cost is not None}
    assert known == {"tlm-uniform": 1.0, "tlm-loguniform": 0.916, "tlm-exitgrid": 1.122, "mlms": 1.137, "mlms-norm": 1.137}


def test_schedules_cost_what_their_passes_cost() -> None:
    study = load_study(ROOT / "scales" / "proxy-200m.yaml")
    model, vocab, seq_len = study.model, study.data.tokenizer.vocab_size, study.data.seq_len
    heads = {depth: head_flops(model, vocab, depth) for depth in model.exits}
    each = sum(trunk_flops(model, depth, seq_len) + heads[depth] for depth in model.exits)
    shared = trunk_flops(model, model.n_blocks, seq_len) + sum(heads.values())
    uniform = 3 * (trunk_flops(model, model.n_blocks, seq_len) + heads[model.n_blocks])
    uniform += (
        3
        * sum(trunk_flops(model, depth, seq_len) + head_flops(model, vocab, depth) for depth in range(1, model.n_blocks + 1))
        / model.n_blocks
    )
    costs = {"joint": 3 * shared / uniform, "per_exit": (shared + 2 * each) / uniform, "separate": 3 * each / uniform}
    assert schedule_costs(study) == pytest.approx(costs)
    twins = sum(trunk_flops(model.prefix(depth), depth, seq_len) + heads[depth] for depth in model.exits)
    assert twins_cost(study) == pytest.approx(3 * twins / uniform)
    again = study.arms["twin-full"].model_copy(update={"model": model.model_copy(update={"ffn_ratio": 8})})
    assert twins_cost(study.model_copy(update={"arms": {**study.arms, "again": again}})) == pytest.approx(3 * twins / uniform)
    assert schedule_costs(load_study(ROOT / "scales" / "tiny.yaml")) != {}


def test_sharding_splits_state_and_keeps_what_is_gathered() -> None:
    study = load_study(ROOT / "scales" / "hd-moe-80b.yaml")
    whole = study.model_copy(update={"runtime": study.runtime.model_copy(update={"sharding": "none"})})
    plan, unsplit = (next(plan for plan in plan_study(one) if plan.name == "moe-80b") for one in (study, whole))
    assert unsplit.state_bytes == 16 * plan.parameters
    # by hand: 48 blocks of 2 x 2048 x (4096 + 512) attention, 513 experts of 3 x 2048 x 512, a router, four norms
    block = 2 * 2048 * (4096 + 512) + 513 * 3 * 2048 * 512 + 512 * 2048 + 2 * 2048 + 2 * 128
    rest = 2 * 151936 * 2048 + 2048
    assert plan.parameters == 48 * block + rest
    assert plan.active == plan.parameters - 48 * 502 * 3 * 2048 * 512
    assert plan.state_bytes == 16 * plan.parameters // 256 + 8 * rest + 10 * block
    assert plan.activation_bytes < unsplit.activation_bytes - 48 * 2 * 513 * 3 * 2048 * 512


def test_a_repair_keeps_one_block_at_most_and_a_backbone_nothing() -> None:
    study = load_study(ROOT / "scales" / "all-arms.yaml")
    plans = {plan.name: plan.activation_bytes for plan in plan_study(study)}
    tokens, vocab = study.runtime.micro_batch_rows * study.data.seq_len, study.data.tokenizer.vocab_size
    waiting = 4 * tokens * (7 * 48 + 3 * 80 + 3 * 112)  # what the depths between the exits 8, 12 and 16 are read out from
    logits = 2 * 4 * 256 * vocab
    assert plans["repair-norm"] == plans["repair-affine"] == plans["repair-head"] == waiting + logits
    inner = study.models["repair-block"].model.blocks[-1].d_inner
    assert plans["repair-block"] == waiting + logits + 4 * tokens * (12 * 112 + 4 * inner)
    assert {plan.name: plan.activation_bytes for plan in plan_study(load_study(ROOT / "scales" / "stories.yaml"))}["stories"] == 0
