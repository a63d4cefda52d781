"""The streaming overlap search against sets of tuples, by hand, and on the known positive."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from components.config.problems import DataError
from components.data import tokenization
from components.data.tokenization import tokenize_corpus
from components.evaluation.contamination import NgramIndex, Overlap, search_corpus, shard_texts, words
from tests.unit.data.tiny_corpus import ListCorpus, byte_tokenizer, sentences

RUN = "one two three four five six seven eight nine ten eleven twelve thirteen"


def _found(documents: list[list[str]], corpus: list[str]) -> Overlap:
    index = NgramIndex({"toy": documents})
    for text in corpus:
        index.see(text)
    return index.overlaps()["toy"]


def _ngrams(text: str) -> set[tuple[str, ...]]:
    found = words(text)
    return {tuple(found[i : i + 13]) for i in range(len(found) - 12)}


def test_thirteen_words_in_a_row_are_an_overlap_and_twelve_are_not() -> None:
    assert _found([[RUN]], [f"before {RUN} after"]) == Overlap(1, (0,))
    twelve = RUN.removesuffix(" thirteen")
    assert _found([[RUN]], [f"before {twelve} after"]) == Overlap(1, ())
    assert _found([[twelve]], [RUN]) == Overlap(0, ())  # too short to be checked


def test_case_and_punctuation_do_not_matter_and_order_does() -> None:
    assert _found([[RUN]], [f"«{RUN.title().replace(' ', ', ')}!»"]).documents == (0,)
    assert _found([[RUN]], [" ".join(reversed(RUN.split()))]).documents == ()


def test_a_run_does_not_go_on_in_the_next_document() -> None:
    assert _found([[RUN]], [RUN[:20], RUN[20:]]).documents == ()


def test_any_text_of_a_document_counts_once() -> None:
    documents = [["nothing here"], ["nothing", f"{RUN} {RUN}"], [f"again {RUN}"]]
    assert _found(documents, [RUN, RUN]) == Overlap(2, (1, 2))


def test_benchmarks_are_told_apart() -> None:
    index = NgramIndex({"first": [["short"], [RUN]], "none": [], "second": [[f"{RUN} fourteen"], ["another text"]]})
    index.see("words that no benchmark has")
    index.see(RUN)
    assert index.overlaps() == {"first": Overlap(1, (1,)), "none": Overlap(0, ()), "second": Overlap(1, (0,))}
    assert (index.n_documents, index.n_words) == (2, 18)


def test_without_documents_nothing_is_found() -> None:
    assert _found([], [RUN]) == Overlap(0, ())


def test_search_agrees_with_sets_of_tuples() -> None:
    draw = random.Random(7)
    vocabulary = [f"w{i}" for i in range(4)]  # few words: many almost equal runs
    documents = [[" ".join(draw.choices(vocabulary, k=draw.randint(0, 30))) for _ in range(2)] for _ in range(300)]
    corpus = [" ".join(draw.choices([*vocabulary, "unknown"], weights=[9, 9, 9, 9, 1], k=400)) for _ in range(400)]
    corpus += [" ".join(documents[i][0].split()[2:]) for i in range(0, 300, 10)]
    seen = set().union(*map(_ngrams, corpus))
    expected = tuple(i for i, texts in enumerate(documents) if any(_ngrams(text) & seen for text in texts))
    assert 0 < len(expected) < 300
    found = _found(documents, corpus)
    assert found.documents == expected
    assert found.n_checked == sum(any(map(_ngrams, texts)) for texts in documents)


def test_texts_of_the_training_documents_come_back_from_their_tokens(tmp_path: Path) -> None:
    texts = [*sentences(60), "Ünïcödé, twice  spaced\n", "the characters <|endoftext|>"]
    tokenizer = byte_tokenizer()
    manifest = tokenize_corpus(ListCorpus(texts), tokenizer, 0.2, tmp_path, None, lambda _: None)
    found = [text for name in manifest.train.files for text in shard_texts(tmp_path / name, tokenizer)]
    assert len(found) == manifest.train.documents < len(texts)
    assert [text for text in texts if text in set(found)] == found
    assert sum(len(text.encode()) for text in found) == manifest.train.bytes


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    (tmp_path / "train-00000.arrow").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"train-00000.arrow: missing, truncated or damaged"):
        list(shard_texts(tmp_path / "train-00000.arrow", byte_tokenizer()))


@pytest.mark.parametrize("workers", [1, 2])
def test_shards_are_searched_one_by_one_or_side_by_side(tmp_path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many more shards than workers, one for each piece of the tokenizing stage: the last start when the first are merged."""
    monkeypatch.setattr(tokenization, "DOCUMENTS_PER_PIECE", 25)
    texts = [f"tiny {i}" for i in range(500)]
    texts[10], texts[490] = RUN, f"{RUN} fourteen"
    tokenizer = byte_tokenizer()
    manifest = tokenize_corpus(ListCorpus(texts), tokenizer, 0.01, tmp_path, None, lambda _: None, tokens_per_shard=1)
    assert len(manifest.train.files) == 20
    tokenizer.save(tmp_path, "bpe", 0)
    index = NgramIndex({"toy": [[RUN], ["two " + RUN], [RUN.removeprefix("one ") + " fourteen"], [RUN[::-1]]]})
    searched: list[int] = []
    search_corpus(index, tmp_path, manifest, tmp_path, workers, searched.append)
    assert index.overlaps()["toy"].documents == (0, 1, 2)
    assert sum(searched) == index.n_documents == manifest.train.documents
