"""Every depth at every number of streams: the two dials as a heat map and a table, and which cells are on the frontier."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from components.reporting import formats
from components.reporting.analysis import Analysis
from components.reporting.curves import depth_axis
from components.reporting.figures import Figure, canvas, finish, to_csv
from components.reporting.load import ArmResults
from components.reporting.tables import Table, mean_or_none
from components.results import DepthScore


class Cell(NamedTuple):
    """One model at one number of streams: a column of the grid, depths 1..N, mean over seeds."""

    name: str
    n_streams: int
    nll_nats: tuple[float | None, ...]
    bits_per_byte: tuple[float | None, ...]
    flops_per_token: tuple[int, ...]


def expansions_of(analysis: Analysis) -> list[ArmResults]:
    """The expansions that were evaluated."""
    return [arm for arm in analysis.arms if arm.name in analysis.results.study.expansions]


def grid_cells(analysis: Analysis, expansions: Sequence[ArmResults]) -> list[Cell]:
    """The columns of the grid: the expansions, what they come from, and the controls."""
    names = {arm.arm.base for arm in expansions} | {arm.name for arm in expansions} | set(analysis.results.study.controls)
    return [cell for arm in analysis.arms if arm.name in names for cell in cells_of(arm)]


def cells_of(arm: ArmResults) -> list[Cell]:
    """One cell for each number of streams that the arm was scored with, fewest first."""
    counts = sorted({score.n_streams for seed in arm.evaluation.seeds for score in seed.depths})
    cells = []
    for n in counts:
        by_depth: dict[int, list[DepthScore]] = {}
        for seed in arm.evaluation.seeds:
            for score in seed.depths:
                if score.n_streams == n:
                    by_depth.setdefault(score.depth, []).append(score)
        scores = [by_depth[depth] for depth in sorted(by_depth)]
        nll = tuple(mean_or_none([score.nll_nats for score in one]) for one in scores)
        bits = tuple(mean_or_none([score.bits_per_byte for score in one]) for one in scores)
        cells.append(Cell(arm.name, n, nll, bits, tuple(one[0].flops_per_token for one in scores)))
    return cells


def grid_figure(analysis: Analysis) -> Figure | None:
    """Depth against model and number of streams, coloured by NLL up to chance, the frontier starred; None without expansions."""
    expansions = expansions_of(analysis)
    if not expansions:
        return None
    cells = grid_cells(analysis, expansions)
    chance, n_blocks = math.log(analysis.vocab_size), _deepest(cells)
    drawn = [[chance if nll is None else min(nll, chance) for nll in cell.nll_nats] for cell in cells]
    lowest, highest = min(map(min, drawn)), max(map(max, drawn))
    values = [[*row, *[math.nan] * (n_blocks - len(row))] for row in drawn]  # no such depth: left blank
    with canvas(height=1.6 + 0.36 * len(cells)) as (drawing, axes):
        axes.grid(False)
        mesh = axes.imshow(values, cmap="cividis_r", aspect="auto", extent=(0.5, n_blocks + 0.5, len(cells) - 0.5, -0.5))
        for column, depth in sorted(frontier_of(cells, chance)):
            color = "white" if values[column][depth] > 0.5 * (highest + lowest) else "black"
            axes.plot(depth + 1, column, marker="*", color=color, markersize=7, linestyle="none")
        axes.set_yticks(range(len(cells)), [f"{cell.name}, n = {cell.n_streams}" for cell in cells])
        depth_axis(axes, n_blocks)
        bar = drawing.colorbar(mesh, ax=axes, location="top", aspect=35, pad=0.04)
        bar.set_label("nats per token, at most chance")
        bar.outline.set_visible(False)
        caption = "Star: better than chance, and no other cell of as few FLOPs per token is better."
        rows = [
            (cell.name, cell.n_streams, depth, *numbers)
            for cell in cells
            for depth, numbers in enumerate(zip(cell.nll_nats, cell.bits_per_byte, cell.flops_per_token, strict=True), 1)
        ]
        data = to_csv(("arm", "n_streams", "depth", "nll_nats", "bits_per_byte", "flops_per_token"), rows)
        alt = "Heat map of NLL by depth and number of streams"
        return finish(drawing, "streams_heat_map", "Depth by streams", alt, caption, data)


def grid_table(analysis: Analysis, expansions: Sequence[ArmResults]) -> Table:
    """NLL of every depth at every number of streams; a star marks cells that no cheaper or equal cell beats."""
    cells = grid_cells(analysis, expansions)
    frontier = frontier_of(cells, math.log(analysis.vocab_size))
    rows = []
    for depth in range(_deepest(cells)):
        texts = (
            formats.number_text(cell.nll_nats[depth] if depth < len(cell.nll_nats) else None)
            + (" *" if (column, depth) in frontier else "")
            for column, cell in enumerate(cells)
        )
        rows.append((str(depth + 1), *texts))
    columns = ("depth k", *(f"{cell.name}, n = {cell.n_streams}" for cell in cells))
    note = (
        "Nats per token. Star: on the frontier of NLL against FLOPs per token, over all cells of this table that are better than "
        "chance."
    )
    return Table("Every depth at every number of streams", columns, tuple(rows), note, is_folded=len(cells) > 4)


def frontier_of(cells: Sequence[Cell], chance: float) -> set[tuple[int, int]]:
    """(column, depth - 1) of the cells that are better than `chance`, in nats, and than every cell of no more FLOPs."""
    points = sorted(
        (flops, nll, column, depth)
        for column, cell in enumerate(cells)
        for depth, (nll, flops) in enumerate(zip(cell.nll_nats, cell.flops_per_token, strict=True))
        if nll is not None
    )
    best, found = chance, set()
    for _, nll, column, depth in points:
        if nll < best:
            best = nll
            found.add((column, depth))
    return found


def _deepest(cells: Sequence[Cell]) -> int:
    return max(len(cell.nll_nats) for cell in cells)
