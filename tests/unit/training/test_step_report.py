"""A step's report is read late, and a step that is not finite changes nothing although nobody looked."""

from __future__ import annotations

import pytest
import torch

from components.training.optimizer import build_optimizer, optimizer_tensors
from components.training.step_report import NonFiniteLossError, StepReport, read_all, skip_unless_finite
from tests.toys import toy_cascade, toy_training


def _report(loss: float = 2.0, norm: float = 1.0, step: int = 3) -> StepReport:
    return StepReport(step, {"loss": torch.tensor(loss), "grad_norm": torch.tensor(norm)}, "Look at the batch")


def test_a_report_is_a_mapping_of_numbers() -> None:
    report = _report()
    assert dict(report) == {"loss": 2.0, "grad_norm": 1.0}
    report.add({"expert_load": torch.tensor(1.5)})
    assert (len(report), report["expert_load"]) == (3, 1.5)


@pytest.mark.parametrize(("loss", "norm"), [(float("nan"), 1.0), (2.0, float("inf"))])
def test_reading_a_step_that_is_not_finite_is_an_error(loss: float, norm: float) -> None:
    with pytest.raises(NonFiniteLossError, match=r"step 3: loss .*not finite; the weights were not updated\. Look at the batch"):
        read_all([_report(), _report(loss, norm), _report(step=5)])


@pytest.mark.parametrize("loss", [2.0, float("nan")])
def test_the_optimizer_leaves_out_a_step_that_is_not_finite_without_being_told_so(loss: float) -> None:
    model = toy_cascade(dtype=torch.float32)
    optimizer = build_optimizer(model, toy_training())
    for value in (0.5, loss):
        before = {name: tensor.clone() for name, tensor in optimizer_tensors(model, optimizer).items()}
        weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, value)
        skip_unless_finite(optimizer, _report(value))
        optimizer.step()
    after = optimizer_tensors(model, optimizer)
    is_same = all(torch.equal(tensor, weights[name]) for name, tensor in model.state_dict().items())
    is_state_same = all(torch.equal(tensor, before[name]) for name, tensor in after.items())
    assert (is_same, is_state_same) == ((True, True) if loss != loss else (False, False))
