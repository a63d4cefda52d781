"""Writes the report's folder: the page, its Markdown twin, every figure as PNG and CSV, and the headline numbers of each arm.

Easy to get wrong: the folder appears whole or not at all, so that a failed report never leaves half of a new one in an old one.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from components.data.folders import replaced_folder
from components.reporting.accuracy import compare_benchmarks, loda_acc, mean_accuracy
from components.reporting.analysis import Analysis, mean_device_hours
from components.reporting.curves import depth_curves_csv
from components.reporting.render import render_html, render_markdown
from components.reporting.sections import build_sections
from components.reporting.tables import mean_flops, seed_means

PAGE = "index.html"
METRICS = "metrics"  # a file for each arm, so that `dvc metrics show` has a row for each
FINDINGS = "findings.json"


def write_report(analysis: Analysis, folder: Path) -> Path:
    """Writes everything and returns the path of the page."""
    sections = build_sections(analysis)
    with replaced_folder(folder, FINDINGS) as aside:
        figures = aside / "figures"
        figures.mkdir()
        (aside / PAGE).write_text(render_html(sections), encoding="utf-8")
        (aside / "report.md").write_text(render_markdown(sections), encoding="utf-8")
        metrics = aside / METRICS
        metrics.mkdir()
        for arm, values in headline_metrics(analysis).items():
            (metrics / f"{arm}.json").write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
        (aside / FINDINGS).write_text(json.dumps(verdict_counts(analysis), indent=2) + "\n", encoding="utf-8")
        for figure in (figure for section in sections for figure in section.figures):
            (figures / f"{figure.name}.png").write_bytes(figure.png)
            (figures / f"{figure.name}.csv").write_text(figure.data, encoding="utf-8")
        (figures / "depth_curves.csv").write_text(depth_curves_csv(analysis, analysis.arms), encoding="utf-8")
    return folder / PAGE


def headline_metrics(analysis: Analysis) -> dict[str, dict[str, float | int]]:
    """The numbers of `dvc metrics show`: a few for each arm; what is unknown is left out."""
    metrics: dict[str, dict[str, float | int]] = {}
    compared = compare_benchmarks(analysis)
    for arm in analysis.arms:
        areas = seed_means(arm) if arm.is_curve else (None, None)
        flops = mean_flops(arm)
        accuracies = mean_accuracy(compared, arm.name)
        values = {
            "ppl_full": arm.full.ppl,
            "nll_full_nats": arm.full.nll_nats,
            "bits_per_byte_full": arm.full.bits_per_byte,
            "aulb_nats": areas[0],
            "aulb_clipped_nats": areas[1],
            "loda_ppl": analysis.loda_ppl(arm),
            "accuracy_full": accuracies[-1].value if accuracies else None,
            "loda_acc": loda_acc(analysis, compared, arm),
            "device_hours": mean_device_hours(arm),
            "train_flops": None if flops is None else round(flops),
        }
        metrics[arm.name] = {name: value for name, value in values.items() if value is not None}
    return metrics


def verdict_counts(analysis: Analysis) -> dict[str, dict[str, int]]:
    """How many claims of each paper got which verdict."""
    papers = {"telescopic": analysis.findings, "hidden_decoding": analysis.stream_findings}
    return {
        paper: dict(sorted(Counter(finding.verdict.replace(" ", "_") for finding in findings).items()))
        for paper, findings in papers.items()
    }
