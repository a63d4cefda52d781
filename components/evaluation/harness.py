"""The benchmarks of lm-evaluation-harness: its task definitions, requests and metrics, without its model runner.

The harness runs a model once per benchmark and would do so for every depth. Here its tasks are asked for their requests, all depths
are scored at once elsewhere (`benchmarks.py`), and each depth's log-likelihoods go back into the tasks' own metrics.

Importing this module imports lm_eval (a second or two): import it where a benchmark really runs.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import lm_eval.tasks
import numpy as np
import numpy.typing as npt
from lm_eval.api.metrics import mean, mean_stderr

from components.config.benchmarks import BenchmarkName, HubBenchmarks, LocalBenchmarks
from components.config.problems import DataError
from components.results import MetricScore, finite


class Definition(NamedTuple):
    """What this project adds to a task of the harness.

    Attributes:
        family: folder of the harness that defines the task.
        local: folder of its parquet files below `benchmarks.source.folder`: data set / configuration, as on the hub.
        split: the split that is scored, as the harness's own definition says.
        has_norm: is accuracy also reported with log-likelihoods divided by the answers' length.
    """

    family: str
    local: str
    split: Literal["test", "validation"]
    has_norm: bool


DEFINITIONS: Mapping[BenchmarkName, Definition] = {
    "arc_easy": Definition("arc", "ai2_arc/ARC-Easy", "test", True),
    "arc_challenge": Definition("arc", "ai2_arc/ARC-Challenge", "test", True),
    "hellaswag": Definition("hellaswag", "hellaswag", "validation", True),
    "lambada_openai": Definition("lambada", "lambada_openai", "test", False),
    "openbookqa": Definition("openbookqa", "openbookqa/main", "test", True),
    "piqa": Definition("piqa", "piqa", "validation", True),
    "winogrande": Definition("winogrande", "winogrande/winogrande_xl", "validation", False),
}
# The harness's acc_norm divides by characters, its acc_bytes by UTF-8 bytes. Published numbers are the former; both are reported.
NORMALISED_BY: Mapping[str, Literal["characters", "bytes"]] = {"acc_norm": "characters", "acc_bytes": "bytes"}


class Request(NamedTuple):
    """How likely is `continuation` after `context`?"""

    context: str
    continuation: str


class _Document(NamedTuple):
    """A document as the harness gives it, and what the task's templates make of it, by the task's method."""

    row: Any
    texts: dict[str, Any]


@dataclass(frozen=True)
class Benchmark:
    """One benchmark, ready to be scored.

    Attributes:
        requests: of each document, in the order of its choices.
        fingerprint: of the requests and right answers.
    """

    name: BenchmarkName
    task: Any
    documents: tuple[_Document, ...]
    requests: tuple[tuple[Request, ...], ...]
    fingerprint: str

    @property
    def version(self) -> str:
        """Version of the task definition."""
        return str(self.task.VERSION)

    @property
    def texts(self) -> list[list[str]]:
        """Each document as text, once per choice: what is looked for in the training corpus."""
        return [[request.context + request.continuation for request in requests] for requests in self.requests]

    @property
    def chance(self) -> float:
        """Expected accuracy of guessing among each document's choices; 0 for a benchmark without choices."""
        if self.task.OUTPUT_TYPE != "multiple_choice":
            return 0.0
        return sum(1.0 / len(requests) for requests in self.requests) / len(self.requests)


def harness_version() -> str:
    """Name and version of the library, for the results."""
    from importlib.metadata import version

    return f"lm-eval {version('lm_eval')}"


def load_benchmark(name: BenchmarkName, source: HubBenchmarks | LocalBenchmarks, limit: int | Literal["all"]) -> Benchmark:
    """Reads the benchmark's documents and builds their zero-shot requests.

    Raises:
        DataError: the documents cannot be read, or are not in the hub's columns.
    """
    with _quiet():
        task = _load_task(name, source)
        try:
            documents = tuple(_render(task, row) for _, row in task.doc_iterator(limit=None if limit == "all" else limit))
            requests = tuple(_requests(task, document) for document in documents)
        except (KeyError, ValueError, TypeError) as error:
            raise _unusable(name, source, error) from None
    digest = hashlib.blake2b(digest_size=16)
    for document, asked in zip(documents, requests, strict=True):
        right = document.texts["doc_to_text" if task.multiple_input else "doc_to_target"]
        digest.update(repr((asked, right)).encode())
    return Benchmark(name, task, documents, requests, digest.hexdigest())


def score_metrics(
    benchmark: Benchmark, loglikelihoods: npt.NDArray[np.float64], is_greedy: npt.NDArray[np.bool_]
) -> list[tuple[MetricScore, ...]]:
    """The harness's own metrics at every depth.

    Shapes:
        loglikelihoods, is_greedy: [requests of all documents in order, N].
    """
    n_depths = loglikelihoods.shape[1]
    values: list[dict[str, list[float]]] = [{} for _ in range(n_depths)]
    at = 0
    with _quiet():
        for document, requests in zip(benchmark.documents, benchmark.requests, strict=True):
            here = slice(at, at + len(requests))
            at += len(requests)
            with _shown(benchmark.task, document):
                for depth in range(n_depths):
                    answers = list(zip(loglikelihoods[here, depth].tolist(), is_greedy[here, depth].tolist(), strict=True))
                    for metric, value in benchmark.task.process_results(document.row, answers).items():
                        values[depth].setdefault(metric, []).append(value)
        sums = loglikelihoods.sum(axis=0).tolist()
        return [
            tuple(_metric_score(benchmark.task, metric, items, total) for metric, items in at_depth.items())
            for at_depth, total in zip(values, sums, strict=True)
        ]


def _metric_score(task: Any, metric: str, items: Sequence[float], total: float) -> MetricScore:
    """One metric over all documents; a log-likelihood that is not finite (`total` shows it) leaves no number to report."""
    aggregate = task.aggregation()[metric]
    state, _ = finite(total)
    value: float | None = None
    if state == "ok":
        try:
            state, value = finite(float(aggregate(items)))
        except OverflowError:  # perplexity of an exit that was never trained
            state = "inf"
    return MetricScore(
        metric=metric,
        normalised_by=NORMALISED_BY.get(metric, "none"),
        state=state,
        value=value,
        stderr=float(mean_stderr(items)) if aggregate is mean and value is not None and len(items) > 1 else None,
    )


def _load_task(name: BenchmarkName, source: HubBenchmarks | LocalBenchmarks) -> Any:
    definition = DEFINITIONS[name]
    # Only the split that is scored is loaded; a group is the harness's way to change a task's settings.
    changes: dict[str, Any] = {"task": name, "training_split": None, "test_split": None, "validation_split": None}
    changes[f"{definition.split}_split"] = definition.split
    if definition.has_norm:
        metrics = ("acc", *NORMALISED_BY)
        changes["metric_list"] = [{"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in metrics]
    if isinstance(source, LocalBenchmarks):
        path = _local_file(Path(source.folder) / definition.local, definition.split)
        changes["custom_dataset"] = lambda **_: {definition.split: _read_local(path)}
    families = Path(lm_eval.tasks.__file__).parent
    manager = lm_eval.tasks.TaskManager(include_defaults=False, include_path=families / definition.family)
    try:
        return manager.load([{"group": "study", "task": [changes]}])["tasks"][name]
    except DataError:
        raise
    except Exception as error:  # the hub's client and the harness raise what they like for what they cannot use
        raise _unusable(name, source, error) from None


def _local_file(folder: Path, split: str) -> Path:
    found = sorted(folder.glob(f"{split}.parquet")) or sorted(folder.glob(f"{split}-*.parquet"))
    if len(found) != 1:
        what = "no" if not found else f"{len(found)}"
        raise DataError(
            f"benchmarks.source.folder: {what} files {folder / split}.parquet (or {split}-*.parquet), expected one; download the "
            "data set in the hub's columns or take the benchmark out of benchmarks.tasks"
        )
    return found[0]


def _read_local(path: Path) -> Any:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return datasets.Dataset(pq.read_table(path))
    except (pa.ArrowException, OSError) as error:
        reason = " ".join(str(error).split())[:200]
        raise DataError(f"{path}: cannot be read as parquet ({reason}); replace the file") from None


def _render(task: Any, row: Any) -> _Document:
    texts = {"doc_to_text": task.doc_to_text(row), "doc_to_target": task.doc_to_target(row)}
    if task.config.doc_to_choice is not None:
        texts["doc_to_choice"] = task.doc_to_choice(row)
    return _Document(row, texts)


def _requests(task: Any, document: _Document) -> tuple[Request, ...]:
    with _shown(task, document):
        context = task.fewshot_context(document.row, num_fewshot=0, gen_prefix=task.doc_to_prefix(document.row))
        instances = task.construct_requests(doc=document.row, ctx=context, metadata=(task.config.task, 0, 1))
    return tuple(Request(*one.args) for one in (instances if isinstance(instances, list) else [instances]))


@contextmanager
def _shown(task: Any, document: _Document) -> Iterator[None]:
    """Within, the task gives this document's texts without rendering its templates: a millisecond each time, at every depth."""
    for method, text in document.texts.items():
        setattr(task, method, lambda *_, text=text: text)
    try:
        yield
    finally:
        for method in document.texts:
            delattr(task, method)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the harness's remarks on its own defaults and the progress bars of `datasets`."""
    import datasets

    logger = logging.getLogger("lm_eval")
    level, had_bars = logger.level, datasets.is_progress_bar_enabled()
    logger.setLevel(logging.ERROR)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        if had_bars:
            datasets.enable_progress_bars()


def _unusable(name: str, source: HubBenchmarks | LocalBenchmarks, error: Exception) -> DataError:
    reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    if isinstance(source, LocalBenchmarks):
        return DataError(
            f"benchmark {name} in {source.folder}: not in the hub's columns ({reason}); compare with the data set that "
            "lm-evaluation-harness names"
        )
    return DataError(
        f"benchmark {name}: cannot be loaded from the hub ({reason}); check the network, or set benchmarks.source to "
        "{kind: files, folder: DIR} with a local copy"
    )
