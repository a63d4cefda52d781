"""The table of arms that a flow run ends with, from the results files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from components.config.problems import ResultsError
from components.results import ArmCost, ArmEvaluation, read_record

Row = dict[str, str | int | float]


def arms_table(arms: Sequence[str], artifacts: Path) -> list[Row]:
    """One row for each arm and seed: perplexity at the first and the full depth, AULB, and what training cost."""
    return [row for arm in arms for row in _arm_rows(arm, artifacts)]


def _arm_rows(arm: str, artifacts: Path) -> list[Row]:
    try:
        evaluation = read_record(ArmEvaluation, artifacts / "evaluation" / f"{arm}.json")
    except ResultsError:
        return [{"arm": arm, "seed": "not evaluated"}]
    cost_file = artifacts / "cost" / f"{arm}.json"
    costs = {cost.seed: cost for cost in read_record(ArmCost, cost_file).seeds} if cost_file.exists() else {}
    rows: list[Row] = []
    for result in evaluation.seeds:
        streams = max(score.n_streams for score in result.depths)
        cells = [score for score in result.depths if score.n_streams == streams]
        first, full = cells[0], cells[-1]
        row: Row = {"arm": arm, "seed": result.seed, "blocks": evaluation.n_blocks}
        row[f"ppl at k={first.depth}"] = _shown(first.ppl)
        row["ppl at full depth"] = _shown(full.ppl)
        is_one_depth = evaluation.trained_depths == (evaluation.n_blocks,)
        row["AULB (nats)"] = "-" if is_one_depth else _shown(result.aulb_nats)
        if result.seed in costs:
            cost = costs[result.seed]
            row[cost.unit] = _shown(cost.device_hours)
            row["tokens/s"] = round(cost.tokens_per_second)
        rows.append(row)
    return rows


def _shown(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
