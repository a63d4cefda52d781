"""Bits per byte of a corpus against the sweep over the same documents packed on disk."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from components.config.benchmarks import TextCorpus
from components.config.problems import DataError
from components.data.documents import ValidationDocuments
from components.evaluation.corpora import pack_corpus, score_corpus
from components.evaluation.sweep import score_depths, sweep_depths
from components.models.cascade import Cascade
from components.models.streams import build_cascade
from tests.toys import toy_model
from tests.unit.data.tiny_corpus import byte_tokenizer, pack, sentences
from tests.unit.models.test_streams import toy_streams

TOKENIZER = byte_tokenizer()
TEXTS = ["Ünïcödé first, in more bytes than characters.", *sentences(7)]


def _corpus(folder: Path, texts: list[str], max_bytes: int = 10**6) -> TextCorpus:
    folder.mkdir(exist_ok=True)
    for i, text in enumerate(texts):
        (folder / f"{i:03}.txt").write_text(text, encoding="utf-8")
    return TextCorpus(paths=(f"{folder}/*.txt",), text_column="text", max_bytes=max_bytes)


def _model(**changes: str) -> Cascade:
    model = Cascade(toy_model(**changes), 257)
    model.init_weights(2)
    return model.eval()


@pytest.mark.parametrize("attention", ["leak", "block_diagonal"])
@pytest.mark.parametrize("batch_rows", [3, 64])
def test_scores_are_those_of_the_validation_sweep(tmp_path: Path, attention: str, batch_rows: int) -> None:
    model = _model(document_attention=attention)
    corpus = pack_corpus("toy", _corpus(tmp_path / "texts", TEXTS), TOKENIZER, 32)
    scores = score_corpus(model, corpus, TOKENIZER.eos_id, batch_rows)
    ids = TOKENIZER.encode_batch(TEXTS)
    documents = ValidationDocuments(
        tuple(TEXTS), np.array([len(one) + 1 for one in ids]), np.array([len(text.encode()) for text in TEXTS])
    )
    sweep = sweep_depths(model, pack(tmp_path / "rows", ids, 32, vocab_size=257), documents, 4)
    expected = score_depths(model, sweep, documents, 0, 32)
    assert scores.n_bytes == sum(len(text.encode()) for text in TEXTS) != sum(map(len, TEXTS))
    assert scores.n_tokens == documents.n_tokens.sum()
    for ours, theirs in zip(scores.depths, expected.depths, strict=True):
        assert ours.nll_nats == pytest.approx(theirs.nll_nats, rel=1e-6)  # float32 losses, other batches
        assert ours.bits_per_byte == pytest.approx(theirs.bits_per_byte, rel=1e-6)
        assert ours.blocks_run == theirs.blocks_run == ours.depth


def test_every_number_of_streams_is_scored(tmp_path: Path) -> None:
    model = build_cascade(toy_model().model_copy(update={"streams": toy_streams(n_streams=2, sampled=(1, 2))}), 257)
    model.init_weights(2)
    corpus = pack_corpus("toy", _corpus(tmp_path / "texts", TEXTS), TOKENIZER, 32)
    scores = score_corpus(model.eval(), corpus, TOKENIZER.eos_id, 4)
    assert [(one.n_streams, one.depth) for one in scores.depths] == [(n, k) for n in (1, 2) for k in range(1, 6)]
    ids = TOKENIZER.encode_batch(TEXTS)
    documents = ValidationDocuments(tuple(TEXTS), np.array([len(one) + 1 for one in ids]), np.ones(8, np.int64))
    rows = pack(tmp_path / "rows", ids, 32, vocab_size=257)
    for n in (1, 2):
        expected = sweep_depths(model, rows, documents, 4, n_streams=n).nll_nats.sum(axis=0) / documents.n_tokens.sum()
        ours = [one.nll_nats for one in scores.depths if one.n_streams == n]
        np.testing.assert_allclose(ours, expected, rtol=1e-6)  # float32 losses, the same batches


def test_a_model_that_knows_nothing_needs_log2_of_the_vocabulary(tmp_path: Path) -> None:
    model = _model()
    for out in model.exits:
        out.head.weight.data.zero_()
    corpus = pack_corpus("toy", _corpus(tmp_path / "texts", ["abcdefghij"]), TOKENIZER, 32)
    (first, *_) = score_corpus(model, corpus, TOKENIZER.eos_id, 4).depths
    assert first.bits_per_byte == pytest.approx(11 * math.log2(257) / 10)  # ten bytes and the end of the text, over ten bytes


def test_bytes_are_those_of_the_documents_that_were_scored(tmp_path: Path) -> None:
    settings = _corpus(tmp_path / "texts", ["a" * 40, " \n", "b" * 40, "c" * 40, "d" * 40], max_bytes=81)
    corpus = pack_corpus("toy", settings, TOKENIZER, 16)
    assert (corpus.n_bytes, corpus.n_documents, corpus.n_empty) == (120, 3, 1)
    assert corpus.n_tokens == 123
    other = pack_corpus("toy", settings.model_copy(update={"max_bytes": 1000}), TOKENIZER, 16)
    assert other.fingerprint != corpus.fingerprint


def test_a_number_that_is_not_finite_is_flagged(tmp_path: Path) -> None:
    model = _model()
    model.exits[-1].head.weight.data.fill_(math.nan)
    corpus = pack_corpus("toy", _corpus(tmp_path / "texts", TEXTS), TOKENIZER, 32)
    *_, before, last = score_corpus(model, corpus, TOKENIZER.eos_id, 4).depths
    assert (before.state, last.state, last.nll_nats, last.bits_per_byte) == ("ok", "nan", None, None)


def test_problems_name_the_corpus_and_its_key(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^benchmarks.corpora.books.paths: no file matches"):
        pack_corpus("books", TextCorpus(paths=(f"{tmp_path}/*.txt",), text_column="text", max_bytes=9), TOKENIZER, 16)
    with pytest.raises(DataError, match=r"^benchmarks.corpora.books: no text in its files \(2 empty documents\)"):
        pack_corpus("books", _corpus(tmp_path / "texts", ["", " "]), TOKENIZER, 16)


def test_a_lone_surrogate_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "whole"}\n{"text": "half \\ud83d"}\n')
    with pytest.raises(DataError, match=r"a\.jsonl: line 2: the text is not valid UTF-8 \(lone surrogate at character 5\)"):
        pack_corpus("books", TextCorpus(paths=(f"{tmp_path}/*.jsonl",), text_column="text", max_bytes=99), TOKENIZER, 16)
