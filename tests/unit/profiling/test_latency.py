"""Clock readings: an asynchronous device, medians and quartiles, depths out of order, and what is left out of the timing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from components.config.profile import Profile, SpeculationGrid
from components.inference import trunk
from components.inference.block import BlockWeights, run_block
from components.models.repaired import Repaired
from components.models.sizes import prefix_parameters
from components.profiling.latency import (
    Stopwatch,
    latency_violations,
    n_turns,
    profile_latency,
    take_turn,
    timing,
    tokens_per_second,
    turns,
)
from components.results import LatencyCell
from tests.toys import VOCAB, toy_cascade, toy_model
from tests.unit.models.test_streams import toy_streamed

LAYERS = ("intra", "cross_full", "intra", "intra", "intra")


class AsynchronousDevice:
    """Takes work at once and finishes it later; waiting for it lets the clock run on."""

    def __init__(self) -> None:
        self.now, self._queued = 0.0, 0.0

    def launch(self, seconds: float) -> None:
        self.now += 1e-6
        self._queued += seconds

    def synchronise(self) -> None:
        self.now += self._queued
        self._queued = 0.0


def _grid(**changes: Any) -> Profile:
    speculation = SpeculationGrid(draft_tokens=(2,), prompts=1, prompt_tokens=4, new_tokens=4)
    settings = {
        "batch_sizes": (1, 3),
        "context_tokens": (6,),
        "decode_steps": 2,
        "repeats": 3,
        "dtype": "float32",
        "speculation": speculation,
    }
    return Profile(**{**settings, **changes})


def _cell(depth: int, low: float, high: float, batch_size: int = 1) -> LatencyCell:
    step = timing([low, (low + high) / 2, high])
    return LatencyCell(
        depth=depth, n_streams=1, batch_size=batch_size, context_tokens=8, prefill=timing([1.0]), decode=step,
        prefill_tokens_per_second=1.0, decode_tokens_per_second=1.0, weight_bytes=1, kv_bytes=1, peak_memory_bytes=1,
    )  # fmt: skip


def test_an_asynchronous_device_is_waited_for() -> None:
    device = AsynchronousDevice()
    watch = Stopwatch(device.synchronise, lambda: device.now)
    device.launch(5.0)  # left over from before
    assert watch.seconds(lambda: device.launch(0.25)) == pytest.approx(0.25, rel=1e-4)


def test_timing_is_median_and_quartiles() -> None:
    found = timing([5.0, 1.0, 2.0, 4.0, 3.0])
    assert (found.low_seconds, found.median_seconds, found.high_seconds, found.samples) == (2.0, 3.0, 4.0, 5)


def test_a_depth_faster_than_a_shallower_one_beyond_their_spread_is_reported() -> None:
    cells = [_cell(1, 1.0, 1.2), _cell(2, 1.9, 2.1), _cell(3, 1.8, 2.0), _cell(4, 1.0, 1.3), _cell(4, 0.1, 0.2, batch_size=2)]
    (found,) = latency_violations(cells)
    assert (found.operation, found.depth, found.shallower_depth, found.batch_size) == ("decode", 4, 2, 1)


@pytest.mark.parametrize(("tokens", "seconds", "speed"), [(30, 2.0, 15.0), (0, 1.0, 0.0)])
def test_throughput_is_tokens_over_seconds(tokens: int, seconds: float, speed: float) -> None:
    assert tokens_per_second(tokens, seconds) == speed


def test_a_clock_that_stands_still_is_refused() -> None:
    with pytest.raises(ValueError, match="too coarse"):
        tokens_per_second(3, 0.0)


def test_every_depth_batch_and_context_gets_a_cell() -> None:
    model, grid, turns = toy_cascade(dtype=torch.float32), _grid(), []
    cells = profile_latency(model, grid, Stopwatch.of(torch.device("cpu")), turns.append)
    assert [(cell.batch_size, cell.depth) for cell in cells] == [(batch, depth) for batch in (1, 3) for depth in range(1, 6)]
    assert len(turns) == n_turns(model, grid) == 2 * 5 * 3
    last = cells[-1]
    assert last.decode.samples == 3 * 2
    assert last.prefill.samples == 3
    assert last.decode_tokens_per_second == pytest.approx(3 / last.decode.median_seconds)
    assert last.prefill_tokens_per_second == pytest.approx(3 * 6 / last.prefill.median_seconds)
    assert last.weight_bytes == 4 * prefix_parameters(model.settings, VOCAB, 5)
    assert last.kv_bytes == 4 * 3 * 6 * 2 * (2 * 16 + 2 * 24 + 32)


def test_every_number_of_streams_that_the_model_is_trained_for_gets_cells() -> None:
    model = toy_streamed(dtype=torch.float32, n_streams=4, sampled=(1, 4), supervision="all", layers=LAYERS)
    grid, taken = _grid(batch_sizes=(2,), repeats=8), []
    cells = profile_latency(model, grid, Stopwatch.of(torch.device("cpu")), taken.append)
    assert [(cell.n_streams, cell.depth) for cell in cells] == [(n, depth) for n in (1, 4) for depth in range(1, 6)]
    assert [turns(grid, n) for n in (1, 2, 4)] == [8, 4, 3]
    assert {cell.prefill.samples for cell in cells if cell.n_streams == 4} == {3}
    assert len(taken) == n_turns(model, grid) == 5 * (8 + 3)
    for cell in (cells[4], cells[9]):
        n = cell.n_streams
        rows = {1: (1, 1, 1, 1, 1), 4: (4, 4, 1, 1, 1)}[n]  # after block 2 none looks across streams
        assert cell.kv_bytes == 4 * 2 * 6 * 2 * sum(r * d for r, d in zip(rows, (16, 16, 24, 24, 32), strict=True))
        assert cell.weight_bytes == 4 * prefix_parameters(model.settings.serving(n), VOCAB, 5)


def test_rows_outside_of_a_local_window_count_as_long_as_the_engine_keeps_them() -> None:
    layers, local = ("cross_local", "intra", "cross_local", "intra", "intra"), {"size": 2, "unit": "tokens"}
    model = toy_streamed(dtype=torch.float32, n_streams=2, layers=layers, local=local)
    cells = profile_latency(model.eval(), _grid(batch_sizes=(2,)), Stopwatch.of(torch.device("cpu")))
    assert cells[2].kv_bytes == 4 * 2 * 6 * 2 * 2 * (16 + 16 + 24)


def test_only_the_prefix_runs_in_the_timed_part_and_warm_up_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[int, int]] = []

    def noted(weights: BlockWeights, x_ND: torch.Tensor, *others: Any) -> torch.Tensor:
        ran.append((x_ND.shape[1], len(x_ND)))
        return run_block(weights, x_ND, *others)

    monkeypatch.setattr(trunk, "run_block", noted)

    class Counting(Stopwatch):
        def seconds(self, operation: Callable[[], object]) -> float:
            ran.clear()
            operation()
            measured.append(list(ran))
            return 1.0

    measured: list[list[tuple[int, int]]] = []
    turn = take_turn(toy_cascade(dtype=torch.float32), 3, 2, 6, 2, Counting(lambda: None))
    step = [(16, 2), (16, 2), (24, 2)]  # width and tokens of blocks 1-3
    assert measured == [[(16, 12), (16, 12), (24, 12)], step, step]
    assert (len(turn.prefill), len(turn.decode)) == (1, 2)


def test_a_repair_block_counts_as_part_of_the_prefix() -> None:
    model = Repaired(toy_model(), VOCAB, "block", [1, 3])
    cells = profile_latency(model.eval(), _grid(batch_sizes=(1,)), Stopwatch.of(torch.device("cpu")))
    assert [cell.depth for cell in cells] == [1, 2, 3, 4, 5]
    kept = (16 + 16, 16 + 16 + 16, 16 + 16 + 16 + 24 + 24)  # the repair of depth 1 is kept up to date at deeper ones too
    assert [cell.kv_bytes for cell in cells[:3]] == [4 * 6 * 2 * width for width in kept]
