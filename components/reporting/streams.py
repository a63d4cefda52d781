"""The report's chapter on Hidden Decoding: gains over the controls, ablations, every (depth, streams) cell, and what streams cost.

Easy to get wrong: a gain over the base alone says nothing, for the base has seen fewer tokens. Gains are quoted against the base
trained further without streams, on as many tokens and with as many FLOPs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from components.config.schema import Arm, ControlBlock
from components.evaluation.bootstrap import verdict
from components.reporting import formats
from components.reporting.analysis import Analysis
from components.reporting.curves import depth_axis
from components.reporting.figures import Figure, canvas, finish, to_csv
from components.reporting.load import ArmResults
from components.reporting.streams_cost import decode_grid_table, decode_share_table, root_of, stream_cost_table
from components.reporting.tables import Row, Table
from components.results import DepthScore


class Cell(NamedTuple):
    """One model at one number of streams: a column of the grid, depths 1..N, mean over seeds."""

    name: str
    n_streams: int
    nll_nats: tuple[float | None, ...]
    flops_per_token: tuple[int, ...]


def streams_tables(analysis: Analysis) -> tuple[Table, ...]:
    """The chapter's tables; none without an evaluated expansion."""
    expansions = _expansions(analysis)
    if not expansions:
        return ()
    return (
        gain_table(analysis, expansions),
        *ablation_tables(analysis, expansions),
        *second_dial_tables(analysis, expansions),
        grid_table(analysis, expansions),
        stream_cost_table(analysis, expansions),
        *decode_share_table(analysis, expansions),
        *decode_grid_table(analysis, [(cell.name, cell.n_streams) for cell in _grid_cells(analysis, expansions)]),
    )


def gain_table(analysis: Analysis, expansions: Sequence[ArmResults]) -> Table:
    """NLL of every expansion, with or without streams, minus its controls', at the exits."""
    evaluated = {arm.name: arm for arm in analysis.arms}
    controls = {name: _control(arm) for name, arm in analysis.results.study.controls.items()}
    exits = _exits(expansions)
    rows: list[Row] = []
    for arm in expansions:
        own = [(name, control.equal) for name, control in controls.items() if control is not None and control.of == arm.name]
        for name, equal in own:
            known = evaluated.get(name)
            cells = [formats.MISSING if known is None else _difference(analysis, arm, known, depth) for depth in exits]
            rows.append((arm.name, str(arm.n_streams), f"{name}: equal {equal}", *cells))
    columns = ("expansion", "n", "control", *(f"NLL at k = {depth}" for depth in exits))
    note = "Nats per token, expansion minus control: below 0 the expansion won. Intervals as in the differences between arms."
    return Table("Gain of streams over their controls", columns, tuple(rows), note, (0, 2))


def ablation_tables(analysis: Analysis, expansions: Sequence[ArmResults]) -> tuple[Table, ...]:
    """One table for each base and n with several expansions: NLL minus that of the first, at the exits."""
    groups: dict[tuple[str | None, int], list[ArmResults]] = {}
    for arm in expansions:
        if arm.arm.model.streams is not None and arm.arm.model.streams.sampled is None:
            groups.setdefault((arm.arm.base, arm.n_streams), []).append(arm)
    exits = _exits(expansions)
    tables = []
    for (base, n), (first, *others) in groups.items():
        rows = tuple((arm.name, *(_difference(analysis, arm, first, depth) for depth in exits)) for arm in others)
        if rows:
            columns = ("expansion", *(f"NLL at k = {depth}" for depth in exits))
            note = f"Nats per token, minus {first.name}; all start from {base}."
            tables.append(Table(f"Ablations at n = {n}: differences to {first.name}", columns, rows, note))
    return tuple(tables)


def second_dial_tables(analysis: Analysis, expansions: Sequence[ArmResults]) -> tuple[Table, ...]:
    """What it costs that one set of weights serves several n: its NLL minus that of the model made for that n, at the exits."""
    exits = _exits(expansions)
    rows: list[Row] = []
    for arm in expansions:
        streams = arm.arm.model.streams
        if streams is None or streams.sampled is None:
            continue
        for n in [cell.n_streams for cell in _cells(arm)]:
            other = _made_for(analysis, arm, n)
            if other is None:
                rows.append((arm.name, str(n), "none", *[formats.MISSING] * len(exits)))
                continue
            rows.append((arm.name, str(n), other.name, *(_difference(analysis, arm, other, depth, n) for depth in exits)))
    columns = ("one set of weights", "n", "model for that n", *(f"NLL at k = {depth}" for depth in exits))
    note = (
        "Nats per token, one set of weights minus the model made for that n: above 0 is what the second dial costs. The model for "
        "n = 1 is the control of as many tokens, or the base when there is none."
    )
    return (Table("What one set of weights for every n costs", columns, tuple(rows), note, (0, 2)),) if rows else ()


def _made_for(analysis: Analysis, arm: ArmResults, n_streams: int) -> ArmResults | None:
    """The model that was trained for that n alone, from the same root, the most like the arm in steps."""
    study = analysis.results.study
    root = root_of(arm.arm, study.models)
    last = arm.arm.first_step + arm.arm.training.steps

    def is_made_for(other: ArmResults) -> bool:
        streams, control = other.arm.model.streams, _control(other.arm)
        if root_of(other.arm, study.models).name != root.name or (streams is not None and streams.sampled is not None):
            return False
        if n_streams == 1:
            return streams is None and (control is None or control.equal == "tokens")
        return streams is not None and streams.n_streams == n_streams

    found = [other for other in analysis.arms if is_made_for(other)]
    return min(found, key=lambda other: abs(other.arm.first_step + other.arm.training.steps - last), default=None)


def grid_figure(analysis: Analysis) -> Figure | None:
    """Depth against model and number of streams, coloured by NLL up to chance, the frontier starred; None without expansions."""
    expansions = _expansions(analysis)
    if not expansions:
        return None
    cells = _grid_cells(analysis, expansions)
    chance, n_blocks = math.log(analysis.vocab_size), _deepest(cells)
    drawn = [[chance if nll is None else min(nll, chance) for nll in cell.nll_nats] for cell in cells]
    lowest, highest = min(map(min, drawn)), max(map(max, drawn))
    values = [[*row, *[math.nan] * (n_blocks - len(row))] for row in drawn]  # no such depth: left blank
    with canvas(height=1.6 + 0.36 * len(cells)) as (drawing, axes):
        axes.grid(False)
        mesh = axes.imshow(values, cmap="cividis_r", aspect="auto", extent=(0.5, n_blocks + 0.5, len(cells) - 0.5, -0.5))
        for column, depth in sorted(_frontier(cells)):
            color = "white" if values[column][depth] > 0.5 * (highest + lowest) else "black"
            axes.plot(depth + 1, column, marker="*", color=color, markersize=7, linestyle="none")
        axes.set_yticks(range(len(cells)), [f"{cell.name}, n = {cell.n_streams}" for cell in cells])
        depth_axis(axes, n_blocks)
        bar = drawing.colorbar(mesh, ax=axes, location="top", aspect=35, pad=0.04)
        bar.set_label("nats per token, at most chance")
        bar.outline.set_visible(False)
        caption = "Star: no other cell of as few FLOPs per token is better."
        rows = [
            (cell.name, cell.n_streams, depth, nll, flops)
            for cell in cells
            for depth, (nll, flops) in enumerate(zip(cell.nll_nats, cell.flops_per_token, strict=True), 1)
        ]
        data = to_csv(("arm", "n_streams", "depth", "nll_nats", "flops_per_token"), rows)
        alt = "Heat map of NLL by depth and number of streams"
        return finish(drawing, "streams_heat_map", "Depth by streams", alt, caption, data)


def grid_table(analysis: Analysis, expansions: Sequence[ArmResults]) -> Table:
    """NLL of every depth at every number of streams; a star marks cells that no cheaper or equal cell beats."""
    cells = _grid_cells(analysis, expansions)
    frontier = _frontier(cells)
    rows = []
    for depth in range(_deepest(cells)):
        texts = (
            formats.number_text(cell.nll_nats[depth] if depth < len(cell.nll_nats) else None)
            + (" *" if (column, depth) in frontier else "")
            for column, cell in enumerate(cells)
        )
        rows.append((str(depth + 1), *texts))
    columns = ("depth k", *(f"{cell.name}, n = {cell.n_streams}" for cell in cells))
    note = "Nats per token. Star: on the frontier of NLL against FLOPs per token, over all cells of this table."
    return Table("Every depth at every number of streams", columns, tuple(rows), note, is_folded=len(cells) > 4)


def _expansions(analysis: Analysis) -> list[ArmResults]:
    return [arm for arm in analysis.arms if arm.name in analysis.results.study.expansions]


def _grid_cells(analysis: Analysis, expansions: Sequence[ArmResults]) -> list[Cell]:
    """The columns of the grid: the expansions, what they come from, and the controls."""
    names = {arm.arm.base for arm in expansions} | {arm.name for arm in expansions} | set(analysis.results.study.controls)
    return [cell for arm in analysis.arms if arm.name in names for cell in _cells(arm)]


def _deepest(cells: Sequence[Cell]) -> int:
    return max(len(cell.nll_nats) for cell in cells)


def _control(arm: Arm) -> ControlBlock | None:
    control: ControlBlock | None = getattr(arm.objective, "control", None)
    return control


def _exits(expansions: Sequence[ArmResults]) -> list[int]:
    """All exits of the expansions: one that comes from a backbone or a twin has its own."""
    return sorted({depth for arm in expansions for depth in arm.evaluation.exits})


def _difference(analysis: Analysis, arm: ArmResults, other: ArmResults, depth: int, n_streams: int | None = None) -> str:
    if depth not in arm.evaluation.exits:
        return formats.MISSING
    difference = analysis.difference_between(arm, other, depth, n_streams, n_streams)
    return f"{formats.interval_text(difference)} {verdict(difference)}"


def _cells(arm: ArmResults) -> list[Cell]:
    counts = sorted({score.n_streams for seed in arm.evaluation.seeds for score in seed.depths})
    cells = []
    for n in counts:
        by_depth: dict[int, list[DepthScore]] = {}
        for seed in arm.evaluation.seeds:
            for score in seed.depths:
                if score.n_streams == n:
                    by_depth.setdefault(score.depth, []).append(score)
        scores = [by_depth[depth] for depth in sorted(by_depth)]
        cells.append(Cell(arm.name, n, tuple(map(_mean_nll, scores)), tuple(one[0].flops_per_token for one in scores)))
    return cells


def _mean_nll(scores: Sequence[DepthScore]) -> float | None:
    known = [score.nll_nats for score in scores if score.nll_nats is not None]
    return sum(known) / len(known) if len(known) == len(scores) else None


def _frontier(cells: Sequence[Cell]) -> set[tuple[int, int]]:
    """(column, depth - 1) of the cells that are better than every cell of no more FLOPs."""
    points = sorted(
        (flops, nll, column, depth)
        for column, cell in enumerate(cells)
        for depth, (nll, flops) in enumerate(zip(cell.nll_nats, cell.flops_per_token, strict=True))
        if nll is not None
    )
    best, found = float("inf"), set()
    for _, nll, column, depth in points:
        if nll < best:
            best = nll
            found.add((column, depth))
    return found
