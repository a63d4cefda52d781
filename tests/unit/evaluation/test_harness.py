"""The harness's tasks from local files: requests, chance, metrics by hand, and what is said about unusable files."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.config.benchmarks import BenchmarkName, HubBenchmarks, LocalBenchmarks
from components.config.problems import DataError
from components.evaluation.harness import DEFINITIONS, load_benchmark, score_metrics
from components.results import MetricScore
from tests.unit.data import hub_standin
from tests.unit.evaluation.toy_benchmarks import NAMES, write_benchmarks


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> LocalBenchmarks:
    return write_benchmarks(tmp_path_factory.mktemp("benchmarks"))


def _by_name(metrics: tuple[MetricScore, ...]) -> dict[str, MetricScore]:
    return {metric.metric: metric for metric in metrics}


FIRST_REQUESTS = {
    "arc_easy": ("Question: Which animal swims in river 0?\nAnswer:", " the cat does"),
    "arc_challenge": ("Question: Which animal swims in river 0?\nAnswer:", " the cat does"),
    "hellaswag": ("Riding: A man rides on day 0. He", " sees the cat."),
    "lambada_openai": ("On day 0 she looked at the cat for long, and fed the", " cat"),
    "openbookqa": ("Case 0: wings belong to", " cats"),
    "piqa": ("Question: Feed the cat \nAnswer:", " give it food"),
    "winogrande": ("The cat chased the ball because the cat", " was fast on day 0."),
}


@pytest.mark.parametrize("name", NAMES)
def test_requests_are_the_harness_s_own(name: BenchmarkName, source: LocalBenchmarks) -> None:
    benchmark = load_benchmark(name, source, "all")
    assert len(benchmark.documents) == 6
    assert tuple(benchmark.requests[0][0]) == FIRST_REQUESTS[name]
    assert benchmark.version == "1.0"


def test_chance_follows_the_number_of_choices(source: LocalBenchmarks) -> None:
    chance = {name: load_benchmark(name, source, "all").chance for name in NAMES}
    assert chance["arc_easy"] == pytest.approx((5 / 4 + 1 / 3) / 6)
    assert (chance["hellaswag"], chance["piqa"], chance["winogrande"], chance["lambada_openai"]) == (0.25, 0.5, 0.5, 0.0)


def test_limit_takes_the_first_documents_and_changes_the_fingerprint(source: LocalBenchmarks) -> None:
    whole, part = load_benchmark("piqa", source, "all"), load_benchmark("piqa", source, 2)
    assert part.requests == whole.requests[:2]
    assert part.fingerprint != whole.fingerprint
    assert load_benchmark("piqa", source, "all").fingerprint == whole.fingerprint


def test_metrics_by_hand(source: LocalBenchmarks) -> None:
    """PIQA's right answers alternate between `give it food` (12 characters) and `give it a very long walk` (24)."""
    benchmark = load_benchmark("piqa", source, 4)
    loglikelihoods = np.tile([[-10.0, -1.0], [-15.0, -30.0]], (4, 1))
    by_depth = score_metrics(benchmark, loglikelihoods, np.zeros((8, 2), bool))
    first, second = (_by_name(metrics) for metrics in by_depth)
    # Depth 1 chooses the short answer, or per character (-10 / 12 against -15 / 24) the long one: each is right in 2 of 4.
    assert (first["acc"].value, first["acc_norm"].value, first["acc_bytes"].value) == (0.5, 0.5, 0.5)
    assert first["acc"].stderr == pytest.approx((0.25 / 3) ** 0.5)
    assert [first[name].normalised_by for name in ("acc", "acc_norm", "acc_bytes")] == ["none", "characters", "bytes"]
    assert second["acc"].value == 0.5


def test_normalisation_by_characters_and_bytes_can_differ(tmp_path: Path) -> None:
    (tmp_path / "piqa").mkdir()
    row = {"goal": "Say it", "sol1": "éééé", "sol2": "eeeee", "label": 0}  # 4 characters in 8 bytes; 5 in 5
    pq.write_table(pa.Table.from_pylist([row]), tmp_path / "piqa" / "validation-00000-of-00001.parquet")
    benchmark = load_benchmark("piqa", LocalBenchmarks(kind="files", folder=str(tmp_path)), "all")
    (metrics,) = score_metrics(benchmark, np.array([[-6.0], [-5.0]]), np.zeros((2, 1), bool))
    scores = _by_name(metrics)  # per character 1.5 against 1, per byte 0.75 against 1
    assert (scores["acc"].value, scores["acc_norm"].value, scores["acc_bytes"].value) == (0.0, 0.0, 1.0)
    assert scores["acc"].stderr is None  # one document


def test_lambada_counts_greedy_words(source: LocalBenchmarks) -> None:
    benchmark = load_benchmark("lambada_openai", source, 3)
    (metrics,) = score_metrics(benchmark, np.log([[0.5], [0.5], [0.5]]), np.array([[True], [False], [True]]))
    scores = _by_name(metrics)
    assert scores["acc"].value == pytest.approx(2 / 3)
    assert scores["perplexity"].value == pytest.approx(2.0)
    assert scores["perplexity"].stderr is None


@pytest.mark.parametrize(("value", "state"), [(float("nan"), "nan"), (float("-inf"), "inf")])
def test_a_loglikelihood_that_is_not_finite_leaves_no_accuracy(source: LocalBenchmarks, value: float, state: str) -> None:
    benchmark = load_benchmark("openbookqa", source, 2)
    loglikelihoods = np.full((8, 2), -3.0)
    loglikelihoods[5, 0] = value
    bad, good = score_metrics(benchmark, loglikelihoods, np.zeros((8, 2), bool))
    assert {(metric.state, metric.value, metric.stderr) for metric in bad} == {(state, None, None)}
    assert {metric.state for metric in good} == {"ok"}


def test_perplexity_that_overflows_is_infinite(source: LocalBenchmarks) -> None:
    benchmark = load_benchmark("lambada_openai", source, 2)
    (metrics,) = score_metrics(benchmark, np.full((2, 1), -1000.0), np.zeros((2, 1), bool))
    scores = _by_name(metrics)
    assert (scores["perplexity"].state, scores["perplexity"].value) == ("inf", None)
    assert (scores["acc"].state, scores["acc"].value) == ("ok", 0.0)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"benchmarks.source.folder: no files .*hellaswag/validation.parquet"):
        load_benchmark("hellaswag", LocalBenchmarks(kind="files", folder=str(tmp_path)), "all")


@pytest.mark.parametrize("name", NAMES)
def test_other_columns_are_refused(name: BenchmarkName, tmp_path: Path) -> None:
    definition = DEFINITIONS[name]
    path = tmp_path / definition.local / f"{definition.split}.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.table({"prompt": ["a"], "output": ["b"]}), path)
    with pytest.raises(DataError, match=f"benchmark {name} in .*not in the hub's columns"):
        load_benchmark(name, LocalBenchmarks(kind="files", folder=str(tmp_path)), "all")


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "piqa").mkdir()
    (tmp_path / "piqa" / "validation.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match=r"piqa/validation.parquet: cannot be read as parquet"):
        load_benchmark("piqa", LocalBenchmarks(kind="files", folder=str(tmp_path)), "all")


def test_the_hub_gives_the_same_benchmark_as_local_files(
    source: LocalBenchmarks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through a loopback stand-in, in a process of its own: the hub's client reads HF_ENDPOINT at import."""
    monkeypatch.setattr(hub_standin, "REPOSITORY", "baber/piqa")
    program = (
        "from components.config.benchmarks import HubBenchmarks\n"
        "from components.evaluation.harness import load_benchmark\n"
        "print(load_benchmark('piqa', HubBenchmarks(kind='hub'), 3).fingerprint)"
    )
    with hub_standin.HubStandIn(Path(source.folder) / "piqa") as hub:
        environment = {**os.environ, "HF_ENDPOINT": hub.endpoint, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_XET": "1"}
        command = [sys.executable, "-c", program]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [load_benchmark("piqa", source, 3).fingerprint]


def test_no_hub_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: object) -> None:
        raise ConnectionError("no route to the hub")

    monkeypatch.setattr(datasets, "load_dataset", fail)
    with pytest.raises(DataError, match=r"benchmark piqa: cannot be loaded from the hub .*no route.*set benchmarks.source"):
        load_benchmark("piqa", HubBenchmarks(kind="hub"), "all")


def test_loading_says_nothing_and_leaves_settings_alone(
    source: LocalBenchmarks, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    level = logging.getLogger("lm_eval").level
    load_benchmark("hellaswag", source, "all")
    out, err = capfd.readouterr()
    assert (out, err, caplog.messages) == ("", "", [])
    assert logging.getLogger("lm_eval").level == level
    assert datasets.is_progress_bar_enabled()
