"""What the training loop asks of an objective.

The loop knows no arm: it hands over a micro-batch, the objective runs its forward and backward passes, the gradients are in the
model. To add a kind of objective, add a file here with a `Settings` class (its keys in `params.yaml`) and an `Objective` class.
Neither may import torch at the top of the file: settings are checked, and costs planned, without it.
"""

from __future__ import annotations

import importlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from components.config.schema import Arm, Model, ObjectiveSettings
from components.models.sizes import stored_parameters

if TYPE_CHECKING:
    from torch import Tensor

    from components.models.cascade import Cascade


@dataclass(frozen=True)
class TokenBatch:
    """A micro-batch on the device.

    Attributes:
        tokens_BT: int64 [B, T].
        labels_BT: int64 [B, T]; -100 does not count.
        documents_BT: document number of each token when attention stays within documents, else None.
        scale: 1 / valid labels of the whole global batch. Losses are summed, then multiplied by it, so that neither
            accumulation nor the number of workers changes the gradient.
    """

    tokens_BT: Tensor
    labels_BT: Tensor
    documents_BT: Tensor | None
    scale: float


class Objective(ABC):
    """One training objective, bound to a model shape and a seed."""

    def __init__(self, model: Model, vocab_size: int, seed: int) -> None:
        self.model, self.vocab_size, self.seed = model, vocab_size, seed

    def new_model(self) -> Cascade:
        """The model that is trained, weights not yet set."""
        from components.models.streams import build_cascade

        return build_cascade(self.model, self.vocab_size)

    def start(self, model: Cascade, base_dir: Path | None) -> None:
        """Sets the weights of step 0.

        Args:
            base_dir: folder of the trained model of the arm's `base`; None when there is no base.
        """
        model.init_weights(self.seed)

    def trimmed(self, model: Cascade) -> Cascade:
        """The model without the parts that nothing will read, which it loses: there are none, here."""
        return model

    def moments(self, base_dir: Path | None) -> dict[str, Tensor]:
        """The optimizer's state at step 0, as `<parameter>.<key>` tensors; none unless training goes on from a base's."""
        return {}

    @abstractmethod
    def backward(self, model: Cascade, batch: TokenBatch, step: int) -> dict[str, Tensor]:
        """Adds the gradient of this micro-batch's share of the step's loss.

        Returns:
            Detached sums in nats over the micro-batch's labels, `loss` (the objective itself) among them; the caller divides by the
            global number of labels.
        """

    def parameter_counts(self) -> tuple[int, int]:
        """Parameters that are stored, and those of them that train."""
        stored = stored_parameters(self.model, self.vocab_size)
        return stored, stored

    @abstractmethod
    def step_flops(self, step: int, seq_len: int) -> int:
        """FLOPs per token of the forward and backward passes of one step."""

    @abstractmethod
    def expected_flops(self, seq_len: int) -> float:
        """`step_flops` in the mean over steps."""

    @abstractmethod
    def depths_at(self, step: int) -> Sequence[int]:
        """The trace of a step that is saved with the run: the depths that were drawn, or all that get a loss."""

    def streams_at(self, step: int) -> int:
        """How many streams per token a step runs."""
        return 1


def build_objective(arm: Arm, vocab_size: int, seed: int) -> Objective:
    """The objective of an arm; its kind is the name of a module of this package."""
    module = importlib.import_module(f"components.objectives.{arm.objective.kind}")
    objective: Objective = module.Objective(arm.objective, arm.model, vocab_size, seed)
    return objective


def settings_of(raw: Mapping[str, Any]) -> ObjectiveSettings:
    """The settings of an objective as a model card has them."""
    module = importlib.import_module(f"components.objectives.{raw['kind']}")
    settings: ObjectiveSettings = module.Settings.model_validate_json(json.dumps(raw))
    return settings


def at_most(key: str, value: int, limit: int, what: str) -> list[tuple[str, object, str, str]]:
    """The problem of a number above a limit that the model's shape sets, as `ObjectiveSettings.problems` returns it."""
    return [] if value <= limit else [(key, value, f"must be at most {limit}, {what}", "lower it or change model.segments")]


__all__ = ["Objective", "ObjectiveSettings", "TokenBatch", "at_most", "build_objective", "settings_of"]
