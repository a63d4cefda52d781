"""Which documents of a benchmark stand, in part, in the training corpus: a shared run of 13 words is taken as the sign.

The corpus streams by once, whatever its size. Only words that occur in a benchmark have a number, only runs of such words are
hashed, and only the benchmarks' own runs are kept: memory grows with the benchmarks, not with the corpus.

Source:
    The 13-word overlap of Language Models are Few-Shot Learners (arXiv 2005.14165), appendix C.
"""

from __future__ import annotations

import copy
import multiprocessing
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from components.data.checked_arrow import CheckedFile
from components.data.manifest import TokensManifest
from components.data.tokenizer import Tokenizer

NGRAM_WORDS = 13
WORD = re.compile(r"\w+")
FILTER_BITS = 24
DOCUMENTS_PER_DECODE = 512

Hashes = npt.NDArray[np.uint64]


def words(text: str) -> list[str]:
    """The text's words as they are compared: lower case, without punctuation."""
    return WORD.findall(text.lower())


@dataclass(frozen=True)
class Overlap:
    """What was found of one benchmark.

    Attributes:
        n_checked: documents with at least 13 words in one of their texts.
        documents: indices of the documents that share 13 words in a row with the corpus, ascending.
    """

    n_checked: int
    documents: tuple[int, ...]


class Sightings(NamedTuple):
    """What an index has seen of a corpus.

    Attributes:
        was_seen: bool, of each of the index's runs.
        n_documents, n_words: of the corpus.
    """

    was_seen: npt.NDArray[np.bool_]
    n_documents: int
    n_words: int


class NgramIndex:
    """The 13-word runs of some benchmarks, and which of them a corpus has shown so far."""

    def __init__(self, benchmarks: Mapping[str, Sequence[Iterable[str]]]) -> None:
        """Indexes the texts of every document of every benchmark (a document may have several: its question with each answer)."""
        self._numbers: dict[str, int] = {}
        self._sizes = {name: len(documents) for name, documents in benchmarks.items()}
        random = np.random.default_rng(0)
        self._mixers = random.integers(1, 2**63, NGRAM_WORDS, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
        hashes, owners = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
        for owner, texts in enumerate(texts for documents in benchmarks.values() for texts in documents):
            found = np.unique(np.concatenate([np.empty(0, np.uint64), *(self._index(text) for text in texts)]))
            hashes.append(found)
            owners.append(np.full(len(found), owner))
        self._hashes, positions = np.unique(np.concatenate(hashes), return_inverse=True)
        self._owners = np.concatenate(owners)
        self._positions = positions
        self._was_seen = np.zeros(len(self._hashes), bool)
        self._filter = np.zeros(1 << FILTER_BITS, bool)
        self._filter[_short(self._hashes)] = True
        self.n_documents, self.n_words = 0, 0

    def see(self, text: str) -> None:
        """Takes in one document of the corpus."""
        numbers = np.fromiter(map(self._numbers.get, found := words(text), repeat(0)), np.uint64, len(found))
        self.n_documents += 1
        self.n_words += len(numbers)
        hashes = self._runs(numbers)
        candidates = np.unique(hashes[self._filter[_short(hashes)]])
        at = np.searchsorted(self._hashes, candidates)
        at[at == len(self._hashes)] = 0
        self._was_seen[at[self._hashes[at] == candidates]] = True

    def sightings(self) -> Sightings:
        """What was seen so far."""
        return Sightings(self._was_seen, self.n_documents, self.n_words)

    def merge(self, other: Sightings) -> None:
        """Adds what an equal index has seen of another part of the corpus."""
        self._was_seen |= other.was_seen
        self.n_documents += other.n_documents
        self.n_words += other.n_words

    def overlaps(self) -> dict[str, Overlap]:
        """What was found, by benchmark."""
        checked = np.unique(self._owners)
        overlapping = np.unique(self._owners[self._was_seen[self._positions]])
        result, start = {}, 0
        for name, size in self._sizes.items():
            ours = overlapping[(overlapping >= start) & (overlapping < start + size)] - start
            n_checked = int(((checked >= start) & (checked < start + size)).sum())
            result[name] = Overlap(n_checked, tuple(ours.tolist()))
            start += size
        return result

    def _index(self, text: str) -> Hashes:
        numbers = [self._numbers.setdefault(word, len(self._numbers) + 1) for word in words(text)]
        return self._runs(np.array(numbers, np.uint64))

    def _runs(self, numbers: npt.NDArray[np.uint64]) -> Hashes:
        """A hash of every run of 13 words that all have a number."""
        n_runs = len(numbers) - NGRAM_WORDS + 1
        if n_runs <= 0:
            return np.empty(0, np.uint64)
        unknown = np.cumsum(np.concatenate([[0], numbers == 0]))
        starts = np.flatnonzero(unknown[NGRAM_WORDS:] == unknown[:n_runs])
        scattered = _scatter(numbers)
        hashes = np.zeros(len(starts), np.uint64)
        for i, mixer in enumerate(self._mixers):
            hashes += scattered[starts + i] * mixer
        return _scatter(hashes)


def search_corpus(
    index: NgramIndex,
    tokens_folder: Path,
    tokens: TokensManifest,
    tokenizer_folder: Path,
    workers: int,
    on_documents: Callable[[int], object] = lambda _: None,
) -> None:
    """Shows every training document to the index, several shards at a time when there are several.

    Args:
        workers: processes at most.
        on_documents: told how many documents were searched since the last call.

    Raises:
        DataError: a shard is missing or damaged.
    """
    paths = [tokens_folder / name for name in tokens.train.files]
    if workers == 1 or len(paths) == 1:
        tokenizer = Tokenizer.open(tokenizer_folder)
        for path in paths:
            for text in shard_texts(path, tokenizer):
                index.see(text)
                on_documents(1)
        return
    blank = copy.deepcopy(index)  # the pool pickles what it sends late, when others' findings are merged into the index
    with ProcessPoolExecutor(min(workers, len(paths)), multiprocessing.get_context("spawn")) as pool:
        for found in as_completed([pool.submit(_search_shard, blank, path, tokenizer_folder) for path in paths]):
            index.merge(found.result())
            on_documents(found.result().n_documents)


def shard_texts(path: Path, tokenizer: Tokenizer) -> Iterator[str]:
    """The text of every document of a token shard: exactly what was trained on, and no second download.

    Raises:
        DataError: the shard is missing or damaged.
    """
    shard = CheckedFile(path, "tokenize")
    for i in range(len(shard.batches)):
        column = shard.check(i).column("tokens")
        for start in range(0, len(column), DOCUMENTS_PER_DECODE):
            yield from tokenizer.raw.decode_batch(column.slice(start, DOCUMENTS_PER_DECODE).to_pylist())


def _search_shard(index: NgramIndex, path: Path, tokenizer_folder: Path) -> Sightings:
    for text in shard_texts(path, Tokenizer.open(tokenizer_folder)):
        index.see(text)
    return index.sightings()


def _scatter(values: Hashes) -> Hashes:
    """Spreads every bit of a number over all 64."""
    values = (values ^ (values >> np.uint64(31))) * np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(29))) * np.uint64(0xD6E8FEB86659FD93)
    return values ^ (values >> np.uint64(32))


def _short(hashes: Hashes) -> Hashes:
    return hashes >> np.uint64(64 - FILTER_BITS)
