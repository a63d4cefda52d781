"""Requests as tokens, their windows, and the one-pass scores against one forward pass per request and depth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from components.config.problems import DataError
from components.data.documents import ValidationDocuments
from components.data.tokenizer import Tokenizer
from components.evaluation.benchmarks import (
    Encoded,
    Prepared,
    benchmark_scores,
    cut_windows,
    encode_requests,
    prepare_benchmark,
    score_cells,
    score_requests,
)
from components.evaluation.harness import Request, load_benchmark
from components.evaluation.sweep import sweep_depths
from components.models.cascade import Cascade
from components.models.repaired import Repaired
from components.models.streams import build_cascade
from tests.toys import toy_model
from tests.unit.data.tiny_corpus import pack
from tests.unit.evaluation.toy_benchmarks import NAMES, word_tokenizer, write_benchmarks
from tests.unit.models.test_streams import toy_streams

VOCAB = 300
TOKENIZER = word_tokenizer()


def _model(kind: type[Cascade] = Cascade, *more: object) -> Cascade:
    model = kind(toy_model(), VOCAB, *more)
    model.init_weights(3)
    return model.eval()


def _encode(context: str, continuation: str) -> Encoded:
    return encode_requests([Request(context, continuation)], TOKENIZER, "toy")[0]


def _prepared(requests: list[Request], window_tokens: int = 64, tokenizer: Tokenizer = TOKENIZER) -> Prepared:
    encoded = encode_requests(requests, tokenizer, "toy")
    windows = tuple(window for i, request in enumerate(encoded) for window in cut_windows(i, request, window_tokens))
    return Prepared(None, tuple(encoded), windows, window_tokens)  # type: ignore[arg-type]


def _slow(model: Cascade, tokens: list[int], first: int, depth: int) -> tuple[float, bool]:
    """Log-likelihood and greediness of tokens[first:], from the logits of one unpadded row."""
    with torch.no_grad():
        logp = model(torch.tensor([tokens[:-1]]), depth)[0].log_softmax(-1)
    wanted = torch.tensor(tokens[first:])
    scored = logp[first - 1 :]
    return float(scored.gather(1, wanted[:, None]).sum()), bool((scored.argmax(-1) == wanted).all())


REQUESTS = [Request("Question: the cat?", " the dog"), Request("", "swim in the world"), Request("the horse", " does"),
            Request("Answer:", " fed the eagle on day 7, and again on day 8.")]  # fmt: skip


def test_end_of_text_starts_every_request_exactly_once() -> None:
    for request in REQUESTS:
        encoded = _encode(*request)
        assert encoded.tokens[0] == TOKENIZER.eos_id
        assert (encoded.tokens[1:] != TOKENIZER.eos_id).all()
        assert encoded.first >= 1
        assert TOKENIZER.decode(encoded.tokens[encoded.first :].tolist()) == request.continuation


def test_without_context_all_of_the_text_is_scored() -> None:
    assert _encode("", "the cat").first == 1


def test_a_token_that_spans_the_border_is_scored() -> None:
    encoded = _encode("the wor", "ld")
    assert TOKENIZER.decode(encoded.tokens[encoded.first :].tolist()) == " world"  # one token; `the` before it is not scored
    # Context and continuation add up to the whole.
    model, tokens = _model(), encoded.tokens.tolist()
    (scores,) = score_requests(model, _prepared([Request("the wor", "ld")]), 1).loglikelihoods
    context = [_slow(model, tokens[: encoded.first], 1, depth)[0] for depth in range(1, 6)]
    whole = [_slow(model, tokens, 1, depth)[0] for depth in range(1, 6)]
    np.testing.assert_allclose(scores + context, whole, atol=1e-4)  # float32 logits of about ten tokens


def test_spaces_at_the_end_of_the_context_belong_to_the_continuation() -> None:
    with_space, without = _encode("the cat ", "swim"), _encode("the cat", " swim")
    assert with_space.first == without.first
    assert with_space.tokens.tolist() == without.tokens.tolist()


def test_an_empty_continuation_is_refused_by_name() -> None:
    with pytest.raises(DataError, match="benchmark toy: request 1 has an empty continuation"):
        encode_requests([Request("a", " b"), Request("the cat", "")], TOKENIZER, "toy")


@given(st.text(max_size=12), st.text(min_size=1, max_size=12))
@settings(max_examples=200, deadline=None)
def test_scored_tokens_hold_the_whole_continuation(context: str, continuation: str) -> None:
    encoded = _encode(context, continuation)
    assert 1 <= encoded.first < len(encoded.tokens)
    before = TOKENIZER.encode_batch([context.rstrip()])[0]
    assert encoded.tokens[1 : encoded.first].tolist() == before[: encoded.first - 1]
    assert TOKENIZER.decode(encoded.tokens[1:].tolist()) == context + continuation


def test_a_context_that_is_too_long_loses_its_beginning() -> None:
    encoded = Encoded(np.arange(30), 25)
    assert list(cut_windows(4, encoded, 40)) == [(4, 0, 25, 30)]
    assert list(cut_windows(4, encoded, 29)) == [(4, 0, 25, 30)]
    assert list(cut_windows(4, encoded, 10)) == [(4, 19, 25, 30)]
    assert list(cut_windows(4, encoded, 5)) == [(4, 24, 25, 30)]


@pytest.mark.parametrize(("first", "window_tokens"), [(1, 4), (3, 4), (12, 7), (1, 1), (20, 8)])
def test_a_continuation_that_is_too_long_is_scored_token_by_token_once(first: int, window_tokens: int) -> None:
    windows = list(cut_windows(0, Encoded(np.arange(31), first), window_tokens))
    assert [token for window in windows for token in range(window.first, window.end)] == list(range(first, 31))
    for window in windows:
        assert window.end - 1 - window.begin <= window_tokens
        assert window.first - window.begin >= min(window.first, (window_tokens + 1) // 2)


@pytest.mark.parametrize("window_tokens", [64, 6])
def test_one_pass_equals_a_forward_pass_per_request_and_depth(window_tokens: int) -> None:
    model, prepared = _model(), _prepared(REQUESTS, window_tokens)
    scores = score_requests(model, prepared, batch_rows=2)
    assert (window_tokens == 64) == (len(prepared.windows) == len(REQUESTS))
    for i, encoded in enumerate(prepared.encoded):
        for depth in range(1, 6):
            parts = [
                _slow(model, encoded.tokens[window.begin : window.end].tolist(), window.first - window.begin, depth)
                for window in prepared.windows
                if window.request == i
            ]
            assert scores.loglikelihoods[i, depth - 1] == pytest.approx(sum(part[0] for part in parts), abs=1e-4)  # float32
            assert scores.is_greedy[i, depth - 1] == all(part[1] for part in parts)


def test_filling_and_batches_do_not_matter() -> None:
    model, prepared = _model(), _prepared(REQUESTS)
    together, alone = (score_requests(model, prepared, n).loglikelihoods for n in (64, 1))
    np.testing.assert_allclose(together, alone, atol=1e-5)  # float32 sums of the same terms


def test_every_depth_runs_its_own_blocks_only() -> None:
    scores = score_requests(_model(), _prepared(REQUESTS), 4)
    assert scores.blocks_run == (1, 2, 3, 4, 5)
    assert len({round(value, 6) for value in scores.loglikelihoods[0].tolist()}) == 5


def test_the_most_likely_continuation_is_greedy() -> None:
    model = _model()
    tokens = [TOKENIZER.eos_id]
    for _ in range(3):
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens]), 5)[0, -1].argmax()))
    other = [*tokens[:-1], (tokens[-1] + 1) % VOCAB]
    encoded = (Encoded(np.array(tokens), 1), Encoded(np.array(other), 1))
    windows = tuple(window for i, one in enumerate(encoded) for window in cut_windows(i, one, 8))
    scores = score_requests(model, Prepared(None, encoded, windows, 8), 2)  # type: ignore[arg-type]
    assert scores.is_greedy[:, -1].tolist() == [True, False]


def test_a_document_scores_as_on_the_validation_set(tmp_path: Path) -> None:
    model, text = _model(), "fed the salmon on day 3"
    ids = TOKENIZER.encode_batch([text])[0]
    rows = pack(tmp_path / "rows", [ids], seq_len=40, vocab_size=VOCAB)
    documents = ValidationDocuments(("d",), np.array([len(ids) + 1]), np.array([len(text)]))
    validation = sweep_depths(model, rows, documents, 1).nll_nats[0]
    scores = score_requests(model, _prepared([Request("", text)]), 1).loglikelihoods[0]
    end = [_slow(model, [0, *ids, 0], len(ids) + 1, depth)[0] for depth in range(1, 6)]
    np.testing.assert_allclose(-scores - end, validation, atol=1e-4)  # float32 sums


@pytest.mark.parametrize("part", ["head", "block"])
def test_a_repaired_model_is_read_through_its_repairs(part: str) -> None:
    model = _model(Repaired, part, (1, 3))
    for parameter in model.repairs.parameters():  # type: ignore[operator]
        torch.nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(1))
    prepared = _prepared(REQUESTS)
    scores = score_requests(model, prepared, 4)
    for depth in (1, 2, 3):
        encoded = prepared.encoded[3]
        expected = _slow(model, encoded.tokens.tolist(), encoded.first, depth)[0]
        assert scores.loglikelihoods[3, depth - 1] == pytest.approx(expected, abs=1e-4)


def test_every_number_of_streams_is_scored(tmp_path: Path) -> None:
    settings = toy_model().model_copy(update={"streams": toy_streams(n_streams=4, sampled=(1, 2, 4))})
    model = build_cascade(settings, VOCAB)
    model.init_weights(3)
    prepared = prepare_benchmark(load_benchmark("piqa", write_benchmarks(tmp_path), 2), TOKENIZER, 64)
    cells = score_cells(model.eval(), prepared, 8)
    for cell in cells:
        encoded = prepared.encoded[1]
        with model.running(cell.n_streams):
            expected = _slow(model, encoded.tokens.tolist(), encoded.first, 4)[0]
        assert cell.loglikelihoods[1, 3] == pytest.approx(expected, abs=1e-4)  # float32
    record = benchmark_scores(prepared, cells)
    assert [(at.n_streams, at.depth) for at in record.depths] == [(n, k) for n in (1, 2, 4) for k in range(1, 6)]


def test_record_counts_what_was_cut(tmp_path: Path) -> None:
    source = write_benchmarks(tmp_path)
    model = _model()
    for name in NAMES:
        prepared = prepare_benchmark(load_benchmark(name, source, 3), TOKENIZER, 8)
        record = benchmark_scores(prepared, score_cells(model, prepared, 8))
        assert (record.benchmark, record.n, len(record.depths)) == (name, 3, 5)
        assert record.n_shortened + record.n_split > 0
        assert [at.blocks_run for at in record.depths] == [1, 2, 3, 4, 5]
        assert all(metric.state == "ok" for at in record.depths for metric in at.metrics)
