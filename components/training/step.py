"""One optimizer step, for any objective."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from components.config.schema import Training
from components.data.stream import Batch
from components.models.cascade import Cascade, document_numbers
from components.models.experts import counting, expert_layers
from components.models.parts import whole
from components.objectives.base import Objective, TokenBatch
from components.training.optimizer import build_optimizer, set_learning_rate
from components.training.schedule import learning_rate
from components.training.sharding import is_sharded, sum_gradients
from components.training.step_report import NonFiniteLossError as NonFiniteLossError
from components.training.step_report import StepReport, skip_unless_finite
from components.training.workers import sum_over_workers


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
) -> StepReport:
    """Runs the objective over the micro-batches of this worker's share, sums gradients over workers, and updates the weights.

    On a GPU nothing here waits for the device: a loss that is not finite leaves the weights as they are, and is told by the report.

    Returns:
        Mean losses of the global batch in nats per valid token (`loss` is the objective's), `grad_norm` before clipping, and for a
        mixture of experts `expert_load`.

    Raises:
        NonFiniteLossError: before anything was updated; on a GPU when the report is read.
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
    losses = dict(zip(sums, (values / batch.n_valid_global).unbind(), strict=True))
    norm = whole(torch.nn.utils.clip_grad_norm_(state.model.parameters(), training.grad_clip_norm))
    remedy = f"Lower training.lr ({training.lr}) or training.grad_clip_norm, or look at the batch of this step"
    report = StepReport(state.step, {**losses, "grad_norm": norm}, remedy)
    if device.type == "cuda" and not is_sharded(state.model):
        skip_unless_finite(state.optimizer, report)
    else:
        dict(report)  # costs nothing here, or has to be known on every worker
    set_learning_rate(state.optimizer, learning_rate(training, state.step))
    state.optimizer.step()
    state.step += 1
    report.add(balance_experts(state.model))  # also after a skipped step, whose run ends when its report is read
    return report


def balance_experts(model: Cascade) -> dict[str, Tensor]:
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
    return {"expert_load": ratios_LE.max()}


def micro_batches(batch: Batch, rows: int, device: torch.device, eos_id: int | None) -> Iterator[TokenBatch]:
    """The batch, `rows` rows at a time, on the device; with `eos_id`, each token's document number is worked out."""
    for start in range(0, len(batch.inputs), rows):
        part = slice(start, start + rows)
        tokens_BT, labels_BT = (_on_device(array[part], device) for array in (batch.inputs, batch.labels))
        documents_BT = None if eos_id is None else document_numbers(tokens_BT, eos_id)
        yield TokenBatch(tokens_BT, labels_BT, documents_BT, 1.0 / batch.n_valid_global)


def _on_device(array: npt.NDArray[np.int64], device: torch.device) -> Tensor:
    """The array on the device; a GPU copies from pinned memory while the host goes on."""
    tensor = torch.from_numpy(array)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[None]:
    """Matrix products in bfloat16 when asked; weights, norms' statistics, losses and the optimizer stay float32."""
    if precision == "bfloat16":
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()
