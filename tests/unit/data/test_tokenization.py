"""Tokenizing a corpus: every document accounted for, held-out text never trained on, bounded pieces, exact budget."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from components.config.problems import DataError
from components.config.schema import Data
from components.data import tokenization
from components.data.admission import Admission
from components.data.manifest import TokensManifest
from components.data.tokenization import tokenize_corpus, tokenize_study, training_texts
from tests.unit.data.tiny_corpus import ListCorpus, byte_tokenizer, sentences

TOKENIZER = byte_tokenizer()


def tokenize(texts: list[str], folder: Path, budget: int | None = None, share: float = 0.2, shard: int = 10**9) -> TokensManifest:
    folder.mkdir(parents=True, exist_ok=True)
    return tokenize_corpus(ListCorpus(texts), TOKENIZER, share, folder, budget, lambda n: None, shard)


def texts_of(folder: Path, manifest: TokensManifest, split: str) -> list[str]:
    tables = [pa.ipc.open_file(folder / name).read_all() for name in getattr(manifest, split).files]
    return [TOKENIZER.decode(ids) for table in tables for ids in table.column("tokens").to_pylist()]


def test_every_document_is_accounted_for_and_comes_back_in_order(tmp_path: Path) -> None:
    texts = [*sentences(60), "", "  ", *sentences(5), "with \0 inside"]
    manifest = tokenize(texts, tmp_path)
    counts = manifest.documents
    assert (counts.total, counts.empty, counts.duplicates, counts.with_nul) == (68, 2, 5, 1)
    assert counts.train + counts.validation == 61
    trained, held = texts_of(tmp_path, manifest, "train"), texts_of(tmp_path, manifest, "validation")
    kept = [*texts[:60], texts[-1]]
    assert [text for text in kept if text in set(trained)] == trained
    assert [text for text in kept if text in set(held)] == held
    assert len(trained) + len(held) == 61
    assert manifest.train.tokens == sum(len(text.encode()) + 1 for text in trained), "one EOS per document"
    assert manifest.train.bytes == sum(len(text.encode()) for text in trained)


def test_the_size_of_pieces_and_shards_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = sentences(100) + sentences(20)
    whole = tokenize(texts, tmp_path / "whole")
    monkeypatch.setattr(tokenization, "CHARACTERS_PER_PIECE", 200)
    small = tokenize(texts, tmp_path / "small", shard=1000)
    assert len(small.train.files) > 3
    assert texts_of(tmp_path / "small", small, "train") == texts_of(tmp_path / "whole", whole, "train")
    assert small.documents == whole.documents
    assert small.corpus_fingerprint == whole.corpus_fingerprint
    assert small.train.fingerprint == whole.train.fingerprint


@pytest.mark.parametrize("piece", [100, 10**6])
def test_the_budget_ends_with_the_document_that_reaches_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(tokenization, "CHARACTERS_PER_PIECE", piece)
    texts = sentences(200)
    everything = tokenize(texts, tmp_path / "all")
    lengths = [len(text.encode()) + 1 for text in texts_of(tmp_path / "all", everything, "train")]
    budget = sum(lengths[:50]) - 1
    manifest = tokenize(texts, tmp_path / "budget", budget=budget)
    assert manifest.train.documents == 50
    assert manifest.train.tokens == budget + 1
    last = texts_of(tmp_path / "budget", manifest, "train")[-1]
    assert manifest.documents.total == texts.index(last) + 1, "later documents are not counted, though they were read ahead"


def test_held_out_documents_never_train_the_tokenizer() -> None:
    texts = sentences(100)
    admission = Admission(0.3)
    held = {
        verdict.document.text for verdict in admission.judge(list(ListCorpus(texts).documents())) if verdict.fate == "validation"
    }
    trained = list(training_texts(ListCorpus(texts), 0.3))
    assert held
    assert not held & set(trained)
    assert set(trained) | held == set(texts)


def test_the_corpus_fingerprint_sees_order_text_and_split(tmp_path: Path) -> None:
    texts = sentences(50)
    variants = [texts, texts[::-1], texts[:-1], [*texts[:-1], texts[-1] + "!"]]
    prints = [tokenize(variant, tmp_path / str(i)).corpus_fingerprint for i, variant in enumerate(variants)]
    prints.append(tokenize(texts, tmp_path / "share", share=0.4).corpus_fingerprint)
    assert len(set(prints)) == 5
    assert tokenize(texts, tmp_path / "again").corpus_fingerprint == prints[0]


@pytest.mark.parametrize("texts", [[], ["", " "]])
def test_an_empty_corpus_is_an_error(tmp_path: Path, texts: list[str]) -> None:
    with pytest.raises(DataError, match=f"the corpus is empty: {len(texts)} documents"):
        tokenize(texts, tmp_path)
    with pytest.raises(DataError, match="the corpus is empty"):
        list(training_texts(ListCorpus(texts), 0.2))


def test_no_validation_documents_is_an_error_that_says_how_to_mend_it(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no validation documents: none of the 3 .* raise data\.validation_share or add documents"):
        tokenize(sentences(3), tmp_path, share=0.0001)


def test_no_training_documents_is_an_error_that_says_how_to_mend_it(tmp_path: Path) -> None:
    held = next(
        text for text in sentences(50) if Admission(0.2)._judge_alone(next(ListCorpus([text]).documents())).fate == "validation"
    )
    with pytest.raises(DataError, match=r"no train documents.*lower data\.validation_share"):
        tokenize([held], tmp_path)


def study_data(corpus: Path) -> Data:
    return Data.model_validate(
        {
            "source": {"kind": "files", "paths": (str(corpus),), "text_column": "text"},
            "tokenizer": {"kind": "bpe", "vocab_size": 300, "training_bytes": 10_000},
            "seq_len": 32,
            "validation_share": 0.2,
            "validation_max_tokens": 500,
            "stream_seed": 1,
        }
    )


def corpus_of_files(folder: Path) -> Path:
    folder.mkdir()
    for i, text in enumerate(sentences(80)):
        (folder / f"{i:03d}.txt").write_text(text)
    return folder / "*.txt"


def test_a_failed_run_leaves_the_old_folders_and_nothing_else(tmp_path: Path) -> None:
    data = study_data(corpus_of_files(tmp_path / "corpus"))
    tokenize_study(data, tmp_path / "out" / "tokenizer", tmp_path / "out" / "tokens", lambda n: None)
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    (tmp_path / "corpus" / "zzz.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(DataError, match=r"zzz\.txt"):
        tokenize_study(data, tmp_path / "out" / "tokenizer", tmp_path / "out" / "tokens", lambda n: None)
    assert {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()} == before


def test_what_a_killed_run_left_is_cleared_by_the_next_one(tmp_path: Path) -> None:
    data = study_data(corpus_of_files(tmp_path / "corpus"))
    (tmp_path / "out" / ".tokens.partial").mkdir(parents=True)
    (tmp_path / "out" / ".tokens.partial" / "train-00099.arrow").write_bytes(b"half")
    tokenize_study(data, tmp_path / "out" / "tokenizer", tmp_path / "out" / "tokens", lambda n: None)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["tokenizer", "tokens"]
    assert not list((tmp_path / "out").rglob("train-00099.arrow"))


def test_the_progress_adds_up_to_the_training_tokens(tmp_path: Path) -> None:
    reported: list[int] = []
    data = study_data(corpus_of_files(tmp_path / "corpus"))
    manifest = tokenize_study(data, tmp_path / "tokenizer", tmp_path / "tokens", reported.append)
    assert sum(reported) == manifest.train.tokens
