"""The report's tables of quality and cost, as rows of text that HTML and Markdown show alike.

Easy to get wrong: an arm without results keeps its row, with dashes, so that a hole is seen and never mistaken for a choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from components.config.paper_arms import TWIN_ARMS, paper_cost
from components.evaluation import frontier
from components.evaluation.bootstrap import Interval, verdict
from components.reporting import formats
from components.reporting.accuracy import compare_benchmarks, loda_acc
from components.reporting.analysis import SENSITIVITY_MARGINS, Analysis, mean_device_hours
from components.reporting.load import ArmResults, DepthMean
from components.results import perplexity

Row = tuple[str, ...]


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        text_columns: columns that hold words, set flush left; the others are numbers, flush right.
        is_folded: shown only when the reader opens it.
        is_cards: rows of long text, shown one under the other on the page: first column as title, second as verdict.
    """

    title: str
    columns: Row
    rows: tuple[Row, ...]
    note: str = ""
    text_columns: tuple[int, ...] = (0,)
    is_folded: bool = False
    is_cards: bool = False


def arms_table(analysis: Analysis) -> Table:
    """One line an arm, with its headline numbers."""
    evaluated = {arm.name: arm for arm in analysis.arms}
    rows = []
    for name in analysis.results.study.models:
        found = evaluated.get(name)
        if found is None:
            rows.append((name, *[formats.MISSING] * 6, "not evaluated"))
            continue
        full, cost = found.full, mean_device_hours(found)
        rows.append(
            (
                name,
                formats.perplexity_text(full.ppl, full.nll_nats),
                formats.number_text(full.bits_per_byte),
                formats.number_text(seed_means(found)[0] if found.is_curve else None),
                formats.MISSING if cost is None else f"{formats.hours_text(cost)} {cost_unit(found)}",
                formats.count_text(full.parameters),
                str(found.evaluation.n_blocks),
                ", ".join(str(seed.seed) for seed in found.evaluation.seeds),
            )
        )
    columns = ("arm", "ppl at N", "bits/byte at N", "AULB", "cost per model", "parameters", "blocks N", "seeds")
    note = "Parameters: the full model as a stand-alone model. AULB in nats per token; a twin is one depth and has no area."
    return Table("Arms", columns, tuple(rows), note, (0, 7))


def objective_table(analysis: Analysis) -> Table:
    """What each arm minimises, and which depths it trains."""
    evaluated = {arm.name: arm.evaluation.trained_depths for arm in analysis.arms}
    rows = []
    for name, arm in analysis.results.study.models.items():
        depths = evaluated.get(name)
        trained = formats.MISSING if depths is None else formats.depths_text(depths)
        rows.append((name, describe_objective(arm.objective.model_dump(mode="json")), trained))
    return Table("Objectives", ("arm", "objective", "trained depths"), tuple(rows), "", (0, 1, 2))


def depth_table(analysis: Analysis) -> Table:
    """Perplexity per depth and arm; a bracket marks a depth that the arm does not train, a star one worse than chance."""
    chance = math.log(analysis.vocab_size)
    exits = {depth for arm in analysis.curves for depth in arm.evaluation.exits}
    deepest = max(arm.evaluation.n_blocks for arm in analysis.arms)
    shown = {arm.name: {depth.depth: depth for depth in arm.shown_depths} for arm in analysis.arms}
    rows = tuple(
        (
            f"{depth} (exit)" if depth in exits else str(depth),
            *(_depth_cell(shown[arm.name].get(depth), arm, chance) for arm in analysis.arms),
        )
        for depth in range(1, deepest + 1)
    )
    spread = ", and the smallest and largest of single seeds" if any(len(arm.nll_by_seed) > 1 for arm in analysis.arms) else ""
    note = (
        f"exp of the mean NLL over seeds{spread}. In square brackets: depths that the arm does not train. Star: worse than chance, "
        f"ppl {analysis.vocab_size:,}. "
        f"Dash: no such depth, or a depth of a twin that means nothing."
    )
    return Table("Perplexity per depth and arm", ("depth k", *(arm.name for arm in analysis.arms)), rows, note)


def _depth_cell(depth: DepthMean | None, arm: ArmResults, chance: float) -> str:
    """`14.99`, with several seeds `14.99 (14.90 to 15.07)`, marked as the table's note says."""
    if depth is None:
        return formats.MISSING
    text = formats.perplexity_text(depth.ppl, depth.nll_nats)
    by_seed = [nll[depth.depth - 1] for nll in arm.nll_by_seed]
    known = sorted(nll for nll in by_seed if nll is not None)
    if len(by_seed) > 1 and len(known) == len(by_seed):
        low, high = (formats.perplexity_text(perplexity(nll), nll) for nll in (known[0], known[-1]))
        text = text if low == high else f"{text} ({low} to {high})"
    text = text if depth.is_trained else f"[{text}]"
    return text if depth.nll_nats is not None and depth.nll_nats <= chance else f"{text} *"


def frontier_table(analysis: Analysis) -> Table:
    """Areas, gaps and the price of the full model, per arm."""
    rows = []
    comparisons = compare_benchmarks(analysis)
    for arm in analysis.arms:
        areas = seed_means(arm) if arm.is_curve else (None, None)
        gap = _worst_gap(arm) if arm.is_curve else None
        points = analysis.operating_points(arm)
        twin = analysis.twin_full
        is_comparable = twin is not None and arm.evaluation.n_blocks == twin.evaluation.n_blocks and arm.name != twin.name
        delta = frontier.delta_full(arm.full.nll_nats, twin.full.nll_nats) if twin is not None and is_comparable else None
        rows.append(
            (
                arm.name,
                formats.number_text(areas[0]),
                formats.number_text(areas[1]),
                formats.number_text(analysis.loda_ppl(arm), 1),
                formats.number_text(loda_acc(analysis, comparisons, arm), 1),
                f"{sum(point.is_valid for point in points)} of {len(points)}",
                formats.MISSING if gap is None else f"{formats.signed_text(gap[1])} at k = {gap[0]}",
                formats.percent_text(delta),
            )
        )
    columns = ("arm", "AULB", "AULB clipped", "LODA-ppl", "LODA-acc", "valid depths", "worst off-exit gap", "ppl against full twin")
    note = (
        "AULB and gaps in nats per token. AULB clipped: no depth counts as worse than chance (ln V). A dash for AULB: a twin, or "
        "a depth that is not finite. LODA-ppl follows this study's own formula: its absolute values are not the paper's. "
        f"{analysis.throughput.description} LODA-acc is the same area under the mean accuracy on benchmarks, over depths "
        "above guessing by the standard error; a dash where none were run. Valid depths are those of LODA-ppl."
    )
    return Table("Frontier metrics", columns, tuple(rows), note)


def sensitivity_table(analysis: Analysis) -> Table:
    """LODA-ppl over validity margins and throughput axes."""
    margins = sorted({*SENSITIVITY_MARGINS, analysis.results.study.evaluation.loda_margin_nats})
    rows = []
    for arm in analysis.arms:
        depths = arm.shown_depths
        table = frontier.loda_sensitivity(
            [depth.nll_nats for depth in depths],
            analysis.throughput.of(arm),
            analysis.vocab_size,
            analysis.throughputs,
            margins,
        )
        rows.append((arm.name, *(formats.number_text(value, 1) for value in table.values())))
    columns = tuple(f"{axis}, {margin:g}" for axis in ("linear", "log") for margin in margins)
    note = (
        "Columns: scale of the throughput axis and validity margin in nats (a depth is valid when NLL < ln V − margin). "
        f"The axis is {analysis.throughput.name}."
    )
    return Table("Sensitivity of LODA-ppl", ("arm", *columns), tuple(rows), note, is_folded=True)


def difference_table(analysis: Analysis) -> Table:
    """Paired differences to the reference arm: areas, and NLL at the reference's exits."""
    reference = analysis.reference
    exits = reference.evaluation.exits
    rows = []
    for arm in analysis.arms:
        if arm.name == reference.name:
            continue
        depths = analysis.compared_depths(arm)
        known = [analysis.area_difference(arm, is_clipped) for is_clipped in (False, True)]
        known += [analysis.difference(arm, depth) if depth in depths else None for depth in exits]
        rows.append((arm.name, *(difference_cell(difference) for difference in known)))
    columns = ("arm", "AULB", "AULB clipped", *(f"NLL at k = {depth}" for depth in exits))
    return Table(f"Differences to {reference.name}", columns, tuple(rows), _interval_note(analysis, reference))


def depth_difference_table(analysis: Analysis) -> Table:
    """Paired differences to the reference arm at every depth."""
    reference = analysis.reference
    others = [arm for arm in analysis.arms if arm.name != reference.name]
    compared = {arm.name: analysis.compared_depths(arm) for arm in others}
    rows = []
    for depth in range(1, reference.evaluation.n_blocks + 1):
        known = [analysis.difference(arm, depth) if depth in compared[arm.name] else None for arm in others]
        rows.append((str(depth), *map(difference_cell, known)))
    columns = ("depth k", *(arm.name for arm in others))
    return Table(f"Differences to {reference.name}, every depth", columns, tuple(rows), "Nats per token.", is_folded=True)


def difference_cell(difference: Interval | None) -> str:
    """`−0.120 [−0.140, −0.100] win`, or a dash."""
    return formats.MISSING if difference is None else f"{formats.interval_text(difference)} {verdict(difference)}"


def _interval_note(analysis: Analysis, reference: ArmResults) -> str:
    settings = analysis.results.study.evaluation
    return (
        f"Arm minus {reference.name}, nats per token; below 0 is better. {100 * settings.confidence:g}% intervals of "
        f"{settings.bootstrap_resamples:,} paired resamples of {analysis.n_documents:,} validation documents, and of the seeds of "
        "an arm that has several. Win or loss only when the interval excludes 0. No interval: fewer than six documents, no "
        "per-document scores, or a number not finite."
    )


def cost_table(analysis: Analysis) -> Table:
    """Measured and analytic cost of one trained model, mean over seeds."""
    base = analysis.reference
    base_hours, base_flops = mean_device_hours(base), mean_flops(base)
    rows = []
    for arm in analysis.arms:
        seeds, hours, flops = arm.cost.seeds if arm.cost else (), mean_device_hours(arm), mean_flops(arm)
        if not seeds or flops is None:
            rows.append((arm.name, "no cost recorded", *[formats.MISSING] * 8))
            continue
        is_one_unit = hours is not None and base_hours is not None and cost_unit(arm) == cost_unit(base)
        rows.append(
            (
                arm.name,
                ", ".join(sorted({f"{seed.devices} x {seed.device}" for seed in seeds})),
                formats.MISSING if hours is None else f"{formats.hours_text(hours)} {cost_unit(arm)}",
                formats.number_text(hours / base_hours, 3) if is_one_unit and hours and base_hours else formats.MISSING,
                formats.count_text(flops),
                formats.number_text(flops / base_flops, 3) if base_flops else formats.MISSING,
                formats.number_text(paper_cost(arm.arm.objective.model_dump(mode="json"))),
                formats.count_text(sum(seed.tokens for seed in seeds) / len(seeds)),
                f"{sum(seed.tokens_per_second for seed in seeds) / len(seeds):,.0f}",
                formats.bytes_text(max(seed.peak_memory_bytes for seed in seeds)),
            )
        )
    relative = f"of {base.name}"
    columns = ("arm", "devices", "cost", relative, "FLOPs", f"FLOPs {relative}", "paper's", "tokens", "tokens/s", "peak memory")
    note = (
        "One trained model, mean over seeds; forward and backward FLOPs are analytic. Hours are measured in the training loop: "
        "arms that trained side by side on one machine slow each other down, which FLOPs do not show. The paper's: its GPU-hours "
        f"relative to the uniform sampler; its three twins together {TWIN_ARMS.relative_cost:.3f}."
    )
    return Table("Training cost", columns, tuple(rows), note, (0, 1))


def seed_means(arm: ArmResults) -> tuple[float | None, float | None]:
    """AULB and clipped AULB, mean over seeds; None when a seed has none."""
    plain = [seed.aulb_nats for seed in arm.evaluation.seeds]
    clipped = [seed.aulb_clipped_nats for seed in arm.evaluation.seeds]
    return mean_or_none(plain), mean_or_none(clipped)


def mean_or_none(values: Sequence[float | None]) -> float | None:
    """The mean, or None when a value is missing."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def mean_flops(arm: ArmResults) -> float | None:
    """Training FLOPs of one model, mean over seeds."""
    return mean_or_none([seed.flops for seed in arm.cost.seeds]) if arm.cost else None


def cost_unit(arm: ArmResults) -> str:
    """GPU-hours or core-hours, as recorded."""
    return arm.cost.seeds[0].unit if arm.cost and arm.cost.seeds else ""


def describe_objective(settings: dict[str, object]) -> str:
    """The objective's settings in one cell, switches that are off left out: `telescopic: sampler uniform, anchor_weight 1`."""
    parts = []
    for key, value in settings.items():
        if key == "kind" or value is False or value is None:
            continue
        if isinstance(value, dict) and len(value) > 1 and "kind" in value:
            value = f"({describe_objective(value)})"
        elif isinstance(value, dict):
            value = " ".join(str(inner) for inner in value.values())
        if isinstance(value, list | tuple):
            value = formats.depths_text(value) if all(isinstance(one, int) for one in value) else ", ".join(map(str, value))
        parts.append(f"{key} {value:g}" if isinstance(value, float) else f"{key} {value}")
    return f"{settings['kind']}: {', '.join(parts)}" if parts else str(settings["kind"])


def _worst_gap(arm: ArmResults) -> tuple[int, float] | None:
    gaps = frontier.off_exit_gaps([depth.nll_nats for depth in arm.depths], arm.evaluation.exits)
    known = [(depth, gap) for depth, gap in enumerate(gaps, start=1) if gap is not None and depth not in arm.evaluation.exits]
    return max(known, key=lambda pair: pair[1]) if known else None
