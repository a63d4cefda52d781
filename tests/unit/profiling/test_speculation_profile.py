"""Gains of self-speculative decoding, on a clock that charges every block the same: they follow the formula, and losses show."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from components.config.profile import SpeculationGrid
from components.inference import trunk
from components.inference.block import run_block
from components.inference.generate import Request
from components.inference.speculative import Speculation
from components.profiling.latency import Stopwatch
from components.profiling.speculation import measure_cost_ratio, measure_speculation, n_cells, profile_speculation, recommend
from components.results import SpeculationCell
from tests.toys import toy_cascade
from tests.unit.models.test_streams import toy_streamed


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    """Time is the number of blocks run, whatever they run on: a device bound by reading weights."""
    blocks_run: list[object] = []

    def counted(*arguments: Any) -> torch.Tensor:
        blocks_run.append(None)
        return run_block(*arguments)

    monkeypatch.setattr(trunk, "run_block", counted)
    return Stopwatch(lambda: None, lambda: float(len(blocks_run)))


def _cell(measured: float, low: float, acceptance: float = 0.5) -> SpeculationCell:
    return SpeculationCell(
        draft_depth=1, draft_tokens=2, acceptance=acceptance, cost_ratio=0.5, expected_speedup=1.0, measured_speedup=measured,
        measured_low=low, measured_high=measured,
    )  # fmt: skip


def test_cost_ratio_is_the_share_of_blocks(watch: Stopwatch) -> None:
    assert measure_cost_ratio(toy_cascade(dtype=torch.float32), 2, 5, 4, watch) == pytest.approx(2 / 5)


@pytest.mark.parametrize(("depth", "draft_tokens"), [(1, 4), (2, 3), (4, 2)])
def test_measured_speedup_follows_the_formula(watch: Stopwatch, depth: int, draft_tokens: int) -> None:
    """A toy of random weights hardly agrees with its own prefixes: acceptance is poor, and the measurement must say slower."""
    model = toy_cascade(dtype=torch.float32)
    requests = [Request((token,), 5, 50) for token in (3, 11)]
    cell = measure_speculation(model, requests, Speculation(depth, draft_tokens), depth / 5, watch)
    assert cell.expected_speedup is not None
    # 5 %: the last round of a text drafts less, and acceptance is a mean over both texts
    assert cell.measured_speedup == pytest.approx(cell.expected_speedup, rel=0.05)
    assert cell.acceptance is not None
    if cell.acceptance < 0.1:
        assert cell.measured_speedup < 1.0
        assert recommend([cell]) is None


def test_nothing_is_recommended_that_does_not_gain_beyond_its_spread() -> None:
    assert recommend([]) is None
    assert recommend([_cell(0.34, 0.3, acceptance=0.02), _cell(1.2, 0.95)]) is None
    assert recommend([_cell(1.1, 1.05), _cell(1.3, 1.01), _cell(1.5, 0.9)]) == _cell(1.3, 1.01)


def test_a_model_with_streams_is_drafted_by_every_nth_depth() -> None:
    model = toy_streamed(dtype=torch.float32, n_streams=2)
    grid = SpeculationGrid(draft_tokens=(2,), prompts=1, prompt_tokens=4, new_tokens=4)
    cells = profile_speculation(model, grid, [[1, 2, 3, 4]], Stopwatch.of(torch.device("cpu")))
    assert [cell.draft_depth for cell in cells] == [2, 4]
    assert len(cells) == n_cells(model, grid)


def test_every_shallower_depth_and_draft_length_gets_a_cell(watch: Stopwatch) -> None:
    model = toy_cascade(dtype=torch.float32)
    grid = SpeculationGrid(draft_tokens=(1, 2), prompts=1, prompt_tokens=4, new_tokens=4)
    cells = profile_speculation(model, grid, [[1, 2, 3, 4]], watch)
    assert [(cell.draft_depth, cell.draft_tokens) for cell in cells] == [(k, g) for k in range(1, 5) for g in (1, 2)]
    assert len(cells) == n_cells(model, grid)
