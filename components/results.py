"""The results files: what every stage leaves under `artifacts/`, typed, versioned and strict.

The pipeline's one way to pass numbers on. JSON stays valid whatever the numbers are: a value that is not finite is null, and
`state` says which it was.
"""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from components.config.problems import ResultsError

RESULTS_VERSION = 1

State = Literal["ok", "inf", "nan"]


class Record(BaseModel):
    """Base of all results: immutable, strict, unknown keys refused, NaN and infinities never written."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", allow_inf_nan=False)


class ValidationSet(Record):
    """What was scored; equal fingerprints mean comparable numbers."""

    fingerprint: str
    n_documents: int
    n_tokens: int
    n_bytes: int


class DepthScore(Record):
    """Quality and size of one (depth, streams) cell on the validation set.

    Attributes:
        depth: k, blocks of the prefix.
        n_streams: n of Hidden Decoding; 1 without.
        state: ok, or what the mean NLL was instead of a finite number.
        nll_nats: mean NLL per token; null unless `state` is ok.
        ppl: exp(nll_nats); null when that overflows or `state` is not ok.
        bits_per_byte: total NLL / (ln 2 x UTF-8 bytes scored).
        parameters: of the prefix as a stand-alone model (embedding slice, blocks, its segment's norm and head).
        flops_per_token: forward pass of the prefix, at the evaluation's sequence length.
        blocks_run: blocks that were really executed for this score, counted while running.
    """

    depth: int
    n_streams: int
    state: State
    nll_nats: float | None
    ppl: float | None
    bits_per_byte: float | None
    parameters: int
    flops_per_token: int
    blocks_run: int


class SeedEvaluation(Record):
    """All cells of the model of one seed.

    Attributes:
        depths: every depth, at every number of streams that the model is trained with.
        aulb_nats: at the most streams, area under NLL over k = 1..N divided by N - 1; null when a depth is not finite or N is 1.
        aulb_clipped_nats: the same with every NLL clipped at ln V (not finite counts as ln V).
    """

    seed: int
    depths: tuple[DepthScore, ...]
    aulb_nats: float | None
    aulb_clipped_nats: float | None


class ArmEvaluation(Record):
    """`artifacts/evaluation/<arm>.json`. Beside it, `<arm>.documents.parquet` has NLL sums per document, for the intervals.

    Attributes:
        objective: kind of the objective.
        exits: depths of the segments' last blocks.
        trained_depths: depths that the objective ever trains; the others are read out all the same.
        vocab_size: real entries of the tokenizer: perplexity of chance.
    """

    version: Literal[1]
    arm: str
    objective: str
    n_blocks: int
    exits: tuple[int, ...]
    trained_depths: tuple[int, ...]
    vocab_size: int
    validation: ValidationSet
    seeds: tuple[SeedEvaluation, ...]


class SeedCost(Record):
    """What training one model cost, over all sessions of a run that was stopped and resumed.

    Attributes:
        seconds: wall-clock of the training loop (steps and checkpoints; no start-up).
        devices: GPUs, or CPU cores (workers x threads).
        device: name of the GPU or CPU.
        device_hours: seconds x devices / 3600, in `unit`.
        flops: analytic, forward and backward, of all steps.
        stream_fingerprint: of all token batches consumed, in order; equal across arms of one seed.
    """

    seed: int
    seconds: float
    devices: int
    device: str
    device_hours: float
    unit: Literal["GPU-hours", "core-hours"]
    steps: int
    tokens: int
    tokens_per_second: float
    flops: int
    peak_memory_bytes: int
    stream_fingerprint: str


class ArmCost(Record):
    """`artifacts/cost/<arm>.json`; only the report depends on it, so that a clock reading re-runs nothing else."""

    version: Literal[1]
    arm: str
    seeds: tuple[SeedCost, ...]


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


class Timing(Record):
    """Clock readings of one operation: the median, and the quartiles as their spread."""

    median_seconds: float
    low_seconds: float
    high_seconds: float
    samples: int


class LatencyCell(Record):
    """What one (depth, streams, batch size, context) costs to serve.

    Attributes:
        n_streams: n of Hidden Decoding; 1 without.
        context_tokens: tokens in the cache of every sequence when decoding starts, and the length of the prefill.
        prefill: reading `batch_size` contexts at once, to the first new token.
        decode: one step, `batch_size` new tokens.
        weight_bytes: of the prefix alone, as it would be served.
        kv_bytes: keys and values of the whole batch at that context.
        peak_memory_bytes: the largest seen: tensors of the GPU in this cell; on a CPU the process so far.
    """

    depth: int
    n_streams: int
    batch_size: int
    context_tokens: int
    prefill: Timing
    decode: Timing
    prefill_tokens_per_second: float
    decode_tokens_per_second: float
    weight_bytes: int
    kv_bytes: int
    peak_memory_bytes: int


class LatencyViolation(Record):
    """A depth that was measured faster than a shallower one, beyond the spread of both: the clock was disturbed."""

    operation: Literal["prefill", "decode"]
    depth: int
    shallower_depth: int
    batch_size: int
    context_tokens: int


class SpeculationCell(Record):
    """Self-speculative decoding of the whole model, drafted by its prefix of `draft_depth` blocks.

    Attributes:
        acceptance: a, share of compared draft tokens that were kept; null when none was compared.
        cost_ratio: c, time of a drafting step relative to a plain step.
        expected_speedup: (1 - a^(g+1)) / ((1 - a)(g c + 1)); null without an acceptance.
        measured_speedup: time of plain decoding over speculative decoding of the same texts; median and quartiles.
    """

    draft_depth: int
    draft_tokens: int
    acceptance: float | None
    cost_ratio: float
    expected_speedup: float | None
    measured_speedup: float
    measured_low: float
    measured_high: float


class ArmProfile(Record):
    """`artifacts/profile/<arm>.json`: how fast one model is at every depth, on one machine. Clock readings, so nothing hangs on it.

    Attributes:
        seed: whose weights were timed; speed does not depend on them, acceptance does.
        dtype: of weights and cache.
        decode_steps, repeats: steps of one turn of decoding, and turns taken; every turn of warm-up is left out.
        violations: where latency does not grow with depth.
        speculation: greedy, one text at a time; empty when there is no shallower depth.
        recommended: the fastest cell whose lower quartile beats plain decoding; null when none does.
    """

    version: Literal[1]
    arm: str
    seed: int
    n_blocks: int
    device: str
    device_kind: Literal["cpu", "cuda"]
    threads: int
    dtype: str
    torch_version: str
    decode_steps: int
    repeats: int
    cells: tuple[LatencyCell, ...]
    violations: tuple[LatencyViolation, ...]
    speculation: tuple[SpeculationCell, ...]
    recommended: SpeculationCell | None


class OperatingPoint(Record):
    """Quality and cost of one (arm, depth, streams, batch size, context); quality is the mean over the arm's seeds.

    Attributes:
        decode_seconds: one step, median; `decode_high_seconds` its upper quartile.
        memory_bytes: weights of the prefix and cache of the batch.
    """

    arm: str
    depth: int
    n_streams: int
    batch_size: int
    context_tokens: int
    nll_nats: float
    ppl: float | None
    bits_per_byte: float
    parameters: int
    flops_per_token: int
    prefill_seconds: float
    decode_seconds: float
    decode_high_seconds: float
    decode_tokens_per_second: float
    memory_bytes: int


class OperatingPoints(Record):
    """`artifacts/operating_points.json`: the table a deployer chooses from, the best quality first.

    Attributes:
        device: where all points were measured.
        left_out: arms or depths that are not in the table, and why.
    """

    version: Literal[1]
    device: str
    threads: int
    validation_fingerprint: str
    points: tuple[OperatingPoint, ...]
    left_out: tuple[str, ...]


RecordT = TypeVar("RecordT", bound=Record)


def finite(value: float) -> tuple[State, float | None]:
    """The state of a number and the number itself when it is finite."""
    if math.isnan(value):
        return "nan", None
    return ("inf", None) if math.isinf(value) else ("ok", value)


def perplexity(nll_nats: float | None) -> float | None:
    """exp(NLL), or None when there is no finite one."""
    if nll_nats is None or nll_nats > 700.0:  # exp overflows float64 past 709
        return None
    return math.exp(nll_nats)


def write_record(record: Record, path: Path) -> None:
    """Writes the record so that a reader sees the old file or the whole new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    aside.write_text(json.dumps(record.model_dump(mode="json"), indent=2, allow_nan=False) + "\n", encoding="utf-8")
    aside.replace(path)


def read_record(kind: type[RecordT], path: Path) -> RecordT:
    """The record in the file.

    Raises:
        ResultsError: no such file, another schema version, or not such a record.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultsError(f"{path}: no such results file; run `dvc repro` first") from None
    except ValueError as error:
        raise ResultsError(f"{path}: not a results file ({error}); delete it and run `dvc repro`") from None
    version = raw.get("version") if isinstance(raw, dict) else None
    if version != RESULTS_VERSION:
        raise ResultsError(
            f"{path}: results version {version!r}, this code reads {RESULTS_VERSION}; re-run its stage with `dvc repro -f`"
        )
    try:
        return kind.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        at = ".".join(str(part) for part in first["loc"])
        raise ResultsError(f"{path}: {at}: {first['msg']}; re-run its stage with `dvc repro -f`") from None
