"""Tensors of a model that is split over workers (`training/sharding.py`): in and out, one whole tensor at a time.

Easy to miss: between steps such a tensor is a part, whatever its shape says, and `whole` and `save_whole` are called by all workers
together. For a model that is not split everything here is plain copying.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

SAFETENSORS_NAMES = {torch.float32: "F32", torch.float64: "F64", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}


def is_part(tensor: Tensor) -> TypeGuard[DTensor]:
    """Whether a tensor is split over workers; its type takes as long to import as half of torch, so it is not looked at."""
    return hasattr(tensor, "device_mesh")


def whole(tensor: Tensor) -> Tensor:
    """A tensor with the parts of all workers."""
    return tensor.full_tensor() if is_part(tensor) else tensor


def part_like(values: Tensor, target: Tensor) -> Tensor:
    """Whole values, that every worker has, on the target's device and split as it is; single numbers stay whole."""
    values = values.to(target.device)
    if not is_part(target) or values.ndim == 0:
        return values
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(values, target.device_mesh, target.placements, src_data_rank=None)


@torch.no_grad()
def put(target: Tensor, values: Tensor) -> None:
    """Sets a tensor, whole or a part, to whole values that every worker has."""
    target.copy_(part_like(values, target))


def put_all(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Sets all weights and buffers of a model.

    Raises:
        RuntimeError: names or shapes are not the model's.
    """
    targets = model.state_dict()
    odd = sorted(set(targets) ^ set(tensors)) or [name for name, target in targets.items() if target.shape != tensors[name].shape]
    if odd:
        raise RuntimeError(f"weights do not fit the model at {', '.join(odd[:3])}")
    for name, target in targets.items():
        put(target, tensors[name])


def save_whole(tensors: Mapping[str, Tensor], path: Path | None) -> None:
    """Writes tensors to one safetensors file, gathering one at a time; workers without a path only give their parts."""
    if path is None:
        for tensor in tensors.values():
            whole(tensor)
        return
    header: dict[str, Any] = {}
    start = 0
    for name, tensor in tensors.items():
        end = start + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": SAFETENSORS_NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in tensors.values():
            values = whole(tensor).detach().cpu().contiguous()
            file.write(values.flatten().view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
