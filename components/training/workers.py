"""The few things a training step needs from its fellow workers. Without a process group there is one worker.

Gradients are summed once per step, after all forward and backward passes of all micro-steps: no hook can fire at the wrong
pass, and a depth that only some passes used cannot drift between workers. The loss is already divided by the global number of
valid tokens.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

BUCKET_BYTES = 64 * 2**20


def rank_and_workers() -> tuple[int, int]:
    """This worker's rank and how many there are."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def sum_over_workers(tensors: Iterable[Tensor]) -> None:
    """Sums tensors over all workers, in place, in buckets; every worker passes the same tensors in the same order."""
    if rank_and_workers()[1] == 1:
        return
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.flatten() for tensor in bucket])
        dist.all_reduce(flat)
        for tensor, summed in zip(bucket, torch.split(flat, [tensor.numel() for tensor in bucket]), strict=True):
            tensor.copy_(summed.view_as(tensor))


def is_same_everywhere(number: int, device: torch.device) -> bool:
    """Whether all workers pass the same number."""
    if rank_and_workers()[1] == 1:
        return True
    highest = torch.tensor([number, -number], device=device)
    dist.all_reduce(highest, op=dist.ReduceOp.MAX)
    return bool(highest[0] == -highest[1])


def wait_for_all() -> None:
    """Blocks until every worker is here."""
    if rank_and_workers()[1] > 1:
        dist.barrier()


def _buckets(tensors: Iterable[Tensor]) -> Iterable[list[Tensor]]:
    bucket: list[Tensor] = []
    size = 0
    for tensor in tensors:
        nbytes = tensor.numel() * tensor.element_size()
        if bucket and (size + nbytes > BUCKET_BYTES or tensor.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(tensor)
        size += nbytes
    if bucket:
        yield bucket
