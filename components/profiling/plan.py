"""What a study will cost, before any GPU is rented: FLOPs, memory and device-hours of every arm, from the parameters alone.

No torch in here: `python -m tasks.plan` answers in under a second. The formulas are those of `models/sizes.py`, tested against
counted runs; hours follow from a model FLOPs utilisation (MFU) that the user states or has measured.
"""

from __future__ import annotations

from dataclasses import dataclass

from components.config.schema import Arm, Model, Study
from components.models.sizes import block_parameters
from components.objectives.base import build_objective

WEIGHT_BYTES = 4  # float32
TRAINED_BYTES = 12  # float32 gradient and the two moments of AdamW
HEAD_CHUNK_TOKENS = 256  # logits are never held for more tokens than this


@dataclass(frozen=True)
class ArmPlan:
    """What one arm needs, for one seed.

    Attributes:
        tokens: trained on, steps x rows x seq_len.
        flops: forward and backward of the whole run, in the mean over the depth draws.
        relative_cost: FLOPs per token as a multiple of the reference arm's.
        state_bytes: weights, gradients and optimizer state, on every worker.
        activation_bytes: what one micro-batch keeps for its backward, on every worker.
        n_seeds: models to train.
    """

    name: str
    parameters: int
    tokens: int
    flops: float
    relative_cost: float
    state_bytes: int
    activation_bytes: int
    n_seeds: int

    def device_hours(self, peak_flops: float, utilisation: float) -> float:
        """Hours of one device with that peak (FLOP/s), for one seed."""
        return self.flops / (peak_flops * utilisation) / 3600


def plan_study(study: Study) -> list[ArmPlan]:
    """One plan per arm and repair; costs are relative to the first telescopic arm, or to the first arm when there is none."""
    models = list(study.models.values())
    reference = next((arm for arm in models if arm.objective.kind == "telescopic"), models[0])
    unit = _flops_per_token(reference, study)
    return [_plan(arm, study, _flops_per_token(arm, study), unit) for arm in models]


def _plan(arm: Arm, study: Study, per_token: float, unit: float) -> ArmPlan:
    training, vocab = arm.training, study.data.tokenizer.vocab_size
    tokens = training.steps * training.batch_rows * study.data.seq_len
    stored, trained = build_objective(arm, vocab, training.seeds[0]).parameter_counts()
    n_streams = 1 if arm.model.streams is None else arm.model.streams.n_streams
    return ArmPlan(
        name=arm.name,
        parameters=stored,
        tokens=tokens,
        flops=per_token * tokens,
        relative_cost=per_token / unit,
        state_bytes=stored * WEIGHT_BYTES + trained * TRAINED_BYTES,
        activation_bytes=activation_bytes(
            arm.model, vocab, study.runtime.micro_batch_rows * study.data.seq_len * n_streams, training.precision
        ),
        n_seeds=len(training.seeds),
    )


def activation_bytes(model: Model, vocab_size: int, tokens: int, precision: str) -> int:
    """What a pass over `tokens` tokens keeps for its backward: 12 d + 4 d_inner values per token and block, and a chunk of logits.

    In float32 each value takes 4 bytes. In bfloat16 it takes 2, but for the residual stream and the norms (8 d bytes more), and
    every block keeps a bfloat16 copy of its matrices.
    """
    total = 0
    for shape in model.blocks:
        values = 12 * shape.d_model + 4 * shape.d_inner
        per_token = 4 * values if precision == "float32" else 2 * values + 8 * shape.d_model
        copies = 0 if precision == "float32" else 2 * block_parameters(shape)
        total += per_token * tokens + copies
    return total + 2 * 4 * min(tokens, HEAD_CHUNK_TOKENS) * vocab_size


def _flops_per_token(arm: Arm, study: Study) -> float:
    objective = build_objective(arm, study.data.tokenizer.vocab_size, arm.training.seeds[0])
    return objective.expected_flops(study.data.seq_len)
