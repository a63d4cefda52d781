"""What training cost."""

from __future__ import annotations

from typing import Literal

from components.results.record import Record


class SeedCost(Record):
    """What training one model cost, over all sessions of a run that was stopped and resumed.

    Attributes:
        seconds: wall-clock of the training loop (steps and checkpoints; no start-up).
        devices: GPUs, or CPU cores (workers x threads).
        device: name of the GPU or CPU.
        device_hours: seconds x devices / 3600, in `unit`.
        flops: analytic, forward and backward, of all steps.
        stream_fingerprint: of all token batches consumed, in order; equal across arms of one seed.
    """

    seed: int
    seconds: float
    devices: int
    device: str
    device_hours: float
    unit: Literal["GPU-hours", "core-hours"]
    steps: int
    tokens: int
    tokens_per_second: float
    flops: int
    peak_memory_bytes: int
    stream_fingerprint: str


class ArmCost(Record):
    """`artifacts/cost/<arm>.json`; only the report depends on it, so that a clock reading re-runs nothing else."""

    version: Literal[1]
    arm: str
    seeds: tuple[SeedCost, ...]
