"""Our scores of every benchmark against the harness's own Hugging Face backend, and the known overlap of real data.

A cascade of one segment is a Llama: exported to `transformers`, with a tokenizer that puts the end-of-text token first, the harness
runs it with its own request encoding, batching, log-likelihoods and metrics.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from bench.peers import llama_of
from components.config.benchmarks import LocalBenchmarks
from components.config.schema import Segment
from components.data.tokenizer import Tokenizer
from components.evaluation.benchmarks import Prepared, RequestScores, benchmark_scores, prepare_benchmark, score_requests
from components.evaluation.contamination import NgramIndex
from components.evaluation.harness import DEFINITIONS, load_benchmark
from components.models.cascade import Cascade
from tests.toys import toy_model
from tests.unit.evaluation.toy_benchmarks import NAMES, word_tokenizer, write_benchmarks

DEPTH = 3


def _cascade(vocab_size: int) -> Cascade:
    model = Cascade(toy_model(segments=(Segment(n_blocks=DEPTH, d_model=32),)), vocab_size)
    model.init_weights(1)
    return model.eval()


def _backend(model: Cascade, tokenizer: Tokenizer, window_tokens: int) -> Any:
    from lm_eval.models.huggingface import HFLM
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    raw = type(tokenizer.raw).from_str(tokenizer.raw.to_str())
    eos = tokenizer.eos_token
    raw.post_processor = TemplateProcessing(single=f"{eos} $A", special_tokens=[(eos, tokenizer.eos_id)])
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=eos, bos_token=eos, pad_token=eos)
    return HFLM(pretrained=llama_of(model, 64, "eager"), tokenizer=fast, batch_size=4, max_length=window_tokens, device="cpu")


def _compare(prepared: Prepared, scores: RequestScores, backend: Any) -> None:
    """Per-request log-likelihoods within 1e-4, and the same metrics."""
    from lm_eval.evaluator import evaluate

    name = prepared.benchmark.name
    iterations = 0 if name == "lambada_openai" else 1  # any number gives the closed form for a mean; LAMBADA would resample
    results = evaluate(
        lm=backend, task_dict={"tasks": {name: prepared.benchmark.task}}, limit=len(prepared.benchmark.documents),
        bootstrap_iters=iterations, log_samples=True,
    )  # fmt: skip
    answers = [answer for sample in results["samples"][name] for (answer,) in sample["resps"]]
    # float32, two implementations of the same sums
    np.testing.assert_allclose(scores.loglikelihoods[:, DEPTH - 1], [answer[0] for answer in answers], atol=1e-4)
    assert scores.is_greedy[:, DEPTH - 1].tolist() == [answer[1] for answer in answers]
    theirs = results["results"][name]
    record = benchmark_scores(prepared, [scores])
    assert record.n == theirs["sample_len"]
    for metric in record.depths[DEPTH - 1].metrics:
        assert metric.value == pytest.approx(theirs[f"{metric.metric},none"], rel=1e-4)
        if iterations:
            assert metric.stderr == pytest.approx(theirs[f"{metric.metric}_stderr,none"])


@pytest.fixture(autouse=True)
def _quiet_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("lm_eval"), "level", logging.ERROR)


@pytest.mark.parametrize("window_tokens", [64, 26])
def test_toy_benchmarks_score_as_with_the_harness_s_own_backend(tmp_path: Path, window_tokens: int) -> None:
    source, tokenizer = write_benchmarks(tmp_path), word_tokenizer()
    model = _cascade(tokenizer.vocab_size)
    backend = _backend(model, tokenizer, window_tokens)
    shortened = 0
    for name in NAMES:
        prepared = prepare_benchmark(load_benchmark(name, source, "all"), tokenizer, window_tokens)
        assert prepared.n_split == 0  # where the backend fails
        shortened += prepared.n_shortened
        _compare(prepared, score_requests(model, prepared, 8), backend)
    assert (window_tokens == 26) == (shortened > 0)


@pytest.mark.parametrize("name", NAMES)
def test_real_benchmarks_score_as_with_the_harness_s_own_backend(shared_data: Path, tmp_path: Path, name: Any) -> None:
    from tokenizers import Tokenizer as RawTokenizer

    raw = RawTokenizer.from_file(str(shared_data / "smollm2-tokenizer" / "tokenizer.json"))
    tokenizer = Tokenizer(raw, "<|endoftext|>", "smollm2")
    place = Path(DEFINITIONS[name].local) / f"{DEFINITIONS[name].split}.parquet"
    (tmp_path / place).parent.mkdir(parents=True)
    pq.write_table(pq.read_table(shared_data / "benchmarks" / place).slice(0, 8), tmp_path / place)
    source = LocalBenchmarks(kind="files", folder=str(tmp_path))
    model = _cascade(tokenizer.vocab_size)
    prepared = prepare_benchmark(load_benchmark(name, source, "all"), tokenizer, 64)
    _compare(prepared, score_requests(model, prepared, 8), _backend(model, tokenizer, 64))


def test_sciq_supports_stand_in_openstax_and_the_seven_do_not(shared_data: Path) -> None:
    """Known from a separate count: 119 of SciQ's 1,000 validation supports were taken from the textbooks."""
    supports = pq.read_table(shared_data / "benchmarks" / "sciq" / "validation.parquet").column("support").to_pylist()
    source = LocalBenchmarks(kind="files", folder=str(shared_data / "benchmarks"))
    seven = {name: load_benchmark(name, source, 100).texts for name in NAMES}  # the whole of them has none either
    index = NgramIndex({"sciq": [[support] for support in supports], **seven})
    for text in pq.read_table(shared_data / "openstax-ccby" / "openstax.parquet").column("text").to_pylist():
        index.see(text)
    found = {name: len(overlap.documents) for name, overlap in index.overlaps().items()}
    assert found == {"sciq": 119, **dict.fromkeys(NAMES, 0)}
