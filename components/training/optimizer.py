"""AdamW with explicit decay groups, and its state as named tensors.

A parameter without a gradient in a step is not touched at all: neither decay nor momentum moves it, and its moments stay. That is
what keeps blocks above a sampled depth byte-identical when there is no anchor.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from components.config.problems import CheckpointError
from components.config.schema import Training
from components.models.parts import part_like

STATE_KEYS = ("exp_avg", "exp_avg_sq", "step")


def decay_groups(model: nn.Module, decay_embeddings: bool) -> dict[str, list[str]]:
    """Names of the parameters that decay and of those that do not; every one that trains is in exactly one list.

    Norm gains never decay. Embedding tables decay only if asked: decay acts on the whole table in every step, also on tokens that
    the batch does not contain.
    """
    embeddings = {
        f"{name}.{inner}" for name, module in model.named_modules() if isinstance(module, nn.Embedding) for inner in ("weight",)
    }
    groups: dict[str, list[str]] = {"decay": [], "no_decay": []}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        decays = parameter.ndim > 1 and (decay_embeddings or name not in embeddings)
        groups["decay" if decays else "no_decay"].append(name)
    return groups


def build_optimizer(model: nn.Module, training: Training) -> torch.optim.AdamW:
    """AdamW over all parameters, fused where the device has it."""
    parameters = dict(model.named_parameters())
    groups = decay_groups(model, training.decay_embeddings)
    return torch.optim.AdamW(
        [
            {"params": [parameters[name] for name in names], "weight_decay": training.weight_decay if group == "decay" else 0.0}
            for group, names in groups.items()
            if names
        ],
        lr=training.lr,
        betas=(training.beta1, training.beta2),
        eps=training.adam_eps,
        fused=True,
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """The optimizer's state as `<parameter>.<key>` tensors; parameters that never had a gradient have none."""
    return {
        f"{name}.{key}": optimizer.state[parameter][key]
        for name, parameter in model.named_parameters()
        if parameter in optimizer.state
        for key in STATE_KEYS
    }


def load_optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Puts the state back exactly; parameters without saved state start fresh.

    Raises:
        CheckpointError: a tensor belongs to no parameter or has another shape.
    """
    left = dict(tensors)
    for name, parameter in model.named_parameters():
        state = {key: left.pop(f"{name}.{key}") for key in STATE_KEYS if f"{name}.{key}" in left}
        if not state:
            continue
        if set(state) != set(STATE_KEYS) or state["exp_avg"].shape != parameter.shape:
            raise CheckpointError(f"optimizer state of {name} does not fit the model; delete the checkpoint to start over")
        optimizer.state[parameter] = {key: part_like(tensor, parameter) for key, tensor in state.items()}
    if left:
        raise CheckpointError(f"optimizer state of unknown parameters: {', '.join(sorted(left)[:3])}; delete the checkpoint")
