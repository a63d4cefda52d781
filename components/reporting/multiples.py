"""Small multiples over depth: one panel per benchmark or corpus, all arms in each.

Easy to get wrong: a value that is not finite has no point in a panel of accuracies, and one at the upper edge in a panel of bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from components.reporting.accuracy import Comparison, Curve, metric_text
from components.reporting.analysis import Analysis
from components.reporting.curves import Panel, depth_axis, draw_lines, draw_points, panels
from components.reporting.figures import FAINT, INK, Figure, Look, canvas, finish, legend_below, looks, to_csv
from components.reporting.load import ArmResults
from components.results import SeedBenchmarks

_COLUMNS = 2
_PANEL_HEIGHT = 1.75  # inches
_SMALL = 0.62  # of the markers of a figure with one panel
_BENCHMARK_COLUMNS = (
    "benchmark", "task_version", "arm", "seed", "depth", "n_streams", "metric", "normalised_by", "value", "stderr", "n", "chance",
)  # fmt: skip
_CORPUS_COLUMNS = ("corpus", "arm", "seed", "depth", "n_streams", "bits_per_byte", "nll_nats", "n_tokens", "n_bytes")


def benchmark_figures(analysis: Analysis, comparisons: Sequence[Comparison]) -> list[Figure]:
    """Accuracy over depth, one panel per benchmark; one figure for each kind of objective when the arms are many."""
    return [_benchmark_figure(analysis, comparisons, panel) for panel in _scored(panels(analysis), comparisons)]


def corpora_figures(analysis: Analysis, comparisons: Sequence[Comparison]) -> list[Figure]:
    """Bits per byte over depth, one panel per corpus."""
    return [_corpora_figure(analysis, comparisons, panel) for panel in _scored(panels(analysis), comparisons)]


def _scored(found: Sequence[Panel], comparisons: Sequence[Comparison]) -> list[Panel]:
    names = {name for one in comparisons for name in one.arms}
    kept = [Panel(panel.suffix, panel.title, tuple(arm for arm in panel.arms if arm.name in names)) for panel in found]
    return [panel for panel in kept if panel.arms]


def _benchmark_figure(analysis: Analysis, comparisons: Sequence[Comparison], panel: Panel) -> Figure:
    with _grid(len(comparisons), len(panel.arms)) as (drawing, grid):
        for axes, one in zip(grid, comparisons, strict=True):
            for arm in panel.arms:
                _draw_accuracy(axes, analysis, arm, one.arms.get(arm.name, ()))
            _decorate(axes, analysis, one, f"{one.name}, {one.metric}")
            low, high = axes.get_ylim()
            axes.set_ylim(max(low, -0.04 * high), high)  # there is no accuracy below 0
        drawing.supylabel("accuracy", fontsize=10)
        legend_below(drawing, grid[0])
        named = ", ".join(metric_text(one) for one in comparisons)
        caption = (
            f"{named}. Bars: standard error over documents. Dashed: accuracy of guessing. Filled: trained depths; hollow: depths "
            "that the arm never trains. A twin is a point at its own depth."
        )
        alt = "Accuracy over depth for each benchmark, for " + ", ".join(arm.name for arm in panel.arms)
        data = _csv(analysis, panel.arms, comparisons, _BENCHMARK_COLUMNS, _benchmark_rows)
        return finish(drawing, f"benchmarks{panel.suffix}", f"Accuracy over depth{panel.title}", alt, caption, data)


def _corpora_figure(analysis: Analysis, comparisons: Sequence[Comparison], panel: Panel) -> Figure:
    with _grid(len(comparisons), len(panel.arms)) as (drawing, grid):
        for axes, one in zip(grid, comparisons, strict=True):
            known = [score.value for curve in one.arms.values() for score in curve if score.value is not None]
            top = min(1.15 * max([*known, one.chance]), 1.3 * one.chance)
            axes.set_ylim(0.9 * min([*known, one.chance]), top)
            for arm in panel.arms:
                _draw_bits(axes, analysis, arm, one.arms.get(arm.name, ()), top)
            _decorate(axes, analysis, one, one.name)
        drawing.supylabel("bits per byte", fontsize=10)
        legend_below(drawing, grid[0])
        caption = (
            "Dashed: uniform guessing over the vocabulary. Filled: trained depths; hollow: depths that the arm never trains; at "
            "the upper edge: off the scale or not finite."
        )
        alt = "Bits per byte over depth for each corpus, for " + ", ".join(arm.name for arm in panel.arms)
        data = _csv(analysis, panel.arms, comparisons, _CORPUS_COLUMNS, _corpus_rows)
        return finish(drawing, f"out_of_domain{panel.suffix}", f"Bits per byte of other corpora{panel.title}", alt, caption, data)


@contextmanager
def _grid(n_panels: int, n_arms: int) -> Iterator[tuple[Any, list[Any]]]:
    """A canvas with one small panel per comparison; what is left over of the last row stays empty."""
    columns = min(_COLUMNS, n_panels)
    rows = -(-n_panels // columns)
    height = 0.9 + _PANEL_HEIGHT * rows
    with canvas(height=height, legend_entries=n_arms, rows=rows, columns=columns, squeeze=False) as (drawing, grid):
        every = list(grid.flat)
        for axes in every[n_panels:]:
            axes.set_visible(False)
        yield drawing, every[:n_panels]


def _draw_accuracy(axes: Any, analysis: Analysis, arm: ArmResults, curve: Curve) -> None:
    look = looks([one.name for one in analysis.arms])[arm.name]
    _label(axes, arm, look)
    known = [(score, score.value) for score in curve if score.value is not None]
    heights = [value for _, value in known]
    depths = [score for score, _ in known]
    errors = [(score.depth, value, score.stderr) for score, value in known if score.stderr is not None]
    if errors:
        x, y, bars = zip(*errors, strict=True)
        axes.errorbar(x, y, yerr=bars, fmt="none", ecolor=look.color, elinewidth=0.7, alpha=0.5, zorder=1)
    if arm.is_curve:
        draw_lines(axes, depths, heights, look)
    draw_points(axes, arm, depths, heights, look, math.inf, _SMALL)


def _draw_bits(axes: Any, analysis: Analysis, arm: ArmResults, curve: Curve, top: float) -> None:
    look = looks([one.name for one in analysis.arms])[arm.name]
    _label(axes, arm, look)
    heights = [top if score.value is None else min(score.value, top) for score in curve]
    if arm.is_curve:
        draw_lines(axes, curve, heights, look)
    draw_points(axes, arm, curve, heights, look, top, _SMALL)


def _label(axes: Any, arm: ArmResults, look: Look) -> None:
    """The arm's entry of the legend, whether or not it has points in this panel."""
    line = look.dash if arm.is_curve else "none"
    axes.plot([], [], color=look.color, marker=look.marker, linestyle=line, label=arm.name)


def _decorate(axes: Any, analysis: Analysis, comparison: Comparison, title: str) -> None:
    from matplotlib.ticker import MaxNLocator

    curves = [arm for arm in analysis.arms if arm.is_curve and arm.name in comparison.arms]
    for depth in sorted({depth for arm in curves for depth in arm.evaluation.exits}):
        axes.axvline(depth, color=FAINT, linestyle=(0, (2, 2)), linewidth=1.0, zorder=1)
    axes.axhline(comparison.chance, color=INK, linestyle="--", linewidth=1.0, zorder=1)
    axes.set_title(title, fontsize=9.5, loc="left")
    axes.tick_params(labelsize=8.5)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4))
    depth_axis(axes, max(arm.evaluation.n_blocks for arm in analysis.arms), n_ticks=5)
    axes.set_xlabel("depth k", fontsize=9)


def _csv(
    analysis: Analysis,
    arms: Sequence[ArmResults],
    comparisons: Sequence[Comparison],
    columns: Sequence[str],
    rows_of: Callable[[SeedBenchmarks, str, str], Iterable[tuple[object, ...]]],
) -> str:
    """What `rows_of` makes of (seed, name of the comparison, arm), for every seed of the arms that are compared."""
    rows: list[tuple[object, ...]] = []
    for one in comparisons:
        for arm in (arm for arm in arms if arm.name in one.arms):
            for seed in analysis.results.benchmarks[arm.name].seeds:
                rows += rows_of(seed, one.name, arm.name)
    return to_csv(columns, rows)


def _benchmark_rows(seed: SeedBenchmarks, name: str, arm: str) -> Iterator[tuple[object, ...]]:
    """Every metric of every depth and number of streams."""
    scores = next(scores for scores in seed.benchmarks if scores.benchmark == name)
    for cell in scores.depths:
        for metric in cell.metrics:
            where = (name, scores.task_version, arm, seed.seed, cell.depth, cell.n_streams)
            yield (*where, metric.metric, metric.normalised_by, metric.value, metric.stderr, scores.n, scores.chance)


def _corpus_rows(seed: SeedBenchmarks, name: str, arm: str) -> Iterator[tuple[object, ...]]:
    scores = next(scores for scores in seed.corpora if scores.corpus == name)
    for cell in scores.depths:
        where = (name, arm, seed.seed, cell.depth, cell.n_streams)
        yield (*where, cell.bits_per_byte, cell.nll_nats, scores.n_tokens, scores.n_bytes)
