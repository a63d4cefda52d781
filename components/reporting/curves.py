"""The figures over depth: perplexity and bits per byte per arm, and the map of depth and arm.

Easy to get wrong: a depth that an arm does not train is drawn hollow and faint, because it is a number nobody asked the model for;
one that is off the scale is drawn at the edge, never left out.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from components.reporting.analysis import Analysis
from components.reporting.figures import FAINT, INK, Figure, Look, canvas, finish, legend_below, looks, to_csv
from components.reporting.load import ArmResults, DepthMean

MOST_ARMS_IN_ONE_PANEL = 6
_LARGEST_NATS = 700.0  # exp overflows float64 past 709
_CURVE_COLUMNS = ("arm", "seed", "depth", "nll_nats", "ppl", "bits_per_byte")

Value = Callable[[DepthMean], float | None]


class Drawn(Protocol):
    """A depth that has a point."""

    @property
    def depth(self) -> int: ...

    @property
    def is_trained(self) -> bool: ...


@dataclass(frozen=True)
class Panel:
    """Arms that share one set of axes.

    Attributes:
        suffix: of the file names.
        title: what to add to a figure's title.
    """

    suffix: str
    title: str
    arms: tuple[ArmResults, ...]


def panels(analysis: Analysis) -> list[Panel]:
    """All arms together, or, when they are many, one panel per kind of objective; twins and the reference stand in each."""
    kinds = dict.fromkeys(arm.evaluation.objective for arm in analysis.curves)
    if len(analysis.arms) <= MOST_ARMS_IN_ONE_PANEL or not kinds:
        return [Panel("", "", analysis.arms)]
    found = []
    for kind in kinds:
        own = [arm for arm in analysis.arms if arm.evaluation.objective == kind or not arm.is_curve or arm is analysis.reference]
        found.append(Panel(f"_{kind}", f": {kind.replace('_', ' ')}", tuple(own)))
    return found


def depth_figures(analysis: Analysis) -> list[Figure]:
    """Perplexity and bits per byte over depth; one pair for all arms, or one for each kind of objective when there are many."""
    return [draw(analysis, panel) for panel in panels(analysis) for draw in (_perplexity_figure, _bits_figure)]


def depth_curves_csv(analysis: Analysis, arms: Sequence[ArmResults]) -> str:
    """Every depth of every seed, read by `dvc plots`."""
    rows = [
        (arm.name, seed.seed, score.depth, score.nll_nats, score.ppl, score.bits_per_byte)
        for arm in arms
        for seed in arm.evaluation.seeds
        for score in seed.depths
        if score.n_streams == arm.n_streams and (arm.is_curve or score.depth in arm.evaluation.trained_depths)
    ]
    return to_csv(_CURVE_COLUMNS, rows)


def heat_map(analysis: Analysis) -> Figure:
    """Depth against arm, coloured by NLL up to chance."""
    import numpy as np

    chance = math.log(analysis.vocab_size)
    deepest = max(arm.evaluation.n_blocks for arm in analysis.arms)
    cells = np.full((len(analysis.arms), deepest), np.nan)
    marks: list[tuple[int, int, str]] = []
    for row, arm in enumerate(analysis.arms):
        for depth in arm.shown_depths:
            nll = depth.nll_nats
            cells[row, depth.depth - 1] = chance if nll is None else min(nll, chance)
            if nll is None or nll > chance:
                marks.append((row, depth.depth, "x"))
            elif not depth.is_trained:
                marks.append((row, depth.depth, "."))
    with canvas(height=1.6 + 0.36 * len(analysis.arms)) as (drawing, axes):
        axes.grid(False)
        axes.set_facecolor("none")
        edges_x, edges_y = np.arange(deepest + 1) + 0.5, np.arange(len(analysis.arms) + 1) - 0.5
        mesh = axes.pcolormesh(edges_x, edges_y, np.ma.masked_invalid(cells), cmap="cividis_r", vmax=chance, edgecolor=FAINT)
        middle = 0.5 * (chance + float(np.nanmin(cells)))
        for row, column, mark in marks:
            color = "white" if cells[row, column - 1] > middle else "black"
            axes.plot(column, row, marker=mark, color=color, markersize=5, linestyle="none")
        axes.set_yticks(range(len(analysis.arms)), [arm.name for arm in analysis.arms])
        axes.invert_yaxis()
        depth_axis(axes, deepest)
        bar = drawing.colorbar(mesh, ax=axes, location="top", aspect=35, pad=0.04)
        bar.set_label("perplexity, up to chance")
        bar.outline.set_visible(False)
        ticks = np.linspace(float(np.nanmin(cells)), chance, 5)
        bar.set_ticks(list(ticks), labels=[_plain(math.exp(tick)) for tick in ticks])
        caption = "Dot: a depth that the arm does not train. Cross: worse than chance, or not finite. Empty: no such depth."
        alt = "Heat map of perplexity by depth and arm"
        rows = [(arm.name, depth.depth, depth.nll_nats, depth.is_trained) for arm in analysis.arms for depth in arm.shown_depths]
        data = to_csv(("arm", "depth", "nll_nats", "is_trained"), rows)
        return finish(drawing, "heat_map", "Depth by arm", alt, caption, data)


def _perplexity_figure(analysis: Analysis, panel: Panel) -> Figure:
    arms = panel.arms
    chance = float(analysis.vocab_size)
    known = [depth.ppl for arm in arms for depth in arm.shown_depths if depth.ppl is not None]
    top = 4.0 * chance if any(ppl > chance for ppl in known) or len(known) < 1 else 1.5 * max(chance, *known)
    bottom = 0.8 * min([*known, chance])
    with canvas(legend_entries=len(arms)) as (drawing, axes):
        axes.set_yscale("log")
        axes.set_ylim(bottom, top)
        _draw_arms(axes, analysis, arms, lambda depth: depth.ppl, top, math.exp)
        _decorate(axes, analysis, arms, chance, f"chance: {analysis.vocab_size:,}")
        _log_ticks(axes)
        axes.set_ylabel("perplexity (log scale)")
        legend_below(drawing, axes)
        caption = (
            f"{_band_caption(analysis)} Filled: trained depths; hollow: depths that the arm never trains; at the upper edge: off "
            "the scale or not finite, see the table. A twin is a point at its own depth. Dotted verticals: exits. Hair lines: "
            "single seeds, where an arm has several."
        )
        alt = "Perplexity over depth for " + ", ".join(arm.name for arm in arms)
        data = depth_curves_csv(analysis, arms)
        return finish(drawing, f"depth_curves_ppl{panel.suffix}", f"Perplexity over depth{panel.title}", alt, caption, data)


def _bits_figure(analysis: Analysis, panel: Panel) -> Figure:
    arms = panel.arms
    validation = arms[0].evaluation.validation
    factor = validation.n_tokens / validation.n_bytes / math.log(2.0)
    chance = factor * math.log(analysis.vocab_size)
    known = [depth.bits_per_byte for arm in arms for depth in arm.shown_depths if depth.bits_per_byte is not None]
    top = min(1.15 * max([*known, chance]), 1.3 * chance)
    with canvas(legend_entries=len(arms)) as (drawing, axes):
        axes.set_ylim(0.9 * min([*known, chance]), top)
        _draw_arms(axes, analysis, arms, lambda depth: depth.bits_per_byte, top, lambda nll: nll * factor)
        _decorate(axes, analysis, arms, chance, f"chance: {chance:.2f}")
        axes.set_ylabel("bits per byte")
        legend_below(drawing, axes)
        caption = "The same depths, in bits per UTF-8 byte of the validation text: comparable between tokenizers."
        alt = "Bits per byte over depth for " + ", ".join(arm.name for arm in arms)
        data = depth_curves_csv(analysis, arms)
        return finish(drawing, f"depth_curves_bits{panel.suffix}", f"Bits per byte over depth{panel.title}", alt, caption, data)


def _draw_arms(
    axes: Any, analysis: Analysis, arms: Sequence[ArmResults], value: Value, top: float, of_nll: Callable[[float], float]
) -> None:
    styles = looks([arm.name for arm in analysis.arms])
    for arm in arms:
        look = styles[arm.name]
        depths = arm.shown_depths
        heights = [_inside(value(depth), top) for depth in depths]
        label = f"{arm.name} ({len(arm.evaluation.seeds)} seeds)" if len(arm.evaluation.seeds) > 1 else arm.name
        axes.plot([], [], color=look.color, marker=look.marker, linestyle=look.dash if arm.is_curve else "none", label=label)
        if arm.is_curve:
            draw_lines(axes, depths, heights, look)
            _draw_band(axes, analysis, arm, look, top, of_nll)
            _draw_seeds(axes, arm, look, top, of_nll)
        draw_points(axes, arm, depths, heights, look, top)


def draw_points(
    axes: Any, arm: ArmResults, depths: Sequence[Drawn], heights: Sequence[float], look: Look, top: float, scale: float = 1.0
) -> None:
    """Filled for trained depths, hollow for the others, a caret at the upper edge for what is off the scale."""
    for is_trained, is_off in itertools.product((False, True), repeat=2):
        chosen = [
            (depth.depth, height)
            for depth, height in zip(depths, heights, strict=True)
            if (depth.is_trained, height >= top) == (is_trained, is_off)
        ]
        if chosen:
            axes.plot(
                *zip(*chosen, strict=True),
                color=look.color,
                marker="^" if is_off else look.marker,
                markerfacecolor=look.color if is_trained else "none",
                markersize=scale * (5.5 if arm.is_curve else 8),
                linestyle="none",
                clip_on=not is_off,
                zorder=4 if is_trained else 3,
            )


def draw_lines(axes: Any, depths: Sequence[Drawn], heights: Sequence[float], look: Look) -> None:
    """A full line between trained neighbours, a thin dotted one to and from depths that are not trained."""
    for left in range(len(depths) - 1):
        is_trained = depths[left].is_trained and depths[left + 1].is_trained
        style = {"linestyle": look.dash, "linewidth": 1.7} if is_trained else {"linestyle": ":", "linewidth": 1.1}
        axes.plot([depths[left].depth, depths[left + 1].depth], heights[left : left + 2], color=look.color, zorder=2, **style)


def _draw_band(axes: Any, analysis: Analysis, arm: ArmResults, look: Look, top: float, of_nll: Callable[[float], float]) -> None:
    bands = analysis.bands(arm)
    low = [of_nll(min(band.low, _LARGEST_NATS)) if band.is_known else math.nan for band in bands]
    high = [of_nll(min(band.high, _LARGEST_NATS)) if band.is_known else math.nan for band in bands]
    clipped_low, clipped_high = [min(x, top) for x in low], [min(x, top) for x in high]
    axes.fill_between(range(1, len(bands) + 1), clipped_low, clipped_high, color=look.color, alpha=0.18, linewidth=0)


def _draw_seeds(axes: Any, arm: ArmResults, look: Look, top: float, of_nll: Callable[[float], float]) -> None:
    """Each seed as a hair line, when there are several."""
    if len(arm.evaluation.seeds) < 2:
        return
    for nll in arm.nll_by_seed:
        heights = [top if value is None or value > _LARGEST_NATS else min(of_nll(value), top) for value in nll]
        axes.plot(range(1, len(heights) + 1), heights, color=look.color, linewidth=0.5, alpha=0.6, zorder=1)


def _decorate(axes: Any, analysis: Analysis, arms: Sequence[ArmResults], chance: float, label: str) -> None:
    deepest = max(arm.evaluation.n_blocks for arm in analysis.arms)
    for depth in sorted({depth for arm in arms if arm.is_curve for depth in arm.evaluation.exits}):
        axes.axvline(depth, color=FAINT, linestyle=(0, (2, 2)), linewidth=1.2, zorder=1)
    axes.axhline(chance, color=INK, linestyle="--", linewidth=1.0, zorder=1)
    place = {"xycoords": ("axes fraction", "data"), "xytext": (-2, 3), "textcoords": "offset points"}
    axes.annotate(label, (1.0, chance), ha="right", va="bottom", fontsize=9, **place)
    depth_axis(axes, deepest)


def depth_axis(axes: Any, deepest: int, n_ticks: int = 11) -> None:
    """Whole depths from 1 to the deepest."""
    from matplotlib.ticker import MaxNLocator

    axes.set_xlim(0.5, deepest + 0.5)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=n_ticks, integer=True, min_n_ticks=1))
    axes.set_xlabel("depth k (blocks)")


def _log_ticks(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    bottom, top = axes.get_ylim()
    dense = math.log10(top / bottom) < 3
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0) if dense else (1.0,)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda tick, _: _plain(tick)))
    axes.yaxis.set_minor_formatter(NullFormatter())


def _plain(value: float) -> str:
    if value >= 1e6:
        return f"{value:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def _inside(value: float | None, top: float) -> float:
    """The height to draw at: the upper edge for what is missing or above it."""
    return top if value is None else min(value, top)


def _band_caption(analysis: Analysis) -> str:
    if not any(arm.documents is not None for arm in analysis.arms):
        return "No intervals: the per-document scores are absent."
    return (
        f"Bands: {100 * analysis.confidence:g}% bootstrap intervals over validation documents, and seeds where there are several."
    )
