"""The machine a model runs on: which device, its name, and the memory it takes."""

from __future__ import annotations

import ctypes
import functools
import platform
import resource
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # malloc.h


def pick_device(device: str) -> torch.device:
    """The device of `runtime.device`; `auto` takes the GPU that this process was given, if any."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def device_name(device: torch.device) -> str:
    """Name of the GPU or CPU as the system tells it."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()


@functools.cache
def cpu_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Model name of the CPU, or the architecture where the system does not tell."""
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() in ("model name", "Hardware"):
                return value.strip()
    return platform.processor() or platform.machine()


def keep_freed_memory() -> None:
    """Has this process keep the memory of freed tensors for the next ones, for as long as it lives.

    glibc maps every tensor above 32 MB afresh, and the system fills each page with zeros again: 5% of a training step with such
    tensors (`bench.stream_cost`, n = 4). With another C library nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_TRIM_THRESHOLD, -1)  # never
        mallopt(M_MMAP_MAX, 0)


def peak_memory_bytes(device: torch.device) -> int:
    """Largest memory held so far: of the GPU's tensors, or of the whole process on a CPU."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
