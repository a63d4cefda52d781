"""One optimizer step, for any objective."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from components.config.problems import StudyError
from components.config.schema import Training
from components.data.stream import Batch
from components.models.cascade import Cascade, document_numbers
from components.models.experts import counting, expert_layers
from components.models.parts import whole
from components.objectives.base import Objective, TokenBatch
from components.training.optimizer import build_optimizer, set_learning_rate
from components.training.schedule import learning_rate
from components.training.sharding import sum_gradients
from components.training.workers import sum_over_workers


class NonFiniteLossError(StudyError):
    """The loss or the gradient of a step is not finite."""


@dataclass
class TrainState:
    """What training changes: the weights, the optimizer's state and the number of steps done."""

    model: Cascade
    optimizer: torch.optim.AdamW
    step: int

    @classmethod
    def fresh(cls, model: Cascade, training: Training) -> TrainState:
        return cls(model, build_optimizer(model, training), 0)


def train_step(
    state: TrainState, batch: Batch, objective: Objective, training: Training, micro_batch_rows: int, eos_id: int
) -> dict[str, float]:
    """Runs the objective over the micro-batches of this worker's share, sums gradients over workers, and updates the weights.

    Returns:
        Mean losses of the global batch in nats per valid token (`loss` is the objective's), `grad_norm` before clipping, and for a
        mixture of experts `expert_load`.

    Raises:
        NonFiniteLossError: before anything was updated.
    """
    device = next(state.model.parameters()).device
    documents_matter = state.model.settings.document_attention == "block_diagonal"
    state.optimizer.zero_grad(set_to_none=True)
    sums: dict[str, Tensor] = {}
    with counting(state.model, training.batch_rows):
        for micro in micro_batches(batch, micro_batch_rows, device, eos_id if documents_matter else None):
            with autocast(device, training.precision):
                for name, value in objective.backward(state.model, micro, state.step).items():
                    sums[name] = sums[name] + value if name in sums else value
    sum_gradients(state.model)
    values = torch.stack([value.double() for value in sums.values()])
    sum_over_workers([values])
    losses = dict(zip(sums, (values / batch.n_valid_global).tolist(), strict=True))
    grad_norm = float(whole(torch.nn.utils.clip_grad_norm_(state.model.parameters(), training.grad_clip_norm)))
    if not (math.isfinite(losses["loss"]) and math.isfinite(grad_norm)):
        raise NonFiniteLossError(
            f"step {state.step}: loss {losses['loss']}, gradient norm {grad_norm}: not finite; the weights were not updated. "
            f"Lower training.lr ({training.lr}) or training.grad_clip_norm, or look at the batch of this step"
        )
    set_learning_rate(state.optimizer, learning_rate(training, state.step))
    state.optimizer.step()
    state.step += 1
    return {**losses, "grad_norm": grad_norm, **balance_experts(state.model)}


def balance_experts(model: Cascade) -> dict[str, float]:
    """Moves the biases of a mixture of experts by the load that all workers counted in the step.

    Returns:
        `expert_load`: rows of the most loaded expert, as a multiple of its block's mean; nothing for a dense model.
    """
    layers = expert_layers(model)
    if not layers:
        return {}
    loads_LE = torch.stack([layer.load_E for layer in layers])
    sum_over_workers([loads_LE])
    for layer, load_E in zip(layers, loads_LE, strict=True):
        layer.move_bias(load_E)
    ratios_LE = loads_LE / loads_LE.double().mean(dim=1, keepdim=True).clamp_min(1.0)
    return {"expert_load": float(ratios_LE.max())}


def micro_batches(batch: Batch, rows: int, device: torch.device, eos_id: int | None) -> Iterator[TokenBatch]:
    """The batch, `rows` rows at a time, on the device; with `eos_id`, each token's document number is worked out."""
    for start in range(0, len(batch.inputs), rows):
        part = slice(start, start + rows)
        tokens_BT = torch.from_numpy(batch.inputs[part]).to(device, non_blocking=True)
        labels_BT = torch.from_numpy(batch.labels[part]).to(device, non_blocking=True)
        documents_BT = None if eos_id is None else document_numbers(tokens_BT, eos_id)
        yield TokenBatch(tokens_BT, labels_BT, documents_BT, 1.0 / batch.n_valid_global)


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[None]:
    """Matrix products in bfloat16 when asked; weights, norms' statistics, losses and the optimizer stay float32."""
    if precision == "bfloat16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()
