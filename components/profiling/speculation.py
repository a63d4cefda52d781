"""Does self-speculative decoding pay? Acceptance, cost ratio, and the measured speed-up beside the expected one.

Only a measured gain is a gain: acceptance alone says nothing about a drafter that is nearly as slow as the model it drafts for.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

import numpy as np

from components.config.profile import SpeculationGrid
from components.inference.generate import Completion, Request, generate
from components.inference.speculative import Speculation, SpeculationCounts, expected_speedup, speculate
from components.models.cascade import Cascade
from components.profiling.latency import Stopwatch, take_turn
from components.results import SpeculationCell

COST_TURNS, COST_STEPS = 3, 8


def profile_speculation(
    model: Cascade,
    grid: SpeculationGrid,
    prompts: Sequence[Sequence[int]],
    watch: Stopwatch,
    on_cell: Callable[[int], object] = lambda _: None,
) -> tuple[SpeculationCell, ...]:
    """Every drafting depth, and every draft length. All streams run.

    Args:
        on_cell: told about each finished cell.
    """
    cells = []
    for depth in drafting_depths(model):
        cost_ratio = measure_cost_ratio(model, depth, model.n_blocks, grid.prompt_tokens, watch)
        for draft_tokens in grid.draft_tokens:
            requests = [Request(tuple(prompt), model.n_blocks, grid.new_tokens) for prompt in prompts]
            cells.append(measure_speculation(model, requests, Speculation(depth, draft_tokens), cost_ratio, watch))
            on_cell(1)
    return tuple(cells)


def drafting_depths(model: Cascade) -> list[int]:
    """Depths below the whole model that draft for it: all, or with n streams, at n times the work, every n-th."""
    return list(range(model.stream_counts[-1], model.n_blocks, model.stream_counts[-1]))


def n_cells(model: Cascade, grid: SpeculationGrid) -> int:
    """Cells that `profile_speculation` measures."""
    return len(drafting_depths(model)) * len(grid.draft_tokens)


def measure_cost_ratio(model: Cascade, draft_depth: int, depth: int, context_tokens: int, watch: Stopwatch) -> float:
    """c: time of a decoding step at the drafting depth relative to one at `depth`, one text, turn by turn."""
    ratios = []
    for _ in range(COST_TURNS):
        short, whole = (
            statistics.median(take_turn(model, k, 1, context_tokens, COST_STEPS, watch).decode) for k in (draft_depth, depth)
        )
        ratios.append(short / whole)
    return statistics.median(ratios)


def measure_speculation(
    model: Cascade, requests: Sequence[Request], speculation: Speculation, cost_ratio: float, watch: Stopwatch
) -> SpeculationCell:
    """Times each text with and without speculation, one after the other."""
    counts, speedups = SpeculationCounts(), []
    for request in requests:

        def plain(request: Request = request) -> None:
            generate(model, [request])

        def speculative(request: Request = request) -> None:
            list(speculate(model, request, speculation, Completion([], None), counts))

        speedups.append(watch.seconds(plain) / watch.seconds(speculative))
    low, median, high = np.quantile(speedups, [0.25, 0.5, 0.75]).tolist()
    acceptance = counts.acceptance
    return SpeculationCell(
        draft_depth=speculation.depth,
        draft_tokens=speculation.draft_tokens,
        acceptance=acceptance,
        cost_ratio=cost_ratio,
        expected_speedup=None if acceptance is None else expected_speedup(acceptance, speculation.draft_tokens, cost_ratio),
        measured_speedup=median,
        measured_low=low,
        measured_high=high,
    )


def recommend(cells: Sequence[SpeculationCell]) -> SpeculationCell | None:
    """The cell with the largest measured gain among those that gain beyond their spread; None: decode plainly."""
    gaining = [cell for cell in cells if cell.measured_low > 1.0]
    return max(gaining, key=lambda cell: cell.measured_speedup, default=None)
