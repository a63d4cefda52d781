"""Splits a model over workers (FSDP2), for models that one device cannot hold: weights, gradients and moments in equal parts.

Every block is a unit: gathered when it runs, let go afterwards, its gradient summed and split in the backward pass. What is left
(embeddings, exits) is one unit more, gathered at a step's first pass and kept until its last: a pass reads heads as plain tensors,
and several read-outs may share one. Blocks that a pass does not run are neither gathered nor reduced: all workers draw the same
depths, so they agree about it.

Gradients are summed, not averaged: losses are already divided by the labels of the global batch. Micro-steps reduce one by one.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import nn

from components.models.cascade import Cascade
from components.models.streams import StreamedCascade
from components.training.workers import rank_and_workers, sum_over_workers


def shard_model(model: Cascade, device: torch.device, precision: str) -> None:
    """Splits a model over all workers, in place. One without storage (device `meta`) gets it here, part by part, with no values.

    Deviation: in bfloat16 blocks are gathered in bfloat16, norms' gains included: a copy made of a gathered float32 block would be
    kept for the backward pass, of every block, on every worker. Parts, moments and sums of gradients stay float32.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (rank_and_workers()[1],))
    reduced = torch.bfloat16 if precision == "bfloat16" else None
    policy = MixedPrecisionPolicy(param_dtype=reduced, reduce_dtype=torch.float32, cast_forward_inputs=False)
    sources: set[int | None] = set()
    if isinstance(model, StreamedCascade):
        sources = {model.streams.mirror_source(depth) for depth in range(1, model.n_blocks + 1)}
    for depth, block in enumerate(model.blocks, 1):
        if depth in sources:  # mirrored blocks read its normed input, before it runs
            fully_shard(cast(nn.Module, block.attention_norm), mesh=mesh)
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(1.0)
            module.set_force_sum_reduction_for_comms(True)  # gloo can sum, and no scaled sum
    cast(FSDPModule, model).set_reshard_after_backward(False, recurse=False)
    register_fsdp_forward_method(model, "residuals")
    if any(parameter.is_meta for parameter in model.parameters()):
        model.to_empty(device=device)


def is_sharded(model: nn.Module) -> bool:
    """Whether `shard_model` split it."""
    return hasattr(model, "set_reshard_after_backward")


def sum_gradients(model: nn.Module) -> None:
    """Sums the gradients of all workers after the passes of a step. Depths are the same everywhere: the same parameters have one.

    Those of a sharded model are summed already; it lets go of what it still holds gathered, and they lie where the optimizer looks.
    """
    if is_sharded(model):
        model.reshard()  # type: ignore[operator]
        return
    sum_over_workers([parameter.grad for parameter in model.parameters() if parameter.grad is not None])
