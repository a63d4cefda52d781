"""The report's chapter on latency: milliseconds of every depth, LODA on the measured axes, and whether speculation pays.

Easy to get wrong: these are clock readings of the machine that the chapter names; on another one they are others.
"""

from __future__ import annotations

from components.evaluation import frontier
from components.reporting import formats
from components.reporting.analysis import Analysis
from components.reporting.curves import depth_axis
from components.reporting.figures import INK, Figure, canvas, finish, legend_below, looks, to_csv
from components.reporting.load_profiles import machine_text
from components.reporting.tables import Row, Table
from components.reporting.throughput import Load
from components.results import LatencyCell, SpeculationCell, Timing

_LATENCY_COLUMNS = (
    "arm", "depth", "n_streams", "batch_size", "context_tokens", "decode_seconds", "decode_low_seconds", "decode_high_seconds",
    "decode_tokens_per_second", "prefill_seconds", "weight_bytes", "kv_bytes", "peak_memory_bytes",
)  # fmt: skip
_SPECULATION_COLUMNS = (
    "arm", "draft_depth", "draft_tokens", "acceptance", "cost_ratio", "expected_speedup", "measured_speedup", "measured_low",
    "measured_high",
)  # fmt: skip


def latency_paragraphs(analysis: Analysis) -> tuple[str, ...]:
    """Where and how it was measured, what is missing, and what looks disturbed."""
    axis = analysis.throughput
    if not axis.profiles:
        return ("Not measured yet: no arm has a profile under artifacts/profile; run `dvc repro`.",)
    some = next(iter(axis.profiles.values()))
    text = (
        f"Measured on {machine_text(some)} with torch {some.torch_version}: the depths took turns, {some.repeats} of them with one "
        f"prefill and {some.decode_steps} decoding steps each, to the new tokens on the CPU. Clock readings of this machine alone."
    )
    found = [text, axis.description] if axis.is_measured or not axis.unmeasured else [text, f"Without: {axis.unmeasured_text}."]
    disturbed = {name: len(profile.violations) for name, profile in axis.profiles.items() if profile.violations}
    if disturbed:
        named = formats.join_names([f"{name} {count}" for name, count in disturbed.items()])
        found.append(
            f"Depths measured faster than a shallower one, beyond the spread of both: {named}. The machine was busy there, or the "
            "step is bound by something else than the blocks."
        )
    return tuple(found)


def latency_tables(analysis: Analysis) -> tuple[Table, ...]:
    """The reference in detail, every arm at every load, LODA by axis, and speculation; none without profiles."""
    axis = analysis.throughput
    if not axis.profiles:
        return ()
    by_load = tuple(_arms_table(analysis, load, is_folded=i > 0) for i, load in enumerate(axis.loads))
    return (*_detail_table(analysis), *by_load, loda_table(analysis), *_speculation_tables(analysis))


def latency_figures(analysis: Analysis) -> tuple[Figure, ...]:
    """Latency over depth, and speed-up of speculation over drafting depth; none without profiles."""
    if not analysis.throughput.profiles:
        return ()
    return (_latency_figure(analysis), *_speculation_figures(analysis))


def _detail_table(analysis: Analysis) -> tuple[Table, ...]:
    """What a depth of the reference arm costs to serve, beside its share of the FLOPs; none if it has no profile."""
    arm, axis = analysis.reference, analysis.throughput
    if arm.name not in axis.profiles:
        return ()
    load = axis.loads[0]
    whole = axis.cell(arm.name, arm.full.depth, arm.n_streams, load)
    rows: list[Row] = []
    for depth in arm.shown_depths:
        cells = [axis.cell(arm.name, depth.depth, arm.n_streams, one) for one in axis.loads]
        first = cells[0]
        if first is None or whole is None:
            continue
        rows.append(
            (
                str(depth.depth),
                timing_text(first.decode),
                f"{first.decode.median_seconds / whole.decode.median_seconds:.2f}",
                f"{depth.flops_per_token / arm.full.flops_per_token:.2f}",
                timing_text(first.prefill),
                *(formats.MISSING if cell is None else f"{cell.decode_tokens_per_second:,.0f}" for cell in cells),
                formats.bytes_text(first.weight_bytes),
                formats.bytes_text(first.kv_bytes),
            )
        )
    speeds = (f"tokens/s, batch {one.batch_size} at {one.context_tokens}" for one in axis.loads)
    columns = ("depth k", "ms per step", "of full", "FLOPs of full", "ms per prefill", *speeds, "weights", "KV cache")
    note = f"Times, weights and cache at {load}: median, and quartiles in brackets. tokens/s: of the whole batch."
    return (Table(f"What a depth of {arm.name} costs to serve", columns, tuple(rows), note),)


def _arms_table(analysis: Analysis, load: Load, is_folded: bool) -> Table:
    axis = analysis.throughput
    arms = [arm for arm in analysis.arms if arm.name in axis.profiles]
    rows = []
    for depth in range(1, max(arm.evaluation.n_blocks for arm in arms) + 1):
        shown = [any(one.depth == depth for one in arm.shown_depths) for arm in arms]
        cells = [axis.cell(arm.name, depth, arm.n_streams, load) if is_in else None for arm, is_in in zip(arms, shown, strict=True)]
        rows.append((str(depth), *(formats.MISSING if cell is None else timing_text(cell.decode) for cell in cells)))
    note = "Median, and quartiles in brackets. Dash: no such depth, or the profile left it out."
    title = f"Milliseconds per decoding step, {load}"
    return Table(title, ("depth k", *(arm.name for arm in arms)), tuple(rows), note, is_folded=is_folded)


def loda_table(analysis: Analysis) -> Table:
    """LODA-ppl on the analytic axis and on every measured one; the arms of a column share its axis."""
    axis, settings = analysis.throughput, analysis.results.study.evaluation
    throughputs = [{arm.name: axis.analytic(arm) for arm in analysis.arms}]
    throughputs += [{arm.name: known for arm in analysis.arms if (known := axis.measured(arm, load))} for load in axis.loads]
    columns = []
    for by_arm in throughputs:
        every = [value for values in by_arm.values() for value in values]
        shared = frontier.ThroughputRange(min(every, default=1.0), max(every, default=1.0))
        areas = {}
        for arm in analysis.arms:
            if arm.name in by_arm:
                nll = [depth.nll_nats for depth in arm.shown_depths]
                points = frontier.perplexity_points(nll, by_arm[arm.name], analysis.vocab_size, settings.loda_margin_nats)
                areas[arm.name] = frontier.loda(points, shared, settings.loda_axis)
        columns.append(areas)
    rows = tuple((arm.name, *(formats.number_text(areas.get(arm.name), 1) for areas in columns)) for arm in analysis.arms)
    named = ("arm", "analytic", *(f"batch {load.batch_size} at {load.context_tokens}" for load in axis.loads))
    note = (
        "Analytic: tokens per FLOP. The others: measured tokens per second at that batch and context. Compare within a column. "
        "Dash: not measured at every depth."
    )
    return Table("LODA-ppl by throughput axis", named, rows, note)


def _latency_figure(analysis: Analysis) -> Figure:
    axis, load = analysis.throughput, analysis.throughput.loads[0]
    styles = looks([arm.name for arm in analysis.arms])
    arms = [arm for arm in analysis.arms if arm.name in axis.profiles]
    with canvas(legend_entries=len(arms)) as (drawing, axes):
        for arm in arms:
            found = [axis.cell(arm.name, depth.depth, arm.n_streams, load) for depth in arm.shown_depths]
            cells = [cell for cell in found if cell is not None]
            look, times = styles[arm.name], [cell.decode for cell in cells]
            middle = [1e3 * time.median_seconds for time in times]
            below = [1e3 * (time.median_seconds - time.low_seconds) for time in times]
            above = [1e3 * (time.high_seconds - time.median_seconds) for time in times]
            line = {"linestyle": look.dash, "linewidth": 1.0} if arm.is_curve else {"linestyle": "none"}
            depths = [cell.depth for cell in cells]
            axes.errorbar(
                depths, middle, yerr=[below, above], color=look.color, marker=look.marker, elinewidth=0.7, label=arm.name, **line
            )
        axes.set_ylim(bottom=0)
        depth_axis(axes, max(arm.evaluation.n_blocks for arm in arms))
        axes.set_ylabel("ms per decoding step")
        legend_below(drawing, axes)
        rows = [_csv_row(name, cell) for name, profile in axis.profiles.items() for cell in profile.cells]
        caption = f"{load}, median; bars: quartiles. Every profiled cell is in the CSV."
        alt = "Milliseconds per decoding step over depth for " + ", ".join(arm.name for arm in arms)
        return finish(drawing, "latency", "Latency over depth", alt, caption, to_csv(_LATENCY_COLUMNS, rows))


def _csv_row(arm: str, cell: LatencyCell) -> tuple[object, ...]:
    times = (cell.decode.median_seconds, cell.decode.low_seconds, cell.decode.high_seconds, cell.decode_tokens_per_second)
    where = (cell.depth, cell.n_streams, cell.batch_size, cell.context_tokens)
    return (arm, *where, *times, cell.prefill.median_seconds, cell.weight_bytes, cell.kv_bytes, cell.peak_memory_bytes)


def _speculation_tables(analysis: Analysis) -> tuple[Table, ...]:
    """The best cell of each arm, and whether it is recommended."""
    rows: list[Row] = []
    for name, profile in analysis.throughput.profiles.items():
        best = profile.recommended or max(profile.speculation, key=lambda cell: cell.measured_speedup, default=None)
        if best is None:
            continue
        told = "none" if profile.recommended is None else f"draft {best.draft_tokens} tokens with depth {best.draft_depth}"
        rows.append((name, *_speculation_row(best), told))
    if not rows:
        return ()
    columns = (
        "arm", "draft depth", "draft tokens", "acceptance", "cost of a draft step", "expected", "measured", "recommendation",
    )  # fmt: skip
    note = (
        "Self-speculative decoding of the full model, greedy, one text at a time: the cell with the largest measured speed-up of "
        "each arm, quartiles in brackets. Recommended only when the lower quartile beats plain decoding. Expected: from acceptance "
        "and cost alone."
    )
    return (Table("Self-speculative decoding", columns, tuple(rows), note, (0, 7)),)


def _speculation_row(cell: SpeculationCell) -> Row:
    measured = f"{cell.measured_speedup:.2f} [{cell.measured_low:.2f}, {cell.measured_high:.2f}]"
    return (
        str(cell.draft_depth),
        str(cell.draft_tokens),
        formats.number_text(cell.acceptance, 2),
        f"{cell.cost_ratio:.2f}",
        formats.number_text(cell.expected_speedup, 2),
        measured,
    )


def _speculation_figures(analysis: Analysis) -> tuple[Figure, ...]:
    profiles = {name: profile for name, profile in analysis.throughput.profiles.items() if profile.speculation}
    if not profiles:
        return ()
    styles = looks([arm.name for arm in analysis.arms])
    with canvas(legend_entries=len(profiles)) as (drawing, axes):
        for name, profile in profiles.items():
            best: dict[int, float] = {}
            for cell in profile.speculation:
                best[cell.draft_depth] = max(cell.measured_speedup, best.get(cell.draft_depth, 0.0))
            look = styles[name]
            axes.plot(*zip(*best.items(), strict=True), color=look.color, marker=look.marker, linestyle=look.dash, label=name)
        axes.axhline(1.0, color=INK, linestyle="--", linewidth=1.0)
        depth_axis(axes, max(profile.n_blocks for profile in profiles.values()))
        axes.set_xlabel("drafting depth (blocks)")
        axes.set_ylabel("measured speed-up")
        legend_below(drawing, axes)
        rows = [
            (name, *(getattr(cell, key) for key in _SPECULATION_COLUMNS[1:]))
            for name, profile in profiles.items()
            for cell in profile.speculation
        ]
        caption = (
            "Best draft length of each drafting depth. Below the dashed line plain decoding is faster. All cells are in the CSV."
        )
        alt = "Measured speed-up of self-speculative decoding over drafting depth"
        data = to_csv(_SPECULATION_COLUMNS, rows)
        return (finish(drawing, "speculation", "Self-speculative decoding", alt, caption, data),)


def timing_text(time: Timing) -> str:
    """Milliseconds: `1.23 [1.20, 1.31]`, median and quartiles."""
    low, median, high = (f"{1e3 * seconds:.3g}" for seconds in (time.low_seconds, time.median_seconds, time.high_seconds))
    return f"{median} [{low}, {high}]"
