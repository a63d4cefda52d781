"""What a step reports, without waiting for the device that works it out.

On a GPU the host runs ahead of the device: it queues steps while earlier ones are computed, until somebody reads a number.
Easy to get wrong: a step that is not finite must change nothing, though nobody has read yet that it is not; the optimizer's kernel
itself leaves the weights alone then, and whoever reads the report gets the error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from components.config.problems import StudyError


class NonFiniteLossError(StudyError):
    """The loss or the gradient of a step is not finite."""


class StepReport(Mapping[str, float]):
    """Mean losses of a step in nats per valid token, `grad_norm` before clipping, and what the model adds.

    Asking for a number raises `NonFiniteLossError` when the loss or the norm is not finite.
    """

    def __init__(self, step: int, values: Mapping[str, Tensor], remedy: str) -> None:
        self._step, self._remedy = step, remedy
        self._tensors = dict(values)
        self._read: dict[str, float] | None = None

    def add(self, values: Mapping[str, Tensor]) -> None:
        """More numbers of the same step."""
        self._tensors |= values
        self._read = None

    @property
    def is_finite(self) -> Tensor:
        """Bool scalar on the device: whether loss and gradient norm are."""
        return torch.stack([self._tensors[name].double() for name in ("loss", "grad_norm")]).isfinite().all()

    def __getitem__(self, name: str) -> float:
        return self._values()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def _values(self) -> dict[str, float]:
        if self._read is None:
            numbers = torch.stack([tensor.double() for tensor in self._tensors.values()]).tolist()
            self._read = dict(zip(self._tensors, numbers, strict=True))
        loss, norm = self._read["loss"], self._read["grad_norm"]
        if not (math.isfinite(loss) and math.isfinite(norm)):
            raise NonFiniteLossError(
                f"step {self._step}: loss {loss}, gradient norm {norm}: not finite; the weights were not updated. {self._remedy}"
            )
        return self._read


def read_all(reports: Iterable[Mapping[str, float]]) -> None:
    """Waits for the steps.

    Raises:
        NonFiniteLossError: of the first that is not finite.
    """
    for report in reports:
        dict(report)


def skip_unless_finite(optimizer: torch.optim.Optimizer, report: StepReport) -> None:
    """The next step of a fused optimizer changes nothing when the report is not finite; nobody waits to find out."""
    optimizer.found_inf = (~report.is_finite).float()  # type: ignore[attr-defined]  # read by its kernel, as for scaled gradients
