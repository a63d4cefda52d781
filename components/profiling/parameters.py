"""Every parameter of an arm's model, its size, and what the optimizer does with it: what training does, without any memory."""

from __future__ import annotations

from typing import NamedTuple

import torch

from components.config.schema import Arm
from components.objectives.base import build_objective
from components.training.optimizer import decay_groups


class ParameterLine(NamedTuple):
    """One parameter.

    Attributes:
        group: `decay`, `no_decay`, or `frozen`.
    """

    name: str
    shape: tuple[int, ...]
    size: int
    group: str


def list_parameters(arm: Arm, vocab_size: int) -> list[ParameterLine]:
    """In the order of the model."""
    with torch.device("meta"):
        objective = build_objective(arm, vocab_size, seed=0)
        model = objective.trimmed(objective.new_model())
    group_of = {name: group for group, names in decay_groups(model, arm.training.decay_embeddings).items() for name in names}
    return [
        ParameterLine(name, tuple(parameter.shape), parameter.numel(), group_of.get(name, "frozen"))
        for name, parameter in model.named_parameters()
    ]
