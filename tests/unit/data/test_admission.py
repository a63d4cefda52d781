"""The split and the duplicates are decided by the text alone."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from components.config.problems import DataError
from components.data.admission import Admission, SeenHashes, Verdict
from components.data.sources import Document
from tests.unit.data.tiny_corpus import ListCorpus, sentences


def judge(texts: list[str], share: float = 0.2, piece: int = 7) -> list[Verdict]:
    admission, documents = Admission(share), list(ListCorpus(texts).documents())
    return [verdict for at in range(0, len(documents), piece) for verdict in admission.judge(documents[at : at + piece])]


def held_out(texts: list[str], share: float = 0.2) -> set[str]:
    return {verdict.document.text for verdict in judge(texts, share) if verdict.fate == "validation"}


def test_held_out_documents_stay_held_out_when_the_corpus_grows_or_is_shuffled() -> None:
    texts = sentences(200)
    before = held_out(texts)
    grown = texts + sentences(300, first=200)
    random.Random(0).shuffle(grown)
    assert held_out(grown) & set(texts) == before
    assert 20 < len(before) < 60


def test_a_larger_share_only_adds_to_the_held_out_documents() -> None:
    assert held_out(sentences(200), 0.1) < held_out(sentences(200), 0.3)


def test_the_share_is_met_on_many_documents() -> None:
    assert len(held_out(sentences(4000), 0.05)) == pytest.approx(200, abs=4 * np.sqrt(4000 * 0.05 * 0.95))  # four sigma


def test_copies_are_dropped_and_the_first_one_is_kept() -> None:
    texts = sentences(20)
    fates = [verdict.fate for verdict in judge([*texts, *texts[::-1], texts[3] + " "])]
    assert "duplicates" not in fates[:20]
    assert fates[20:40] == ["duplicates"] * 20
    assert fates[40] != "duplicates"


def test_text_without_content_is_empty() -> None:
    assert [verdict.fate for verdict in judge(["", " \n\t", "\u2003"])] == ["empty"] * 3


def test_a_document_that_its_source_rejected_keeps_the_reason_and_hides_no_copy() -> None:
    admission = Admission(0.2)
    rejected, kept = admission.judge([Document("a", "same", "a", "without_score"), Document("b", "same", "b")])
    assert rejected.fate == "without_score"
    assert kept.fate in ("train", "validation")


def test_a_lone_surrogate_is_an_error_that_names_the_row() -> None:
    with pytest.raises(DataError, match=r"list: row 1: the text is not valid UTF-8"):
        judge(["fine", "bad \ud800"])


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 9), max_size=20), max_size=20))
def test_seen_hashes_agree_with_a_plain_set(batches: list[list[int]]) -> None:
    seen, plain = SeenHashes(), set[int]()
    for batch in batches:
        expected = []
        for value in batch:
            expected.append(value not in plain)
            plain.add(value)
        assert seen.add(np.array(batch, np.uint64)).tolist() == expected


def test_seen_hashes_take_eight_bytes_a_document_in_few_runs() -> None:
    seen, generator = SeenHashes(), np.random.default_rng(0)
    for _ in range(300):
        seen.add(generator.integers(0, 2**64, 1000, np.uint64))
    assert sum(run.nbytes for run in seen._runs) == 8 * 300_000
    assert len(seen._runs) < 12, "about log2 of the number of batches"
