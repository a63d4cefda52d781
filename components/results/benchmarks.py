"""Benchmarks, other corpora, and how much of a benchmark stands in the training corpus."""

from __future__ import annotations

from typing import Literal

from components.results.record import Record, State


class MetricScore(Record):
    """One metric of one benchmark at one depth.

    Attributes:
        metric: acc; acc_norm or acc_bytes (log-likelihoods divided by the length of the answer); or perplexity (of the last word).
        normalised_by: the unit of that length.
        state: ok, or what a log-likelihood (or the metric) was instead of a finite number; then `value` is null.
        stderr: standard error of the mean over documents; null with one document, and for metrics that are not a mean.
    """

    metric: str
    normalised_by: Literal["none", "characters", "bytes"]
    state: State
    value: float | None
    stderr: float | None


class BenchmarkDepth(Record):
    """All metrics of one benchmark at one (depth, streams).

    Attributes:
        blocks_run: blocks that were really executed for these numbers, counted while running.
    """

    depth: int
    n_streams: int
    blocks_run: int
    metrics: tuple[MetricScore, ...]


class BenchmarkScores(Record):
    """One benchmark, zero-shot, at every depth.

    Attributes:
        task_version: of the harness's task definition.
        fingerprint: of the requests and right answers; equal fingerprints mean comparable numbers.
        n: documents.
        chance: accuracy of guessing among the choices of each document; 0 without choices.
        n_requests: (context, continuation) pairs.
        n_shortened: requests whose context lost its beginning because it did not fit in the model's window.
        n_split: requests whose continuation alone did not fit, and was scored in overlapping windows.
    """

    benchmark: str
    task_version: str
    fingerprint: str
    n: int
    chance: float
    n_requests: int
    n_shortened: int
    n_split: int
    depths: tuple[BenchmarkDepth, ...]


class CorpusDepth(Record):
    """One corpus at one (depth, streams); the fields are those of `DepthScore`."""

    depth: int
    n_streams: int
    blocks_run: int
    state: State
    nll_nats: float | None
    bits_per_byte: float | None


class CorpusScores(Record):
    """One out-of-domain corpus at every depth, packed and scored like the validation set.

    Attributes:
        fingerprint: of the texts that were scored, in order.
        n_tokens: one end-of-text token per document included.
        n_bytes: UTF-8 bytes of the texts that were scored: the denominator of bits per byte.
    """

    corpus: str
    fingerprint: str
    n_documents: int
    n_empty: int
    n_tokens: int
    n_bytes: int
    depths: tuple[CorpusDepth, ...]


class SeedBenchmarks(Record):
    """The model of one seed."""

    seed: int
    benchmarks: tuple[BenchmarkScores, ...]
    corpora: tuple[CorpusScores, ...]


class ArmBenchmarks(Record):
    """`artifacts/benchmarks/<arm>.json`.

    Attributes:
        status: not_run when the parameter file names neither a benchmark nor a corpus; then `seeds` is empty.
        harness: name and version of the library that defines the benchmarks and their metrics; null when none ran.
        limit: documents of each benchmark that were scored at most, or all.
        window_tokens: the longest input of the model: its training seq_len.
    """

    version: Literal[1]
    arm: str
    status: Literal["run", "not_run"]
    harness: str | None
    limit: int | Literal["all"]
    window_tokens: int | None
    n_blocks: int
    exits: tuple[int, ...]
    seeds: tuple[SeedBenchmarks, ...]


class BenchmarkOverlap(Record):
    """How much of one benchmark stands in the training corpus.

    Attributes:
        fingerprint: as in `BenchmarkScores`.
        n: documents.
        n_checked: documents long enough to have an n-gram at all.
        n_overlapping: documents with an n-gram that occurs in the training corpus.
        documents: indices of those, in the benchmark's order.
    """

    benchmark: str
    fingerprint: str
    n: int
    n_checked: int
    n_overlapping: int
    documents: tuple[int, ...]


class Contamination(Record):
    """`artifacts/contamination.json`: benchmarks against the training documents, the same for every arm.

    Attributes:
        status: not_run when the parameter file names no benchmark.
        ngram_words: length of the runs of words that are compared; words are lower-case runs of letters, digits and underscores.
        corpus_fingerprint: of the tokenized corpus; `n_documents`, `n_words` of its training documents.
    """

    version: Literal[1]
    status: Literal["run", "not_run"]
    ngram_words: int
    corpus_fingerprint: str | None
    n_documents: int
    n_words: int
    benchmarks: tuple[BenchmarkOverlap, ...]
