"""Chunked losses against plain ones, in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from components.models.readout import CHUNK_TOKENS, distilled_nll_sum, nll_sum, token_nll

N, D, V = 2 * CHUNK_TOKENS + 37, 6, 50


def _inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(N, D, dtype=torch.float64, generator=generator, requires_grad=True)
    head = torch.randn(V, D, dtype=torch.float64, generator=generator, requires_grad=True)
    labels = torch.randint(0, V, (N,), generator=generator)
    labels[::7] = -100
    return hidden, head, labels


def _check(loss: torch.Tensor, reference: torch.Tensor, hidden: torch.Tensor, head: torch.Tensor) -> None:
    # float64; the two sum the same terms in another order
    torch.testing.assert_close(loss, reference, atol=1e-9, rtol=1e-12)
    ours = torch.autograd.grad(3.0 * loss, [hidden, head])
    plain = torch.autograd.grad(3.0 * reference, [hidden, head])
    for left, right in zip(ours, plain, strict=True):
        torch.testing.assert_close(left, right, atol=1e-10, rtol=1e-10)


def test_chunked_cross_entropy_equals_the_plain_one() -> None:
    hidden, head, labels = _inputs()
    _check(nll_sum(hidden, head, labels), F.cross_entropy(hidden @ head.T, labels, reduction="sum"), hidden, head)


@pytest.mark.parametrize("weight", [0.0, 0.3, 1.0])
def test_distilled_loss_equals_the_explicit_sum_and_gives_the_teacher_no_gradient(weight: float) -> None:
    hidden, head, labels = _inputs()
    generator = torch.Generator().manual_seed(1)
    teacher = torch.randn(N, 9, dtype=torch.float64, generator=generator, requires_grad=True)
    teacher_head = torch.randn(V, 9, dtype=torch.float64, generator=generator, requires_grad=True)
    logp = torch.log_softmax(hidden @ head.T, -1)
    soft = -(torch.softmax(teacher @ teacher_head.T, -1).detach() * logp).sum(-1)[labels != -100].sum()
    reference = (1 - weight) * F.cross_entropy(hidden @ head.T, labels, reduction="sum") + weight * soft
    loss = distilled_nll_sum(hidden, head, labels, teacher, teacher_head, weight)
    _check(loss, reference, hidden, head)
    distilled_nll_sum(hidden, head, labels, teacher, teacher_head, weight).backward()
    assert teacher.grad is None
    assert teacher_head.grad is None


def test_token_losses_are_zero_where_the_label_does_not_count() -> None:
    hidden, head, labels = _inputs()
    per_token = token_nll(hidden, head, labels)
    assert torch.equal(per_token == 0, labels == -100)
    torch.testing.assert_close(per_token.double().sum(), nll_sum(hidden, head, labels).detach(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("distill", [False, True])
def test_under_autocast_the_head_multiplies_in_bfloat16_and_sums_in_float32(distill: bool) -> None:
    hidden, head, labels = (tensor.detach().float() if tensor.is_floating_point() else tensor for tensor in _inputs())
    hidden.requires_grad_()
    head.requires_grad_()
    logits = (hidden.bfloat16() @ head.bfloat16().T).float()
    reference = F.cross_entropy(logits, labels, reduction="sum")
    if distill:
        target = torch.softmax(logits.detach(), -1)
        soft = -(target * torch.log_softmax(logits, -1)).sum(-1)[labels != -100].sum()
        reference = 0.7 * reference + 0.3 * soft
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = distilled_nll_sum(hidden, head, labels, hidden, head, 0.3) if distill else nll_sum(hidden, head, labels)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, reference, rtol=1e-5, atol=0)  # the same products; float32 sums in another order
    ours, plain = torch.autograd.grad(loss, [hidden, head]), torch.autograd.grad(reference, [hidden, head])
    for left, right in zip(ours, plain, strict=True):
        assert left.dtype == torch.float32
        assert float((left - right).norm() / right.norm()) < 0.01  # logit gradients rounded to bfloat16: 2^-9 each


@pytest.mark.parametrize("distill", [False, True])
def test_a_frozen_head_gets_no_gradient_and_the_hidden_states_theirs(distill: bool) -> None:
    found = []
    for is_trained in (True, False):
        hidden, head, labels = _inputs()
        head.requires_grad_(is_trained)
        loss = distilled_nll_sum(hidden, head, labels, hidden, head, 0.3) if distill else nll_sum(hidden, head, labels)
        loss.backward()
        assert (head.grad is not None) == is_trained
        found.append(hidden.grad)
    assert torch.equal(*found)
