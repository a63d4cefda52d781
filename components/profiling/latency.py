"""Latency and throughput of every depth, number of streams, batch size and context, as the engine serves them.

Each turn of a cell builds its cache, runs once unmeasured, and then times one prefill and some decoding steps; the depths take
turns, round after round, so that a busy machine slows all of them alike. The clock is read only when the device has finished. What
is timed ends with the new tokens on the CPU: nothing is scored.

With n streams a turn is about n times the work, so there are fewer turns, and a profile takes about as long as without.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import torch

from components.config.schema import Profile
from components.inference.engine import Engine, Feed
from components.models.cascade import Cascade
from components.models.devices import peak_memory_bytes
from components.models.sizes import prefix_parameters
from components.results import LatencyCell, LatencyViolation, Timing

LEAST_TURNS = 3  # quartiles of fewer say nothing


class Stopwatch:
    """Seconds that an operation takes on a device that works asynchronously."""

    def __init__(self, synchronise: Callable[[], None], clock: Callable[[], float] = time.perf_counter) -> None:
        self._synchronise, self._clock = synchronise, clock

    @classmethod
    def of(cls, device: torch.device) -> Stopwatch:
        """A stopwatch that waits for the device; a CPU is never behind."""
        return cls((lambda: torch.cuda.synchronize(device)) if device.type == "cuda" else lambda: None)

    def seconds(self, operation: Callable[[], object]) -> float:
        """Runs the operation, from an idle device to an idle device."""
        self._synchronise()
        started = self._clock()
        operation()
        self._synchronise()
        return self._clock() - started


@dataclass
class Turn:
    """Clock readings of one turn, what its cache kept of the context, and the largest memory seen in it."""

    prefill: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)
    kv_bytes: int = 0
    peak_memory_bytes: int = 0


def profile_latency(
    model: Cascade, grid: Profile, watch: Stopwatch, on_turn: Callable[[int], object] = lambda _: None
) -> tuple[LatencyCell, ...]:
    """One cell per number of streams that the model is trained for, depth, batch size and context.

    Args:
        on_turn: told about each finished turn.
    """
    depths = range(1, model.n_blocks + 1)
    cells: list[LatencyCell] = []
    for n, batch_size, context in product(model.stream_counts, grid.batch_sizes, grid.context_tokens):
        seen: dict[int, list[Turn]] = {depth: [] for depth in depths}
        with model.running(n):
            for _ in range(turns(grid, n)):
                for depth in depths:
                    seen[depth].append(take_turn(model, depth, batch_size, context, grid.decode_steps, watch))
                    on_turn(1)
            cells += [_cell(model, depth, batch_size, context, seen[depth]) for depth in depths]
    return tuple(cells)


def turns(grid: Profile, n_streams: int) -> int:
    """Turns that each cell of a number of streams takes."""
    return max(LEAST_TURNS, grid.repeats // n_streams)


def n_turns(model: Cascade, grid: Profile) -> int:
    """Turns that `profile_latency` takes."""
    loads = model.n_blocks * len(grid.batch_sizes) * len(grid.context_tokens)
    return loads * sum(turns(grid, n) for n in model.stream_counts)


def take_turn(model: Cascade, depth: int, batch_size: int, context_tokens: int, decode_steps: int, watch: Stopwatch) -> Turn:
    """One warm-up, one prefill, and `decode_steps` steps of greedy decoding."""
    device = next(model.parameters()).device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    engine = Engine(model, batch_size, context_tokens + decode_steps, deepest=depth)
    prompts = torch.randint(
        0, model.vocab_size, (batch_size, context_tokens), generator=torch.Generator().manual_seed(batch_size)
    ).tolist()
    newest: list[list[int]] = prompts

    def feed() -> None:
        nonlocal newest
        arrivals = engine.advance([Feed(row, newest[row], depth) for row in range(batch_size)])
        chosen = engine.next_logits(arrivals).argmax(dim=1).tolist()
        newest = [[token] for token in chosen]

    feed()
    feed()
    for row in range(batch_size):
        engine.cache.crop(row, 0)
    newest = prompts
    turn = Turn(prefill=[watch.seconds(feed)], kv_bytes=engine.kv_bytes(context_tokens))
    turn.decode = [watch.seconds(feed) for _ in range(decode_steps)]
    turn.peak_memory_bytes = peak_memory_bytes(device)
    return turn


def timing(seconds: Sequence[float]) -> Timing:
    """Median and quartiles of clock readings."""
    low, median, high = np.quantile(seconds, [0.25, 0.5, 0.75]).tolist()
    return Timing(median_seconds=median, low_seconds=low, high_seconds=high, samples=len(seconds))


def latency_violations(cells: Sequence[LatencyCell]) -> tuple[LatencyViolation, ...]:
    """Depths that were faster than a shallower one although they do more: upper quartile below the other's lower quartile.

    Each depth is compared with the slowest of those above it.
    """
    found: list[LatencyViolation] = []
    for cell in cells:
        shallower = [
            other
            for other in cells
            if other.depth < cell.depth
            and (other.n_streams, other.batch_size, other.context_tokens) == (cell.n_streams, cell.batch_size, cell.context_tokens)
        ]
        if not shallower:
            continue
        slowest_prefill = max(shallower, key=lambda other: other.prefill.low_seconds)
        slowest_decode = max(shallower, key=lambda other: other.decode.low_seconds)
        where = {
            "depth": cell.depth,
            "n_streams": cell.n_streams,
            "batch_size": cell.batch_size,
            "context_tokens": cell.context_tokens,
        }
        if cell.prefill.high_seconds < slowest_prefill.prefill.low_seconds:
            found.append(LatencyViolation(operation="prefill", shallower_depth=slowest_prefill.depth, **where))
        if cell.decode.high_seconds < slowest_decode.decode.low_seconds:
            found.append(LatencyViolation(operation="decode", shallower_depth=slowest_decode.depth, **where))
    return tuple(found)


def tokens_per_second(tokens: int, seconds: float) -> float:
    """Throughput of `tokens` in `seconds`.

    Raises:
        ValueError: no time has passed: the clock is too coarse.
    """
    if seconds <= 0.0:
        raise ValueError(f"{tokens} tokens in {seconds} seconds: the clock is too coarse for this")
    return tokens / seconds


def _cell(model: Cascade, depth: int, batch_size: int, context_tokens: int, turns: Sequence[Turn]) -> LatencyCell:
    itemsize = next(model.parameters()).element_size()
    prefill = timing([seconds for turn in turns for seconds in turn.prefill])
    decode = timing([seconds for turn in turns for seconds in turn.decode])
    shape = model.settings.serving(model.n_running)
    parameters = prefix_parameters(shape, model.vocab_size, depth) + model.added_cost(depth, context_tokens)[0]
    return LatencyCell(
        depth=depth,
        n_streams=model.n_running,
        batch_size=batch_size,
        context_tokens=context_tokens,
        prefill=prefill,
        decode=decode,
        prefill_tokens_per_second=tokens_per_second(batch_size * context_tokens, prefill.median_seconds),
        decode_tokens_per_second=tokens_per_second(batch_size, decode.median_seconds),
        weight_bytes=parameters * itemsize,
        kv_bytes=turns[-1].kv_bytes,
        peak_memory_bytes=max(turn.peak_memory_bytes for turn in turns),
    )
