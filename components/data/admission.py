"""Which documents are kept, and on which side of the split: decided from the text alone.

A document's hash is that of its text, so the decision does not depend on the order or size of the corpus: a held-out document stays
held out when the corpus grows or is shuffled, and no copy of it can be trained on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from components.data.manifest import Split
from components.data.sources import Document


@dataclass(frozen=True)
class Verdict:
    """What happens to one document.

    Attributes:
        fate: `train` or `validation`, or why it is dropped (a field of `DocumentCounts`).
        digest: 16-byte hash of the text.
        n_bytes: UTF-8 bytes of the text.
    """

    document: Document
    fate: str
    digest: bytes = b""
    n_bytes: int = 0


class SeenHashes:
    """A set of 64-bit hashes at 8 bytes each: sorted runs, merged when the newer one has grown to half of the older.

    Twenty million documents take 160 MB, three times that for moments while runs are merged. Among that many the chance that two
    different texts share a hash is about 1 in 100,000.
    """

    def __init__(self) -> None:
        self._runs: list[npt.NDArray[np.uint64]] = []

    def add(self, hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Adds the hashes and says of each whether it is new; of equal ones in `hashes` only the first is."""
        values, first = np.unique(hashes, return_index=True)
        known = np.zeros(len(values), bool)
        for run in self._runs:
            at = np.minimum(np.searchsorted(run, values), len(run) - 1)
            known |= run[at] == values
        is_new = np.zeros(len(hashes), bool)
        is_new[first[~known]] = True
        if not known.all():
            self._runs.append(values[~known])
        while len(self._runs) > 1 and 2 * len(self._runs[-1]) >= len(self._runs[-2]):
            newer, older = self._runs.pop(), self._runs.pop()
            merged = np.concatenate([older, newer])
            merged.sort(kind="stable")  # two sorted halves: a merge
            self._runs.append(merged)
        return is_new


class Admission:
    """Judges the documents of one corpus, in order."""

    def __init__(self, validation_share: float) -> None:
        self._limit = round(validation_share * 2**64)
        self._seen = SeenHashes()

    def judge(self, documents: Sequence[Document]) -> list[Verdict]:
        """One verdict per document, in order.

        Raises:
            DataError: a text cannot be written as UTF-8 (a lone surrogate).
        """
        verdicts = [self._judge_alone(document) for document in documents]
        kept = [i for i, verdict in enumerate(verdicts) if verdict.digest]
        hashes = np.frombuffer(b"".join(verdicts[i].digest[:8] for i in kept), ">u8").astype(np.uint64)
        for i, is_new in zip(kept, self._seen.add(hashes), strict=True):
            if not is_new:
                verdicts[i] = Verdict(verdicts[i].document, "duplicates")
        return verdicts

    def _judge_alone(self, document: Document) -> Verdict:
        if document.rejected:
            return Verdict(document, document.rejected)
        if not document.text or document.text.isspace():
            return Verdict(document, "empty")
        data = document.utf8()
        digest = hashlib.blake2b(data, digest_size=16).digest()
        return Verdict(document, self.split(digest), digest, len(data))

    def split(self, digest: bytes) -> Split:
        """The side that a document with this hash is on, in every corpus."""
        return "validation" if int.from_bytes(digest[:8], "big") < self._limit else "train"
