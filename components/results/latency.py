"""How fast a model is at every depth and number of streams, and the operating points a deployer chooses from."""

from __future__ import annotations

from typing import Literal

from components.results.record import Record


class Timing(Record):
    """Clock readings of one operation: the median, and the quartiles as their spread."""

    median_seconds: float
    low_seconds: float
    high_seconds: float
    samples: int


class LatencyCell(Record):
    """What one (depth, streams, batch size, context) costs to serve.

    Attributes:
        n_streams: n of Hidden Decoding; 1 without.
        context_tokens: tokens in the cache of every sequence when decoding starts, and the length of the prefill.
        prefill: reading `batch_size` contexts at once, to the first new token.
        decode: one step, `batch_size` new tokens.
        weight_bytes: of the prefix alone, as it would be served.
        kv_bytes: keys and values that the engine keeps of the whole batch at that context, also those outside of local windows.
        peak_memory_bytes: the largest seen: tensors of the GPU in this cell; on a CPU the process so far.
    """

    depth: int
    n_streams: int
    batch_size: int
    context_tokens: int
    prefill: Timing
    decode: Timing
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    weight_bytes: int
    kv_bytes: int
    peak_memory_bytes: int


class LatencyViolation(Record):
    """A depth that was measured faster than a shallower one, beyond the spread of both: the clock was disturbed."""

    operation: Literal["prefill", "decode"]
    depth: int
    n_streams: int = 1
    shallower_depth: int
    batch_size: int
    context_tokens: int


class SpeculationCell(Record):
    """Self-speculative decoding of the whole model, all its streams, drafted by its prefix of `draft_depth` blocks.

    Attributes:
        acceptance: a, share of compared draft tokens that were kept; null when none was compared.
        cost_ratio: c, time of a drafting step relative to a plain step.
        expected_speedup: (1 - a^(g+1)) / ((1 - a)(g c + 1)); null without an acceptance.
        measured_speedup: time of plain decoding over speculative decoding of the same texts; median and quartiles.
    """

    draft_depth: int
    draft_tokens: int
    acceptance: float | None
    cost_ratio: float
    expected_speedup: float | None
    measured_speedup: float
    measured_low: float
    measured_high: float


class ArmProfile(Record):
    """`artifacts/profile/<arm>.json`: how fast one model is at every depth, on one machine. Clock readings, so nothing hangs on it.

    Attributes:
        seed: whose weights were timed; speed does not depend on them, acceptance does.
        dtype: of weights and cache.
        decode_steps, repeats: steps of one turn of decoding, and turns taken without streams (fewer with: a cell's prefill has
            as many samples as turns); every turn of warm-up is left out.
        violations: where latency does not grow with depth.
        speculation: greedy, one text at a time; empty when there is no shallower depth.
        recommended: the fastest cell whose lower quartile beats plain decoding; null when none does.
    """

    version: Literal[1]
    arm: str
    seed: int
    n_blocks: int
    device: str
    device_kind: Literal["cpu", "cuda"]
    threads: int
    dtype: str
    torch_version: str
    decode_steps: int
    repeats: int
    cells: tuple[LatencyCell, ...]
    violations: tuple[LatencyViolation, ...]
    speculation: tuple[SpeculationCell, ...]
    recommended: SpeculationCell | None


class OperatingPoint(Record):
    """Quality and cost of one (arm, depth, streams, batch size, context); quality is the mean over the arm's seeds.

    Attributes:
        decode_seconds: one step, median; `decode_high_seconds` its upper quartile.
        memory_bytes: weights of the prefix and cache of the batch.
    """

    arm: str
    depth: int
    n_streams: int
    batch_size: int
    context_tokens: int
    nll_nats: float
    ppl: float | None
    bits_per_byte: float
    parameters: int
    flops_per_token: int
    prefill_seconds: float
    decode_seconds: float
    decode_high_seconds: float
    decode_tokens_per_second: float
    memory_bytes: int


class OperatingPoints(Record):
    """`artifacts/operating_points.json`: the table a deployer chooses from, the best quality first.

    Attributes:
        device: where all points were measured.
        left_out: arms or depths that are not in the table, and why.
    """

    version: Literal[1]
    device: str
    threads: int
    validation_fingerprint: str
    points: tuple[OperatingPoint, ...]
    left_out: tuple[str, ...]
