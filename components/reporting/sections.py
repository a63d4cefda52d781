"""The report as a list of sections: what it says and in which order. `render.py` turns them into HTML and Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from components.evaluation.findings import Finding
from components.reporting import benchmarks as extra
from components.reporting import formats
from components.reporting.accuracy import compare_benchmarks, compare_corpora
from components.reporting.analysis import Analysis
from components.reporting.curves import depth_figures, heat_map
from components.reporting.differences import limits, open_choices, override_table, recipe_table, segments_text
from components.reporting.environment import environment_table
from components.reporting.figures import Figure
from components.reporting.latency import latency_figures, latency_paragraphs, latency_tables
from components.reporting.load import ArmResults
from components.reporting.multiples import benchmark_figures, corpora_figures
from components.reporting.plots import cost_figure, frontier_figures, training_figure
from components.reporting.schedules import schedule_tables
from components.reporting.streams import streams_tables
from components.reporting.streams_grid import grid_figure
from components.reporting.tables import (
    Row,
    Table,
    arms_table,
    cost_table,
    depth_difference_table,
    depth_table,
    difference_table,
    frontier_table,
    objective_table,
    seed_means,
    sensitivity_table,
)
from components.results import SeedCost


@dataclass(frozen=True)
class Section:
    """One chapter, shown as paragraphs, then a list, figures and tables."""

    title: str
    anchor: str
    paragraphs: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()
    tables: tuple[Table, ...] = field(default=())


def build_sections(analysis: Analysis) -> list[Section]:
    """All sections of the report, in reading order."""
    return [
        Section("Summary", "summary", summary(analysis)),
        Section("Arms", "arms", tables=(arms_table(analysis), objective_table(analysis))),
        Section("Depth curves", "curves", figures=tuple(depth_figures(analysis))),
        Section("Perplexity per depth", "depths", figures=(heat_map(analysis),), tables=(depth_table(analysis),)),
        Section(
            "Frontier metrics",
            "frontier",
            figures=tuple(frontier_figures(analysis)),
            tables=(frontier_table(analysis), sensitivity_table(analysis)),
        ),
        _latency(analysis),
        _differences(analysis),
        *_streams(analysis),
        _benchmarks(analysis),
        _out_of_domain(analysis),
        _contamination(analysis),
        _findings(analysis),
        _cost(analysis),
        _training(analysis),
        Section("Data", "data", tables=_data_tables(analysis)),
        Section("Environment", "environment", tables=(environment_table(),)),
        _papers(analysis),
        Section("Limits", "limits", items=tuple(limits(analysis))),
    ]


def summary(analysis: Analysis) -> tuple[str, ...]:
    """What was run and what came out, in two paragraphs."""
    study, arms = analysis.results.study, analysis.arms
    validation = arms[0].evaluation.validation
    trained = study.training.steps * study.training.batch_rows * study.data.seq_len
    exits = formats.join_names([str(depth) for depth in study.model.exits])
    run = (
        f"{len(arms)} of {len(study.models)} arms are evaluated. The cascade has {study.model.n_blocks} blocks "
        f"({segments_text(study)}), exits at k = {exits}, and a vocabulary of {analysis.vocab_size:,}. An arm without settings of "
        f"its own trains on {formats.count_text(trained)} tokens ({study.data.source.kind}). Each is scored at every depth on "
        f"{validation.n_documents:,} held-out documents ({validation.n_tokens:,} tokens)."
    )
    curves = [(arm, arm.full) for arm in analysis.curves if arm.full.nll_nats is not None]
    parts = []
    if curves:
        best, full = min(curves, key=lambda pair: pair[1].nll_nats or 0.0)
        parts.append(
            f"Lowest perplexity at full size among curves: {best.name}, {formats.perplexity_text(full.ppl, full.nll_nats)}."
        )
    areas = [(arm.name, area) for arm in analysis.curves if (area := seed_means(arm)[1]) is not None]
    if areas:
        name, area = min(areas, key=lambda pair: pair[1])
        parts.append(f"Lowest area under the NLL curve (clipped at chance): {name}, {area:.3f} nats.")
    parts.append(f"Of {len(analysis.findings)} claims of Telescopic Language Models: {_verdicts(analysis.findings)}.")
    if analysis.results.study.expansions:
        parts.append(f"Of {len(analysis.stream_findings)} claims of Hidden Decoding: {_verdicts(analysis.stream_findings)}.")
    return (run, " ".join(parts))


def _latency(analysis: Analysis) -> Section:
    text, figures, tables = latency_paragraphs(analysis), latency_figures(analysis), latency_tables(analysis)
    return Section("Latency", "latency", text, figures=figures, tables=tables)


def _differences(analysis: Analysis) -> Section:
    if len(analysis.arms) < 2:
        text = (f"There is only one evaluated arm, {analysis.reference.name}: nothing to compare it with.",)
        return Section("Differences between arms", "differences", text)
    return Section("Differences between arms", "differences", tables=(difference_table(analysis), depth_difference_table(analysis)))


def _streams(analysis: Analysis) -> list[Section]:
    figure = grid_figure(analysis)
    return [] if figure is None else [Section("Hidden Decoding", "streams", figures=(figure,), tables=streams_tables(analysis))]


def _benchmarks(analysis: Analysis) -> Section:
    compared, text = compare_benchmarks(analysis), extra.benchmark_paragraphs(analysis)
    if not compared:
        return Section("Benchmarks", "benchmarks", text)
    tables = (extra.accuracy_table(analysis, compared), extra.benchmark_table(analysis, compared))
    return Section("Benchmarks", "benchmarks", text, figures=tuple(benchmark_figures(analysis, compared)), tables=tables)


def _out_of_domain(analysis: Analysis) -> Section:
    compared, text = compare_corpora(analysis), extra.corpora_paragraphs(analysis)
    if not compared:
        return Section("Out of domain", "out-of-domain", text)
    model = analysis.results.study.model
    tables = (
        extra.corpora_table(analysis, compared, model.exits, "Bits per byte at the exits"),
        extra.corpora_table(analysis, compared, range(1, model.n_blocks + 1), "Bits per byte at every depth"),
    )
    return Section("Out of domain", "out-of-domain", text, figures=tuple(corpora_figures(analysis, compared)), tables=tables)


def _contamination(analysis: Analysis) -> Section:
    return Section(
        "Contamination", "contamination", extra.contamination_paragraphs(analysis), tables=extra.contamination_tables(analysis)
    )


def _verdicts(findings: Sequence[Finding]) -> str:
    """`9 reproduced, 2 inconclusive and 4 not run`."""
    counts: Counter[str] = Counter(finding.verdict for finding in findings)
    order = ("reproduced", "not reproduced", "inconclusive", "not run")
    return formats.join_names([f"{counts[verdict]} {verdict}" for verdict in order if counts[verdict]])


def _findings(analysis: Analysis) -> Section:
    papers = {"Telescopic Language Models": analysis.findings, "Hidden Decoding": analysis.stream_findings}
    tables = [table for paper, findings in papers.items() for table in _judged_table(paper, findings)]
    absent = [(paper, finding) for paper, findings in papers.items() for finding in findings if finding.verdict == "not run"]
    if absent:
        holes = tuple((finding.statement, finding.evidence, finding.paper, paper) for paper, finding in absent)
        columns = ("claim", "why", "the paper's numbers", "paper")
        tables.append(Table("Claims not run in this study", columns, holes, "", (0, 1, 2, 3)))
    return Section("Findings", "findings", tables=tuple(tables))


def _judged_table(paper: str, findings: Sequence[Finding]) -> tuple[Table, ...]:
    judged = [finding for finding in findings if finding.verdict != "not run"]
    if not judged:
        return ()
    note = (
        "Generated by rule from the results. Not reproduced: an interval contradicts the claim; inconclusive: no interval decides."
    )
    columns: Row = ("claim", "verdict", "numbers of this study", "reproduced when", "the paper's numbers")
    rows: list[Row] = [(finding.statement, finding.verdict, finding.evidence, finding.rule, finding.paper) for finding in judged]
    if any(finding.agreement for finding in judged):
        note += " Each seed alone: how many training seeds give the same verdict by themselves, and what the others give."
        columns = (*columns[:3], "each seed alone", *columns[3:])
        rows = [(*row[:3], finding.agreement, *row[3:]) for row, finding in zip(rows, judged, strict=True)]
    return (Table(f"Claims of {paper}", columns, tuple(rows), note, tuple(range(len(columns))), is_cards=True),)


def _cost(analysis: Analysis) -> Section:
    figure = cost_figure(analysis)
    if figure is None:
        return Section("Cost", "cost", ("No arm has a recorded cost (artifacts/cost).",))
    return Section("Cost", "cost", figures=(figure,), tables=(cost_table(analysis), *schedule_tables(analysis)))


def _training(analysis: Analysis) -> Section:
    figure = training_figure(analysis)
    if figure is None:
        return Section("Training", "training", ("No training histories (artifacts/models/<arm>/seed-<seed>/history.jsonl).",))
    return Section("Training", "training", figures=(figure,))


def _papers(analysis: Analysis) -> Section:
    overrides = override_table(analysis)
    return Section(
        "Differences from the papers",
        "papers",
        ("Generated from the parameters. The list below the tables holds what the papers leave open and this study chose.",),
        tuple(open_choices(analysis)),
        tables=(recipe_table(analysis), *([overrides] if overrides else [])),
    )


def _data_tables(analysis: Analysis) -> tuple[Table, ...]:
    rows: list[Row] = []
    manifest, validation = analysis.results.manifest, analysis.arms[0].evaluation.validation
    rows.append(("validation set scored", validation.fingerprint))
    if manifest is not None:
        train, held_out = manifest.train, manifest.validation
        is_same = held_out.header.fingerprint == validation.fingerprint
        rows += [
            (
                "validation set on disk",
                f"{held_out.header.fingerprint} ({'the same' if is_same else 'another one: results are stale'})",
            ),
            ("training rows", f"{train.header.fingerprint} ({train.header.n_rows:,} rows of {train.header.seq_len} tokens)"),
            ("corpus", train.header.corpus_fingerprint),
            ("tokenizer", f"{train.header.tokenizer_hash} (vocabulary {train.header.vocab_size:,})"),
            ("documents", ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in manifest.documents if count)),
            (
                "training tokens",
                f"{train.header.tokens_out:,} packed of {train.header.tokens_in:,}; {train.header.tokens_dropped:,} dropped",
            ),
            (
                "validation tokens",
                f"{held_out.header.tokens_out:,}, {held_out.bytes:,} bytes; {held_out.unused_documents:,} documents unused",
            ),
        ]
    else:
        rows.append(("packed data", "no manifest (artifacts/data/manifest.json)"))
    data = Table("Data", ("what", "value"), tuple(rows), "", (0, 1))
    return (data, *_stream_table(analysis))


def _stream_table(analysis: Analysis) -> tuple[Table, ...]:
    """Did every arm consume the same batches in the same order? One row per arm and seed that has a cost."""
    reference = {seed.seed: seed for seed in _costs(analysis.reference)}
    rows = []
    for arm in analysis.arms:
        for seed in _costs(arm):
            same = f"goes on after {arm.arm.base}" if arm.arm.first_step else _same(seed, reference.get(seed.seed))
            rows.append((arm.name, str(seed.seed), f"{seed.tokens:,}", seed.stream_fingerprint, same))
    if not rows:
        return ()
    columns = ("arm", "seed", "tokens", "stream fingerprint", f"as {analysis.reference.name}")
    return (Table("Token streams", columns, tuple(rows), "Of all batches consumed, in order.", (0, 3, 4)),)


def _same(seed: SeedCost, base: SeedCost | None) -> str:
    if base is None:
        return "seed not in common"
    if base.tokens != seed.tokens:
        return "of another length"
    return "yes" if base.stream_fingerprint == seed.stream_fingerprint else "NO"


def _costs(arm: ArmResults) -> tuple[SeedCost, ...]:
    return arm.cost.seeds if arm.cost else ()
