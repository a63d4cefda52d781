"""The figures that are not over depth: quality against throughput, cost, and training losses.

Easy to get wrong: hours of different devices are not one quantity, so each unit has bars of its own.
"""

from __future__ import annotations

import math
from typing import Any

from components.reporting import formats
from components.reporting.analysis import Analysis, mean_device_hours
from components.reporting.curves import Panel, panels
from components.reporting.figures import INK, Figure, canvas, finish, legend_below, looks, to_csv
from components.reporting.load import ArmResults
from components.reporting.tables import cost_unit, mean_flops

_SMOOTHING = 0.3  # weight of the newest point in the drawn running mean of a training loss


def frontier_figures(analysis: Analysis) -> list[Figure]:
    """Perplexity of each arm's valid operating points over throughput, in the same panels as the depth curves."""
    return [_frontier_figure(analysis, panel) for panel in panels(analysis)]


def _frontier_figure(analysis: Analysis, panel: Panel) -> Figure:
    styles = looks([arm.name for arm in analysis.arms])
    axis = analysis.throughput
    base = axis.of(analysis.reference)[-1]
    rows: list[tuple[object, ...]] = []
    with canvas(legend_entries=len(panel.arms)) as (drawing, axes):
        axes.set_xscale("log")
        axes.set_yscale("log")
        for arm in panel.arms:
            pairs = list(zip(arm.shown_depths, analysis.operating_points(arm), strict=True))
            rows += [(arm.name, d.depth, p.throughput / base, d.nll_nats, d.ppl, p.is_valid) for d, p in pairs]
            valid = [(p.throughput / base, d.ppl) for d, p in pairs if p.is_valid and d.ppl is not None]
            look = styles[arm.name]
            line = {"linestyle": look.dash, "linewidth": 1.0} if arm.is_curve else {"linestyle": "none", "markersize": 8}
            label = f"{arm.name} ({len(valid)}/{len(pairs)})"
            axes.plot(*(zip(*valid, strict=True) if valid else ([], [])), color=look.color, marker=look.marker, label=label, **line)
        _plain_log_ticks(axes.xaxis, (1.0, 1.5, 2.0, 3.0, 5.0))
        _plain_log_ticks(axes.yaxis, (1.0, 2.0, 5.0))
        axes.set_xlabel(f"{axis.name}, full model = 1 (log scale)")
        axes.set_ylabel("perplexity (log scale)")
        legend_below(drawing, axes)
        caption = (
            "Valid operating points only: depths better than chance by the study's margin, counted in the legend; lower right is "
            f"better. {axis.description}"
        )
        data = to_csv(("arm", "depth", "relative_throughput", "nll_nats", "ppl", "is_valid"), rows)
        alt = "Perplexity against relative throughput, valid depths of each arm"
        return finish(drawing, f"frontier{panel.suffix}", f"Quality against throughput{panel.title}", alt, caption, data)


def cost_figure(analysis: Analysis) -> Figure | None:
    """Measured hours and FLOPs of one trained model of each arm; None when no arm has a cost."""
    known = [(arm, mean_device_hours(arm), mean_flops(arm)) for arm in analysis.arms if arm.cost]
    bars = [(arm, hours, flops) for arm, hours, flops in known if hours is not None and flops is not None]
    if not bars:
        return None
    units = sorted({cost_unit(arm) for arm, _, _ in bars})
    panels = [(unit, [(arm, hours) for arm, hours, _ in bars if cost_unit(arm) == unit]) for unit in units]
    panels.append(("training FLOPs", [(arm, flops) for arm, _, flops in bars]))
    height = sum(0.75 + 0.3 * len(values) for _, values in panels)
    with canvas(height=height, rows=len(panels), height_ratios=[1 + len(values) for _, values in panels]) as (drawing, grid):
        for axes, (title, values) in zip(grid, panels, strict=True):
            _draw_bars(axes, analysis, title, values)
        rows = [(arm.name, hours, cost_unit(arm), flops) for arm, hours, flops in bars]
        data = to_csv(("arm", "device_hours", "unit", "flops"), rows)
        caption = "One trained model, mean over seeds. Hours are measured; FLOPs are analytic."
        return finish(drawing, "cost", "Training cost", "Bars of training cost of each arm", caption, data)


def training_figure(analysis: Analysis) -> Figure | None:
    """Loss of the full model on the training batches, or the objective's own where that is all there is; None without histories."""
    styles = looks([arm.name for arm in analysis.arms])
    rows: list[tuple[object, ...]] = []
    with canvas(legend_entries=len(analysis.arms)) as (drawing, axes):
        for arm in analysis.arms:
            look = styles[arm.name]
            for seed, points in arm.histories.items():
                rows += [(arm.name, seed, point.step, point.loss_nats, point.full_nats) for point in points]
                is_full = any(point.full_nats is not None for point in points)
                drawn = [
                    (point.step, value)
                    for point in points
                    if (value := point.full_nats if is_full else point.loss_nats) is not None and math.isfinite(value)
                ]
                if not drawn:
                    continue
                smooth = _running_mean([value for _, value in drawn])
                label = arm.name if is_full else f"{arm.name} (objective)"
                is_first = seed == next(iter(arm.histories))
                every = max(1, len(drawn) // 8)
                axes.plot(
                    [step for step, _ in drawn],
                    smooth,
                    color=look.color,
                    linestyle=look.dash,
                    linewidth=1.4 if is_first else 0.8,
                    marker=look.marker,
                    markevery=every,
                    label=label if is_first else None,
                )
        if not rows:
            return None
        axes.set_xlabel("optimizer step")
        axes.set_ylabel("training loss (nats per token)")
        legend_below(drawing, axes)
        caption = (
            "Loss of each arm's full model on its training batches, running mean; where the objective does not compute it, the "
            "objective's own loss, which is not comparable between arms."
        )
        data = to_csv(("arm", "seed", "step", "loss_nats", "full_nats"), rows)
        return finish(drawing, "training_loss", "Training loss", "Training loss over steps for each arm", caption, data)


def _draw_bars(axes: Any, analysis: Analysis, title: str, values: list[tuple[ArmResults, float]]) -> None:
    styles = looks([arm.name for arm in analysis.arms])
    axes.grid(False)
    for row, (arm, value) in enumerate(values):
        axes.barh(row, value, color=styles[arm.name].color, height=0.65)
        text = formats.count_text(value) if "FLOPs" in title else formats.hours_text(value)
        axes.annotate(text, (value, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize=9.5, color=INK)
    axes.set_yticks(range(len(values)), [arm.name for arm, _ in values])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.22 * max(max(value for _, value in values), 1e-12))
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.set_title(f"{title} per model", loc="left")


def _plain_log_ticks(axis: Any, steps: tuple[float, ...]) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axis.set_major_locator(LogLocator(base=10, subs=steps))
    axis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:,.0f}" if tick >= 10 else f"{tick:.3g}"))
    axis.set_minor_formatter(NullFormatter())


def _running_mean(values: list[float]) -> list[float]:
    smooth, means = values[0], []
    for value in values:
        smooth += _SMOOTHING * (value - smooth)
        means.append(smooth)
    return means
