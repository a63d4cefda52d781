"""The report's sections on benchmarks, other corpora and contamination: figures and tables, or why there are none."""

from __future__ import annotations

from collections.abc import Sequence

from components.reporting import formats
from components.reporting.accuracy import (
    Comparison,
    Score,
    compare_benchmark,
    compare_benchmarks,
    compare_corpora,
    find_metric,
    mean_accuracy,
    mean_chance,
    metric_text,
)
from components.reporting.analysis import Analysis
from components.reporting.tables import Row, Table

SWITCH = '`benchmarks.{key}` of params.yaml is empty, as in the quick study. How to switch them on: README, "Benchmarks".'
NO_FILES = "Not run yet: no arm has a results file under artifacts/benchmarks; run `dvc repro`."


def benchmark_paragraphs(analysis: Analysis) -> tuple[str, ...]:
    """What was scored, or that nothing was."""
    study, records = analysis.results.study.benchmarks, analysis.results.benchmarks
    if not study.tasks:
        return (f"Not run: {SWITCH.format(key='tasks')}",)
    if not records:
        return (NO_FILES,)
    some = next(iter(records.values()))
    limit = "All documents" if some.limit == "all" else f"The first {some.limit:,} documents"
    text = (
        f"{limit} of each benchmark, zero-shot, every depth, with the tasks of {some.harness}. A model reads at most "
        f"{some.window_tokens} tokens. acc: the right answer has the highest log-likelihood; acc_norm: after division by the "
        "answer's length in characters, acc_bytes in bytes."
    )
    return (text, *shortened(analysis), *holes(analysis, compare_benchmarks(analysis)))


def shortened(analysis: Analysis) -> tuple[str, ...]:
    """Benchmarks with requests that did not fit in the window."""
    record = next(iter(analysis.results.benchmarks.values()))
    cut = [
        f"{one.benchmark} {100 * (one.n_shortened + one.n_split) / one.n_requests:.0f}%"
        for one in record.seeds[0].benchmarks
        if one.n_shortened + one.n_split
    ]
    text = "Requests that did not fit in the window, and so lost the beginning of their context or were scored in pieces: "
    return (f"{text}{formats.join_names(cut)}.",) if cut else ()


def holes(analysis: Analysis, comparisons: Sequence[Comparison]) -> tuple[str, ...]:
    """Arms that were not scored, or on other documents than most."""
    absent = [arm.name for arm in analysis.arms if arm.name not in analysis.results.benchmarks]
    told = [f"Not scored yet: {formats.join_names(absent)}."] if absent else []
    told += [
        f"Not compared on {one.name}, scored on other documents or by another version: {formats.join_names(one.left_out)}."
        for one in comparisons
        if one.left_out
    ]
    return tuple(told)


def corpora_paragraphs(analysis: Analysis) -> tuple[str, ...]:
    """Which corpora were scored, or that none was."""
    if not analysis.results.study.benchmarks.corpora:
        return (f"Not run: {SWITCH.format(key='corpora')}",)
    if not analysis.results.benchmarks:
        return (NO_FILES,)
    text = "Bits per UTF-8 byte of texts that no model was trained on, packed and scored like the validation set."
    return (text, *holes(analysis, compare_corpora(analysis)))


def accuracy_table(analysis: Analysis, comparisons: Sequence[Comparison]) -> Table:
    """Mean accuracy of every arm at the exits."""
    exits = analysis.results.study.model.exits
    chance = mean_chance(comparisons)
    rows: list[Row] = []
    for arm in analysis.arms:
        scores = {score.depth: score for score in mean_accuracy(comparisons, arm.name)}
        rows.append((arm.name, *(accuracy_text(scores.get(depth), chance) for depth in exits)))
    columns = ("arm", *(f"k = {depth}" for depth in exits))
    named = ", ".join(metric_text(one) for one in comparisons)
    note = (
        f"Mean over benchmarks: {named}. Guessing gives {chance:.3f}. With the standard error over documents; star: not above "
        "guessing by it. In brackets: depths that the arm does not train. Dash: no such depth, or not scored on all of them."
    )
    return Table("Mean accuracy at the exits", columns, tuple(rows), note)


def benchmark_table(analysis: Analysis, comparisons: Sequence[Comparison]) -> Table:
    """Every metric of every benchmark at each arm's full depth."""
    record = next(iter(analysis.results.benchmarks.values()))
    rows: list[Row] = []
    for one in comparisons:
        scored = next(scores for scores in record.seeds[0].benchmarks if scores.benchmark == one.name)
        for metric in scored.depths[0].metrics:
            every = compare_benchmark(analysis, one.name, metric.metric)
            is_share = metric.metric != "perplexity"
            cells = []
            for arm in analysis.arms:
                curve = every.arms.get(arm.name)
                last = curve[-1] if curve else None
                cells.append(
                    accuracy_text(last, one.chance) if is_share else formats.perplexity_text(last.value, None) if last else "–"
                )
            unit = find_metric(scored.depths[0].metrics, metric.metric).normalised_by
            chance = f"{one.chance:.3f}" if is_share else formats.MISSING
            rows.append((one.name, metric.metric, formats.MISSING if unit == "none" else unit, f"{one.n:,}", chance, *cells))
    columns = ("benchmark", "metric", "per", "documents", "guessing", *(arm.name for arm in analysis.arms))
    note = "Each arm at its full depth; mean over seeds, with the standard error over documents."
    return Table("Every metric at full depth", columns, tuple(rows), note, (0, 1, 2), is_folded=True)


def corpora_table(analysis: Analysis, comparisons: Sequence[Comparison], depths: Sequence[int], title: str) -> Table:
    """Bits per byte of each corpus at the given depths."""
    rows: list[Row] = []
    for one in comparisons:
        scores = {name: {score.depth: score for score in curve} for name, curve in one.arms.items()}
        for depth in depths:
            cells = (bits_text(scores.get(arm.name, {}).get(depth), one.chance) for arm in analysis.arms)
            rows.append((one.name, str(depth), *cells))
    note = (
        "Bits per byte, mean over seeds. Star: worse than uniform guessing over the vocabulary. In brackets: depths that the arm "
        "does not train. Dash: no such depth, or not compared."
    )
    return Table(title, ("corpus", "depth k", *(arm.name for arm in analysis.arms)), tuple(rows), note, is_folded=len(depths) > 4)


def contamination_paragraphs(analysis: Analysis) -> tuple[str, ...]:
    """What was compared, or that nothing was."""
    found = analysis.results.contamination
    if not analysis.results.study.benchmarks.tasks:
        return (f"Not run: {SWITCH.format(key='tasks')}",)
    if found is None:
        return ("Not run yet: no artifacts/contamination.json; run `dvc repro`.",)
    return (
        f"A benchmark document overlaps when a run of {found.ngram_words} of its words stands in one of the {found.n_documents:,} "
        f"training documents ({formats.count_text(found.n_words)} words, {found.corpus_fingerprint}).",
    )


def contamination_tables(analysis: Analysis) -> tuple[Table, ...]:
    """Overlap of each benchmark with the training corpus."""
    if analysis.results.contamination is None:
        return ()
    scored = {
        one.benchmark: one.fingerprint for record in analysis.results.benchmarks.values() for one in record.seeds[0].benchmarks
    }
    rows = []
    for one in analysis.results.contamination.benchmarks:
        share = f"{100 * one.n_overlapping / one.n_checked:.1f}%" if one.n_checked else formats.MISSING
        is_same = scored.get(one.benchmark) == one.fingerprint
        same = "yes" if is_same else "not scored" if one.benchmark not in scored else "NO: results are stale"
        rows.append((one.benchmark, f"{one.n:,}", f"{one.n_checked:,}", f"{one.n_overlapping:,}", share, same))
    columns = ("benchmark", "documents", "long enough", "overlapping", "share", "as scored")
    note = "Long enough: with that many words at all. As scored: the accuracies are of the same documents."
    return (Table("Overlap with the training corpus", columns, tuple(rows), note, (0, 5)),)


def accuracy_text(score: Score | None, chance: float) -> str:
    """`0.312 ± 0.008`, in brackets for an untrained depth, starred when not above guessing by its standard error."""
    if score is None or score.value is None:
        return formats.MISSING if score is None else formats.NOT_FINITE
    text = f"{score.value:.3f}" if score.stderr is None else f"{score.value:.3f} ± {score.stderr:.3f}"
    text = text if score.is_trained else f"[{text}]"
    return text if score.value - (score.stderr or 0.0) > chance else f"{text} *"


def bits_text(score: Score | None, chance: float) -> str:
    """`1.234`, marked like an accuracy."""
    if score is None or score.value is None:
        return formats.MISSING if score is None else formats.NOT_FINITE
    text = f"{score.value:.3f}" if score.value < 1e3 else f"{score.value:.1e}"
    text = text if score.is_trained else f"[{text}]"
    return text if score.value < chance else f"{text} *"
