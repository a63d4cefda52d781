"""From documents to token shards: the work of the stage `tokenize`.

Documents stream through in pieces of a few MB: judged (empty, duplicate, split), tokenized by the library's own threads while the
next piece is read and the last one written, and appended to Arrow shards. Memory does not grow with the corpus, apart from 8 bytes
per document to find duplicates.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa

from components.config.problems import DataError
from components.config.schema import BpeTokenizer, Data, FineWebEduSource
from components.data.admission import Admission, Verdict
from components.data.checked_arrow import CheckedWriter
from components.data.folders import replaced_folder
from components.data.manifest import MANIFEST_FILE, SPLITS, DocumentCounts, Split, SplitTokens, TokensManifest, id_dtype
from components.data.sources import Document, Source, open_source
from components.data.tokenizer import METADATA_FILE, Tokenizer, load_tokenizer, train_bpe
from components.results import write_record

CHARACTERS_PER_PIECE = 2 << 20
DOCUMENTS_PER_PIECE = 4096
PIECES_IN_FLIGHT = 2
TOKENS_PER_SHARD = 128_000_000


def tokenize_study(data: Data, tokenizer_folder: Path, tokens_folder: Path, on_tokens: Callable[[int], None]) -> TokensManifest:
    """Makes or loads the tokenizer, then tokenizes the corpus with it; both folders appear whole.

    Args:
        on_tokens: called with the number of new training tokens as they are written.

    Raises:
        DataError: the corpus or the tokenizer cannot be used.
    """
    source = open_source(data.source)
    budget = data.source.token_budget if isinstance(data.source, FineWebEduSource) else None
    with (
        replaced_folder(tokenizer_folder, METADATA_FILE) as for_tokenizer,
        replaced_folder(tokens_folder, MANIFEST_FILE) as for_tokens,
    ):
        if isinstance(data.tokenizer, BpeTokenizer):
            tokenizer, training_bytes = train_bpe(training_texts(source, data.validation_share), data.tokenizer)
        else:
            tokenizer, training_bytes = load_tokenizer(data.tokenizer), 0
        tokenizer.save(for_tokenizer, data.tokenizer.kind, training_bytes)
        return tokenize_corpus(source, tokenizer, data.validation_share, for_tokens, budget, on_tokens)


def training_texts(source: Source, validation_share: float) -> Iterator[str]:
    """The texts that may be trained on, in order: never a held-out document.

    Raises:
        DataError: there is none.
    """
    admission, counts = Admission(validation_share), Counter[str]()
    for piece in _pieces(source.documents()):
        for verdict in admission.judge(piece):
            counts.update(("total", verdict.fate))
            if verdict.fate == "train":
                yield verdict.document.text
    if not counts["train"]:
        raise _no_documents("train", counts, validation_share)


def tokenize_corpus(
    source: Source,
    tokenizer: Tokenizer,
    validation_share: float,
    folder: Path,
    token_budget: int | None,
    on_tokens: Callable[[int], None],
    tokens_per_shard: int = TOKENS_PER_SHARD,
) -> TokensManifest:
    """Writes the token shards of both splits and the manifest into `folder`.

    Args:
        token_budget: stop after the document with which the training tokens (EOS included) reach this number; None reads all.

    Raises:
        DataError: the corpus cannot be read, or leaves no training or no validation documents.
    """
    corpus = _CorpusWriter(folder, tokenizer, token_budget, tokens_per_shard)
    admission = Admission(validation_share)
    in_flight: deque[tuple[list[Verdict], Future[Any]]] = deque()
    with corpus, ThreadPoolExecutor(PIECES_IN_FLIGHT) as pool:
        for piece in _pieces(source.documents()):
            verdicts = admission.judge(piece)
            in_flight.append((verdicts, pool.submit(_encode, tokenizer, verdicts)))
            if len(in_flight) > PIECES_IN_FLIGHT:
                on_tokens(corpus.write(*_next(in_flight)))
            if corpus.is_full:
                break
        while in_flight and not corpus.is_full:
            on_tokens(corpus.write(*_next(in_flight)))
    for split in SPLITS:
        if not corpus.counts[split]:
            raise _no_documents(split, corpus.counts, validation_share)
    manifest = corpus.manifest()
    write_record(manifest, folder / MANIFEST_FILE)
    return manifest


class _CorpusWriter:
    """Counts, fingerprints and shards of the corpus so far; every number covers exactly the documents up to the budget."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, token_budget: int | None, tokens_per_shard: int) -> None:
        self.counts = Counter[str]()
        self.is_full = False
        self._tokenizer = tokenizer
        self._budget = token_budget
        self._splits = {split: _ShardWriter(folder, split, tokenizer.vocab_size, tokens_per_shard) for split in SPLITS}
        self._fingerprint = hashlib.blake2b(digest_size=16)

    def __enter__(self) -> _CorpusWriter:
        return self

    def __exit__(self, *error: object) -> None:
        for shards in self._splits.values():
            shards.close()

    def write(self, verdicts: list[Verdict], ids: Any) -> int:
        """Takes one piece over and returns its training tokens."""
        before, at = self._splits["train"].tokens, 0
        rows: dict[str, list[int]] = {split: [] for split in SPLITS}
        kept: dict[str, list[Verdict]] = {split: [] for split in SPLITS}
        left = None if self._budget is None else self._budget - before
        lengths = ids.value_lengths().to_numpy(zero_copy_only=False)
        for verdict in verdicts:
            self.counts.update(("total", verdict.fate))
            if not verdict.digest:
                continue
            self._fingerprint.update(verdict.fate.encode() + verdict.digest)
            self.counts["with_nul"] += "\0" in verdict.document.text
            rows[verdict.fate].append(at)
            kept[verdict.fate].append(verdict)
            if left is not None and verdict.fate == "train":
                left -= int(lengths[at]) + 1
                if left <= 0:
                    self.is_full = True
                    break
            at += 1
        for split, shards in self._splits.items():
            shards.write(kept[split], ids.take(pa.array(rows[split], pa.int64())))
        return self._splits["train"].tokens - before

    def manifest(self) -> TokensManifest:
        return TokensManifest(
            version=1,
            corpus_fingerprint=self._fingerprint.hexdigest(),
            tokenizer_hash=self._tokenizer.hash,
            vocab_size=self._tokenizer.vocab_size,
            eos_id=self._tokenizer.eos_id,
            documents=DocumentCounts(**self.counts),
            train=self._splits["train"].summary(),
            validation=self._splits["validation"].summary(),
        )


class _ShardWriter:
    """Arrow shards of one split: one row per document with its id, hash, bytes and token ids (no EOS)."""

    def __init__(self, folder: Path, split: Split, vocab_size: int, tokens_per_shard: int) -> None:
        self.tokens = 0
        self._folder, self._split, self._tokens_per_shard = folder, split, tokens_per_shard
        self._schema = shard_schema(vocab_size)
        self._documents, self._bytes, self._tokens_in_shard = 0, 0, 0
        self._files: list[str] = []
        self._writer: CheckedWriter | None = None
        self._fingerprint = hashlib.blake2b(digest_size=16)

    def write(self, kept: list[Verdict], ids: Any) -> None:
        if not kept:
            return
        if self._writer is None:
            self._files.append(f"{self._split}-{len(self._files):05d}.arrow")
            self._writer = CheckedWriter(self._folder / self._files[-1], self._schema)
        digests = [verdict.digest for verdict in kept]
        sizes = [verdict.n_bytes for verdict in kept]
        names = [verdict.document.id for verdict in kept]
        columns = [pa.array(names), pa.array(digests, pa.binary(16)), pa.array(sizes, pa.int64()), ids]
        self._writer.write(pa.record_batch(columns, schema=self._schema))
        n_tokens = len(ids.flatten()) + len(kept)
        self._fingerprint.update(b"".join(digests))
        self._documents += len(kept)
        self._bytes += sum(sizes)
        self.tokens += n_tokens
        self._tokens_in_shard += n_tokens
        if self._tokens_in_shard >= self._tokens_per_shard:
            self.close()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._writer, self._tokens_in_shard = None, 0

    def summary(self) -> SplitTokens:
        return SplitTokens(
            documents=self._documents,
            tokens=self.tokens,
            bytes=self._bytes,
            fingerprint=self._fingerprint.hexdigest(),
            files=tuple(self._files),
        )


def shard_schema(vocab_size: int) -> Any:
    """Columns of a token shard."""
    ids = pa.list_(pa.from_numpy_dtype(id_dtype(vocab_size)))
    return pa.schema([("id", pa.string()), ("digest", pa.binary(16)), ("n_bytes", pa.int64()), ("tokens", ids)])


def _encode(tokenizer: Tokenizer, verdicts: list[Verdict]) -> Any:
    texts = [verdict.document.text for verdict in verdicts if verdict.digest]
    return pa.array(tokenizer.encode_batch(texts), shard_schema(tokenizer.vocab_size).field("tokens").type)


def _next(in_flight: deque[tuple[list[Verdict], Future[Any]]]) -> tuple[list[Verdict], Any]:
    verdicts, future = in_flight.popleft()
    return verdicts, future.result()


def _pieces(documents: Iterable[Document]) -> Iterator[list[Document]]:
    piece: list[Document] = []
    characters = 0
    for document in documents:
        piece.append(document)
        characters += len(document.text)
        if characters >= CHARACTERS_PER_PIECE or len(piece) >= DOCUMENTS_PER_PIECE:
            yield piece
            piece, characters = [], 0
    if piece:
        yield piece


def _no_documents(split: Split, counts: Counter[str], validation_share: float) -> DataError:
    total, kept = counts["total"], counts["train"] + counts["validation"]
    if not kept:
        dropped = ", ".join(f"{n} {fate}" for fate, n in sorted(counts.items()) if fate != "total") or "none dropped"
        return DataError(f"data.source: the corpus is empty: {total} documents, none of them usable ({dropped}); check the source")
    return DataError(
        f"data.validation_share: no {split} documents: none of the {kept} documents has a hash on that side of {validation_share}; "
        + (
            "raise data.validation_share or add documents"
            if split == "validation"
            else "lower data.validation_share or add documents"
        )
    )
