"""From the normed residual stream to losses, without ever holding all logits of a micro-batch.

At vocabulary 49,152 the logits of one 2,048-token row are 400 MB in float32, and training would need them three times. All losses
here walk over chunks of tokens instead.

Shapes: N tokens, D width, V vocabulary. Labels of -100 do not count.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import LinearCrossEntropyOptions

from components.data.manifest import IGNORED

CHUNK_TOKENS = 256  # measured: as fast as whole logits at V = 1,024, faster at V = 49,152
OWN_CHUNK_TOKENS = 128  # with a teacher, three arrays of a chunk's logits are held at once
OWN_CHUNK_LOGITS = 2**21  # fewer tokens a chunk when the vocabulary is large


def nll_sum(hidden_ND: Tensor, head_VD: Tensor, labels_N: Tensor) -> Tensor:
    """Summed next-token cross-entropy of hidden states read out by a head.

    Under autocast the head's products are in the autocast dtype, as all others; the sum is float32.

    Returns:
        Scalar, nats, summed over labels that count.
    """
    reduced_ND = _autocast(hidden_ND)
    if reduced_ND is not hidden_ND:
        loss: Tensor = _ChunkedNll.apply(reduced_ND, head_VD, labels_N, None, None, 0.0)  # type: ignore[no-untyped-call]
        return loss
    options = LinearCrossEntropyOptions(batch_chunk_size=CHUNK_TOKENS)
    return F.linear_cross_entropy(hidden_ND, head_VD, labels_N, reduction="sum", options=options)


@torch.no_grad()
def token_nll(hidden_ND: Tensor, head_VD: Tensor, labels_N: Tensor) -> Tensor:
    """Cross-entropy of each token, float32 [N], nats; 0 where the label does not count."""
    head_VD = head_VD.to(hidden_ND.dtype)
    losses = [
        F.cross_entropy((hidden @ head_VD.T).float(), labels, reduction="none", ignore_index=IGNORED)
        for hidden, labels in zip(torch.split(hidden_ND, CHUNK_TOKENS), torch.split(labels_N, CHUNK_TOKENS), strict=True)
    ]
    return torch.cat(losses)


def distilled_nll_sum(
    hidden_ND: Tensor, head_VD: Tensor, labels_N: Tensor, teacher_ND: Tensor, teacher_head_VD: Tensor, weight: float
) -> Tensor:
    """Summed (1 - weight) x cross-entropy + weight x soft cross-entropy to the teacher's distribution.

    The teacher gets no gradient. Its soft cross-entropy is -sum_v p_teacher(v) log p(v), at temperature 1.

    Returns:
        Scalar, nats, summed over labels that count.
    """
    hidden_ND, teacher_ND = _autocast(hidden_ND), _autocast(teacher_ND.detach())
    loss: Tensor = _ChunkedNll.apply(hidden_ND, head_VD, labels_N, teacher_ND, teacher_head_VD.detach(), weight)  # type: ignore[no-untyped-call]
    return loss


def _autocast(hidden_ND: Tensor) -> Tensor:
    """The hidden states in the autocast dtype; torch's own autocast leaves what follows here alone."""
    kind = hidden_ND.device.type
    return hidden_ND.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else hidden_ND


class _ChunkedNll(torch.autograd.Function):
    """Works out the gradients chunk by chunk during the forward pass, where the logits are at hand; a frozen head has none."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        head_VD: Tensor,
        labels_N: Tensor,
        teacher_ND: Tensor | None,
        teacher_head_VD: Tensor | None,
        weight: float,
    ) -> Tensor:
        head = head_VD.to(hidden_ND.dtype)
        grad_hidden = torch.empty_like(hidden_ND)
        grad_head = torch.zeros_like(head_VD) if ctx.needs_input_grad[1] else None
        total = torch.zeros((), dtype=torch.promote_types(hidden_ND.dtype, torch.float32), device=hidden_ND.device)
        chunk = max(1, min(OWN_CHUNK_TOKENS, OWN_CHUNK_LOGITS // len(head_VD)))
        for start in range(0, len(labels_N), chunk):
            part = slice(start, start + chunk)
            hidden, labels = hidden_ND[part], labels_N[part]
            counts = (labels != IGNORED)[:, None].to(total.dtype)
            index = labels.clamp_min(0)[:, None]
            logp = torch.log_softmax((hidden @ head.T).to(total.dtype), dim=-1)
            total -= (1.0 - weight) * (logp.gather(1, index) * counts).sum()
            target = None
            if teacher_ND is not None and teacher_head_VD is not None:
                teacher_head = teacher_head_VD.to(teacher_ND.dtype)
                target = torch.softmax((teacher_ND[part] @ teacher_head.T).to(total.dtype), dim=-1).mul_(weight)
                total -= ((target * logp).sum(dim=-1, keepdim=True) * counts).sum()
            grad_logits = logp.exp_().scatter_add_(1, index, torch.full_like(counts, weight - 1.0))
            if target is not None:
                grad_logits -= target
            grad_logits = grad_logits.mul_(counts).to(hidden.dtype)
            torch.mm(grad_logits, head, out=grad_hidden[part])
            if grad_head is not None:
                grad_head += (grad_logits.T @ hidden).to(grad_head.dtype)
        ctx.save_for_backward(grad_hidden, grad_head)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        grad_hidden, grad_head = ctx.saved_tensors
        of_head = None if grad_head is None else grad_head * grads[0]
        return grad_hidden * grads[0].to(grad_hidden.dtype), of_head, None, None, None, None
