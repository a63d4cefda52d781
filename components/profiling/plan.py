"""What a study will cost, before any GPU is rented: FLOPs, memory and device-hours of every arm, from the parameters alone.

No torch in here: `python -m tasks.plan` answers in under a second. The formulas are those of `models/sizes.py`, tested against
counted runs; hours follow from a model FLOPs utilisation (MFU) that the user states or has measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from components.config.model import BlockShape
from components.config.paper_arms import is_suite, is_twin, paper_cost
from components.config.schema import Arm, Model, Study
from components.models.sizes import block_parameters, idle_parameters
from components.objectives.base import build_objective

WEIGHT_BYTES = 4  # float32
TRAINED_BYTES = 12  # float32 gradient and the two moments of AdamW
SCHEDULES = ("joint", "per_exit", "separate")
HEAD_CHUNK_TOKENS = 256  # logits are never held for more tokens than this


@dataclass(frozen=True)
class ArmPlan:
    """What one arm needs, for one seed.

    Attributes:
        tokens: trained on, steps x rows x seq_len.
        flops: forward and backward of the whole run, in the mean over the depth draws.
        relative_cost: FLOPs per token as a multiple of the reference arm's.
        active: of the parameters, those that one token meets: all but the experts that it does not go to.
        state_bytes: weights, gradients and optimizer state, on every worker; with sharding its part, and what it gathers.
        activation_bytes: what one micro-batch keeps for its backward, on every worker.
        n_seeds: models to train.
        paper_cost: the paper's GPU-hours of that arm, as a multiple of the uniform sampler's; None for what it has no hours of.
    """

    name: str
    parameters: int
    active: int
    tokens: int
    flops: float
    relative_cost: float
    state_bytes: int
    activation_bytes: int
    n_seeds: int
    paper_cost: float | None

    def device_hours(self, peak_flops: float, utilisation: float) -> float:
        """Hours of one device with that peak (FLOP/s), for one seed."""
        return self.flops / (peak_flops * utilisation) / 3600


def plan_study(study: Study) -> list[ArmPlan]:
    """One plan a model; costs are relative to the first telescopic arm, or to the first arm when there is none."""
    unit = _flops_per_token(_reference(study), study)
    return [_plan(arm, study, _flops_per_token(arm, study), unit) for arm in study.models.values()]


def twins_cost(study: Study) -> float | None:
    """Cost of the first twin of each exit, together, relative to the reference; None when the study lacks one."""
    twins = [arm for arm in study.arms.values() if is_twin(arm.objective.model_dump(mode="json"))]
    first = {arm.model.n_blocks: arm for arm in reversed(twins)}
    if not set(study.model.exits) <= set(first):
        return None
    return sum(_flops_per_token(first[depth], study) for depth in study.model.exits) / _flops_per_token(_reference(study), study)


def schedule_costs(study: Study) -> dict[str, float]:
    """FLOPs of each backward schedule of the study's first Matryoshka suite, relative to the reference; none without a suite.

    The suite is taken without distillation, as the paper's hours are.
    """
    suite = next((arm for arm in study.arms.values() if is_suite(arm.objective.model_dump(mode="json"))), None)
    if suite is None:
        return {}
    unit = _flops_per_token(_reference(study), study)
    costs = {}
    for backward in SCHEDULES:
        settings = suite.objective.model_copy(update={"backward": backward, "distill_weight": 0.0})
        costs[backward] = _flops_per_token(suite.model_copy(update={"objective": settings}), study) / unit
    return costs


def _reference(study: Study) -> Arm:
    """The first telescopic arm, or the first arm when there is none."""
    models = list(study.models.values())
    return next((arm for arm in models if arm.objective.kind == "telescopic"), models[0])


def _plan(arm: Arm, study: Study, per_token: float, unit: float) -> ArmPlan:
    training, vocab = arm.training, study.data.tokenizer.vocab_size
    trains = arm.objective.trains  # an imported backbone does not
    tokens = training.steps * training.batch_rows * study.data.seq_len * trains
    stored, trained = build_objective(arm, vocab, training.seeds[0]).parameter_counts()
    n_streams = 1 if arm.model.streams is None else arm.model.streams.n_streams
    runtime = study.runtime.for_arm(arm.name)
    state = stored * WEIGHT_BYTES + trained * TRAINED_BYTES * trains
    is_sharded = runtime.sharding == "fsdp" and runtime.workers > 1
    micro_batch_tokens = runtime.micro_batch_rows * study.data.seq_len * n_streams
    kept, waiting = arm.objective.kept(arm.model)
    activations = activation_bytes(kept, vocab, micro_batch_tokens, training.precision, is_sharded)
    if is_sharded:
        state = state // runtime.workers + gathered_bytes(arm.model, stored, training.precision)
    return ArmPlan(
        name=arm.name,
        parameters=stored,
        active=stored - sum(idle_parameters(shape) for shape in arm.model.blocks),
        tokens=tokens,
        flops=per_token * tokens,
        relative_cost=per_token / unit,
        state_bytes=state,
        activation_bytes=trains * (activations + WEIGHT_BYTES * waiting * micro_batch_tokens),
        n_seeds=len(training.seeds),
        paper_cost=paper_cost(arm.objective.model_dump(mode="json")),
    )


def gathered_bytes(model: Model, stored: int, precision: str) -> int:
    """What a worker of a sharded model holds whole: embeddings and exits, and two blocks, one that runs and the next on its way.

    Each has its gradient, the running block's also as it is sent, in float32.
    """
    largest = max(block_parameters(shape) for shape in model.blocks)
    rest = stored - sum(block_parameters(shape) for shape in model.blocks)
    width = WEIGHT_BYTES if precision == "float32" else 2
    return 2 * WEIGHT_BYTES * rest + (3 * width + WEIGHT_BYTES) * largest


def activation_bytes(blocks: Sequence[BlockShape], vocab_size: int, tokens: int, precision: str, is_sharded: bool = False) -> int:
    """What a pass over `tokens` tokens keeps for its backward: 12 d + 4 d_inner values per token and block, with experts
    2 d more for each that a token goes to, and a chunk of logits.

    In float32 each value takes 4 bytes. In bfloat16 it takes 2, but for the residual stream and the norms (8 d bytes more), and
    every block keeps a bfloat16 copy of its matrices, unless the model is sharded.
    """
    total = 0
    for shape in blocks:
        routed = 0 if shape.experts is None else 2 * shape.experts.top_k * shape.d_model  # into the experts, and out of them
        values = 12 * shape.d_model + 4 * shape.d_inner + routed
        per_token = 4 * values if precision == "float32" else 2 * values + 8 * shape.d_model
        copies = 0 if precision == "float32" or is_sharded else 2 * block_parameters(shape)
        total += per_token * tokens + copies
    return total + 2 * 4 * min(tokens, HEAD_CHUNK_TOKENS) * vocab_size


def _flops_per_token(arm: Arm, study: Study) -> float:
    objective = build_objective(arm, study.data.tokenizer.vocab_size, arm.training.seeds[0])
    return objective.expected_flops(study.data.seq_len)
