"""The stage pack: nothing lost, the same bytes every time, and a validation set that its documents file describes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from components.config.problems import DataError, ResultsError
from components.data import tokenization
from components.data.documents import read_documents
from components.data.manifest import DataManifest
from components.data.packing import pack_study
from components.data.stream import IGNORED, PackedRows, inputs_and_labels
from components.data.tokenization import tokenize_corpus
from tests.unit.data.tiny_corpus import ListCorpus, byte_tokenizer, sentences

TOKENIZER = byte_tokenizer()


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several pieces and several shards, as in a large corpus."""
    monkeypatch.setattr(tokenization, "CHARACTERS_PER_PIECE", 500)


def build(texts: list[str], folder: Path, max_tokens: int = 10**9, seq_len: int = 32) -> DataManifest:
    (folder / "tokens").mkdir(parents=True)
    tokenize_corpus(ListCorpus(texts), TOKENIZER, 0.2, folder / "tokens", None, lambda n: None, 2000)
    return pack_study(folder / "tokens", folder / "data", seq_len, max_tokens, lambda n: None)


def stream_of(folder: Path) -> list[int]:
    rows = PackedRows.open(folder)
    _, labels = inputs_and_labels(*rows.rows(range(len(rows))))
    return labels[labels != IGNORED].tolist()


def documents_of(stream: list[int]) -> list[str]:
    texts, ids = [], []
    for token in stream:
        if token == TOKENIZER.eos_id:
            texts.append(TOKENIZER.decode(ids))
            ids = []
        else:
            ids.append(token)
    assert not ids, "the stream ends with EOS"
    return texts


def test_training_documents_come_back_whole_in_the_order_of_the_corpus(tmp_path: Path) -> None:
    texts = sentences(150)
    manifest = build(texts, tmp_path)
    trained = documents_of(stream_of(tmp_path / "data" / "train"))
    held = documents_of(stream_of(tmp_path / "data" / "validation"))
    assert trained == [text for text in texts if text not in set(held)]
    assert sorted(trained + held) == sorted(texts)
    assert len(trained) == manifest.train.header.n_documents


def test_tokens_in_minus_tokens_out_is_the_reported_waste(tmp_path: Path) -> None:
    manifest = build(sentences(150), tmp_path, max_tokens=300)
    for split in (manifest.train, manifest.validation):
        header = split.header
        counted = len(stream_of(tmp_path / "data" / header.split))
        assert header.tokens_in - counted == header.tokens_dropped == 0
        assert header.tokens_out == counted
        assert header.n_rows * header.seq_len - counted == split.padding_tokens < header.seq_len


def test_packing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        build(sentences(120) + sentences(10), tmp_path / name, max_tokens=300)
    one, two = (sorted(path for path in (tmp_path / name / "data").rglob("*") if path.is_file()) for name in ("one", "two"))
    assert [path.name for path in one] == [path.name for path in two]
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_the_fingerprint_follows_the_content_of_its_own_split(tmp_path: Path) -> None:
    base = build(sentences(120), tmp_path / "base", 300)
    longer_rows = build(sentences(120), tmp_path / "rows", 300, seq_len=16)
    less_held_out = build(sentences(120), tmp_path / "held", 100)
    grown = build(sentences(200), tmp_path / "grown", 300)
    fingerprints = [m.train.header.fingerprint for m in (base, longer_rows, less_held_out, grown)]
    assert fingerprints[0] == fingerprints[2]
    assert len(set(fingerprints)) == 3
    assert base.validation.header.fingerprint not in (base.train.header.fingerprint, less_held_out.validation.header.fingerprint)


def test_validation_takes_documents_in_hash_order_until_the_limit_and_counts_the_rest(tmp_path: Path) -> None:
    whole = build(sentences(200), tmp_path / "whole")
    part = build(sentences(200)[::-1], tmp_path / "part", max_tokens=400)
    all_held = documents_of(stream_of(tmp_path / "whole" / "data" / "validation"))
    some_held = documents_of(stream_of(tmp_path / "part" / "data" / "validation"))
    assert some_held == all_held[: len(some_held)], "the order of the corpus plays no part"
    sizes = np.cumsum([len(text.encode()) + 1 for text in all_held])
    assert sizes[len(some_held) - 2] < 400 <= sizes[len(some_held) - 1]
    assert part.validation.unused_documents == len(all_held) - len(some_held)
    assert part.validation.unused_tokens == whole.validation.header.tokens_in - part.validation.header.tokens_in
    trained = set(documents_of(stream_of(tmp_path / "part" / "data" / "train")))
    assert not trained & set(all_held), "unused documents are not trained on either"


def test_the_documents_file_describes_the_validation_stream(tmp_path: Path) -> None:
    manifest = build(sentences(150), tmp_path, max_tokens=500)
    documents = read_documents(tmp_path / "data" / "validation")
    texts = documents_of(stream_of(tmp_path / "data" / "validation"))
    assert documents.n_tokens.tolist() == [len(text.encode()) + 1 for text in texts]
    assert documents.n_bytes.tolist() == [len(text.encode()) for text in texts]
    assert [f"Document {name.removeprefix('doc-')}:" for name in documents.ids] == [text.split(" word")[0] for text in texts]
    assert int(documents.n_tokens.sum()) == PackedRows.open(tmp_path / "data" / "validation").header.tokens_out
    assert int(documents.n_bytes.sum()) == manifest.validation.bytes


def test_a_limit_of_one_token_keeps_one_document(tmp_path: Path) -> None:
    assert build(sentences(60), tmp_path, max_tokens=1).validation.header.n_documents == 1


@pytest.mark.parametrize("damage", ["truncate", "remove"])
def test_a_damaged_token_shard_is_an_error_that_names_it(tmp_path: Path, damage: str) -> None:
    build(sentences(150), tmp_path)
    shard = tmp_path / "tokens" / "train-00001.arrow"
    data = shard.read_bytes()
    shard.unlink()
    if damage == "truncate":
        shard.write_bytes(data[: len(data) // 2])
    with pytest.raises(DataError, match=r"train-00001\.arrow: missing, truncated or damaged"):
        pack_study(tmp_path / "tokens", tmp_path / "again", 32, 100, lambda n: None)
    assert not (tmp_path / "again").exists()


def test_a_missing_manifest_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ResultsError, match=r"manifest\.json: no such"):
        pack_study(tmp_path, tmp_path / "data", 32, 100, lambda n: None)


@pytest.mark.parametrize("content", [None, b"junk"])
def test_a_missing_or_damaged_documents_file_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "documents.arrow").write_bytes(content)
    with pytest.raises(DataError, match=r"documents\.arrow: missing, truncated or damaged"):
        read_documents(tmp_path)
