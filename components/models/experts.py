"""Mixture of experts: a feed-forward of many small SwiGLUs, of which every row goes through a few.

Rows are sorted by expert, each expert's rows are one contiguous segment, and every segment is one matrix product (one grouped
product for all of them in bfloat16). No row is dropped and nothing is padded. Routing is deterministic: scores are worked out in
float32 (or float64) also under autocast, and of equal scores the expert with the lower index wins.

Balance. `bias`: a number per expert is added to the scores that choose, not to the weights; after a step it moves by a fixed
amount towards equal load, counted over all rows, passes, micro-steps and workers of the step. `auxiliary`: a loss; see
`row_imbalance`. Both are the same however a batch is cut into micro-steps and workers.

An expert without rows in a step gets a gradient of zero, not none: all experts of a block are one parameter.

Shapes: B batch, Q rows of a batch row, N = B Q, D width, E experts, S = top_k, F inner width of an expert.

Source:
    DeepSeekMoE (arXiv 2401.06066) for fine-grained and shared experts; Auxiliary-Loss-Free Load Balancing (arXiv 2408.15664) for
    the bias; Switch Transformers (arXiv 2101.03961, eq. 4) for the loss, taken per row of the batch as in DeepSeek-V3 (arXiv
    2412.19437, eq. 17).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from components.config.experts import Experts
from components.models.feed_forward import SwiGLU

GROUPED_ALIGNMENT = 8  # widths that the grouped product takes are multiples of 16 bytes


class Routing(NamedTuple):
    """Where rows go: [N, S] chosen experts, their weights (sum 1 per row), and [N, E] scores before the bias."""

    chosen_NS: Tensor
    weights_NS: Tensor
    scores_NE: Tensor


class Router(nn.Module):
    """Scores every expert for every row and chooses `top_k`."""

    bias: Tensor | None

    def __init__(self, d_model: int, settings: Experts) -> None:
        super().__init__()
        self.settings = settings
        self.weight = nn.Parameter(torch.empty(settings.n_experts, d_model))
        self.register_buffer("bias", torch.zeros(settings.n_experts) if settings.balance == "bias" else None)

    def forward(self, x_ND: Tensor) -> Routing:
        with torch.autocast(x_ND.device.type, enabled=False):
            dtype = torch.promote_types(x_ND.dtype, torch.float32)
            logits_NE = F.linear(x_ND.to(dtype), self.weight.to(dtype))
            scores_NE = logits_NE.softmax(dim=-1) if self.settings.gate == "softmax" else logits_NE.sigmoid()
            ranked_NE = scores_NE.detach() if self.bias is None else scores_NE.detach() + self.bias
            chosen_NS = ranked_NE.sort(dim=-1, descending=True, stable=True).indices[:, : self.settings.top_k]
            kept_NS = scores_NE.gather(1, chosen_NS)
            tiny = torch.finfo(kept_NS.dtype).tiny
            return Routing(chosen_NS, kept_NS / kept_NS.sum(dim=-1, keepdim=True).clamp_min(tiny), scores_NE)


class ExpertWeights(nn.Module):
    """One matrix for each expert."""

    def __init__(self, n_experts: int, d_out: int, d_in: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_experts, d_out, d_in))

    def forward(self, x_ND: Tensor, loads_E: Tensor) -> Tensor:
        """Rows, sorted by expert, times their expert's matrix: [N, d_out]; `loads_E` counts each expert's rows."""
        kind = x_ND.device.type
        dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x_ND.dtype
        x_ND, weight = x_ND.to(dtype), self.weight.to(dtype)
        _, d_out, d_in = weight.shape
        if dtype == torch.bfloat16 and d_out % GROUPED_ALIGNMENT == d_in % GROUPED_ALIGNMENT == 0:
            ends_E = loads_E.cumsum(0, dtype=torch.int32)
            return F.grouped_mm(x_ND, weight.transpose(1, 2), offs=ends_E)
        segments = zip(torch.split(x_ND, loads_E.tolist()), weight.unbind(), strict=True)
        return torch.cat([F.linear(rows, matrix) for rows, matrix in segments])


class ExpertFeedForward(nn.Module):
    """The feed-forward of a block: routed experts, and shared ones that every row goes through.

    Attributes:
        load_E: int64, rows that each expert got since `counting` began.
        imbalance: sum over batch rows of the auxiliary loss of the latest pass, its weight included; None unless it counts.
    """

    def __init__(self, d_model: int, settings: Experts) -> None:
        super().__init__()
        self.settings = settings
        self.router = Router(d_model, settings)
        self.gate_up = ExpertWeights(settings.n_experts, 2 * settings.d_inner, d_model)
        self.down = ExpertWeights(settings.n_experts, d_model, settings.d_inner)
        self.shared = SwiGLU(d_model, settings.n_shared * settings.d_inner) if settings.n_shared else None
        self.load_E = torch.zeros(settings.n_experts, dtype=torch.int64)  # no buffer: it is never saved or moved
        self.rows_of_step: int | None = None  # batch rows of the global step while `counting`
        self.imbalance: Tensor | None = None

    def forward(self, x_BQD: Tensor) -> Tensor:
        x_ND = x_BQD.flatten(0, -2)
        routing = self.router(x_ND)
        flat_NS = routing.chosen_NS.flatten()
        order = flat_NS.sort(stable=True).indices
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        loads_E = flat_NS.new_zeros(self.settings.n_experts).scatter_add_(0, flat_NS, torch.ones_like(flat_NS))
        if self.rows_of_step is not None and torch.is_grad_enabled():
            self._count(routing, loads_E, len(x_BQD))
        gate, up = self.gate_up(_Dispatch.apply(x_ND, order, inverse), loads_E).chunk(2, dim=-1)  # type: ignore[no-untyped-call]
        sorted_out = self.down(F.silu(gate) * up, loads_E)
        out_NSD = _Collect.apply(sorted_out, order, inverse).view(len(x_ND), -1, x_ND.shape[-1])  # type: ignore[no-untyped-call]
        out_BQD: Tensor = (out_NSD * routing.weights_NS[:, :, None]).sum(dim=1).view_as(x_BQD)
        return out_BQD if self.shared is None else out_BQD + self.shared(x_BQD)

    def _count(self, routing: Routing, loads_E: Tensor, n_batch_rows: int) -> None:
        self.load_E += loads_E
        if self.settings.balance == "auxiliary" and self.rows_of_step is not None:
            per_row_B = row_imbalance(routing, n_batch_rows, self.settings)
            self.imbalance = per_row_B.sum() * (self.settings.balance_weight / self.rows_of_step)

    @torch.no_grad()
    def move_bias(self, load_E: Tensor) -> None:
        """Moves the bias after a step by `balance_weight`, up for experts with less than the mean load, down for those with more.

        Args:
            load_E: rows that each expert got in the whole step; a block that did not run has none, and keeps its bias.
        """
        if self.router.bias is not None:
            missing_E = load_E.sum() - load_E * self.settings.n_experts
            self.router.bias += self.settings.balance_weight * missing_E.sign().to(self.router.bias.dtype)


def row_imbalance(routing: Routing, n_batch_rows: int, settings: Experts) -> Tensor:
    """E sum_e f_e P_e of every batch row: f_e the share of its choices that are expert e, P_e its mean score of e. 1 when balanced.

    Taken per row, not per micro-batch, so that its mean over the rows of a step does not depend on accumulation or workers.

    Shapes:
        Returns [B].
    """
    chosen_BR = routing.chosen_NS.reshape(n_batch_rows, -1)
    counts_BE = routing.scores_NE.new_zeros(n_batch_rows, settings.n_experts)
    counts_BE = counts_BE.scatter_add_(1, chosen_BR, torch.ones_like(chosen_BR, dtype=counts_BE.dtype))
    shares_NE = routing.scores_NE / routing.scores_NE.sum(dim=-1, keepdim=True)
    mean_BE = shares_NE.view(n_batch_rows, -1, settings.n_experts).mean(dim=1)
    imbalance_B: Tensor = settings.n_experts * (counts_BE / chosen_BR.shape[1] * mean_BE).sum(dim=-1)
    return imbalance_B


def expert_layers(model: nn.Module) -> list[ExpertFeedForward]:
    """The mixtures of a model, in order of depth."""
    return [module for module in model.modules() if isinstance(module, ExpertFeedForward)]


@contextlib.contextmanager
def counting(model: nn.Module, rows_of_step: int) -> Iterator[None]:
    """Within it, passes that have gradients count towards balance, as part of a step of so many batch rows over all workers."""
    layers = expert_layers(model)
    for layer in layers:
        layer.rows_of_step = rows_of_step
        layer.load_E = torch.zeros(layer.settings.n_experts, dtype=torch.int64, device=layer.router.weight.device)
    try:
        yield
    finally:
        for layer in layers:
            layer.rows_of_step = layer.imbalance = None


class Imbalance:
    """Collects the auxiliary losses of the blocks that a pass runs, for the read-outs along the way.

    Every loss that reads out depth k brings the gradient of the sum over blocks 1..k once, whatever its own weight: so joint and
    separate passes of several read-outs add up to the same. Not with streams: a pass to a shallower depth alone runs fewer rows,
    and balances those.
    """

    def __init__(self) -> None:
        self._sum: Tensor | None = None

    def take(self, ffn: nn.Module) -> None:
        """Adds what the latest pass of a block's feed-forward left."""
        if isinstance(ffn, ExpertFeedForward) and ffn.imbalance is not None:
            self._sum = ffn.imbalance if self._sum is None else self._sum + ffn.imbalance
            ffn.imbalance = None

    def attached(self, x_BTD: Tensor) -> Tensor:
        """The residual stream, such that a backward pass from it is also one from the sum so far."""
        if self._sum is None:
            return x_BTD
        attached_BTD: Tensor = _Attach.apply(x_BTD, self._sum)  # type: ignore[no-untyped-call]
        return attached_BTD


class _Attach(torch.autograd.Function):
    """Its first argument; the second gets a gradient of 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor) -> Tensor:
        ctx.save_for_backward(loss)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (loss,) = ctx.saved_tensors
        return grads[0], torch.ones_like(loss)


class _Dispatch(torch.autograd.Function):
    """Rows [N, D] as [N S, D], sorted by expert. Its backward sums in a fixed order, where torch's own adds atomically on a GPU."""

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(inverse)
        ctx.n_rows = len(x_ND)
        return x_ND[order // (len(order) // len(x_ND))]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (inverse,) = ctx.saved_tensors
        return grads[0][inverse].view(ctx.n_rows, -1, grads[0].shape[-1]).sum(dim=1), None, None


class _Collect(torch.autograd.Function):
    """Sorted rows [N S, D] back in the order of rows and choices."""

    @staticmethod
    def forward(ctx: Any, sorted_out: Tensor, order: Tensor, inverse: Tensor) -> Tensor:
        ctx.save_for_backward(order)
        return sorted_out[inverse]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (order,) = ctx.saved_tensors
        return grads[0][order], None, None
