"""The seven benchmarks with a few invented documents each, in the hub's columns, and a tokenizer that knows their words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from components.config.benchmarks import BenchmarkName, LocalBenchmarks
from components.config.schema import BpeTokenizer
from components.data.tokenizer import Tokenizer, train_bpe

ANIMALS = ("cat", "dog", "horse", "salmon", "eagle", "ant")


def _science(i: int) -> dict[str, Any]:
    labels = ["A", "B", "C", "D"] if i != 1 else ["1", "2", "3"]  # some rows of ARC are numbered, some have three choices
    texts = [f"the {ANIMALS[(i + j) % 6]} does" for j in range(len(labels))]
    return {
        "question": f"Which animal swims in river {i}?",
        "choices": {"text": texts, "label": labels},
        "answerKey": labels[i % 3],
    }


def _openbook(i: int) -> dict[str, Any]:
    texts = [f"{ANIMALS[(i + j) % 6]}s" for j in range(4)]
    choices = {"text": texts, "label": ["A", "B", "C", "D"]}
    return {"question_stem": f"Case {i}: wings belong to", "choices": choices, "answerKey": "ABCD"[i % 4]}


def _hellaswag(i: int) -> dict[str, Any]:
    endings = [f"sees the {ANIMALS[(i + j) % 6]}{' [step] at home' * (j == 2)}." for j in range(4)]
    return {"activity_label": "Riding", "ctx_a": f"A man rides on day {i}.", "ctx_b": "he", "endings": endings, "label": str(i % 4)}


def _piqa(i: int) -> dict[str, Any]:
    return {"goal": f"Feed the {ANIMALS[i % 6]} ", "sol1": "give it food", "sol2": "give it a very long walk", "label": i % 2}


def _winogrande(i: int) -> dict[str, Any]:
    sentence = f"The {ANIMALS[i % 6]} chased the ball because _ was fast on day {i}."
    return {"sentence": sentence, "option1": f"the {ANIMALS[i % 6]}", "option2": "the ball", "answer": str(1 + i % 2)}


def _lambada(i: int) -> dict[str, Any]:
    return {"text": f"On day {i} she looked at the {ANIMALS[i % 6]} for long, and fed the {ANIMALS[i % 6]}"}


ROWS = {
    "arc_easy": ("ai2_arc/ARC-Easy/test", _science),
    "arc_challenge": ("ai2_arc/ARC-Challenge/test", _science),
    "hellaswag": ("hellaswag/validation", _hellaswag),
    "lambada_openai": ("lambada_openai/test", _lambada),
    "openbookqa": ("openbookqa/main/test", _openbook),
    "piqa": ("piqa/validation", _piqa),
    "winogrande": ("winogrande/winogrande_xl/validation", _winogrande),
}
NAMES: tuple[BenchmarkName, ...] = tuple(ROWS)  # type: ignore[assignment]


def write_benchmarks(folder: Path, n: int = 6) -> LocalBenchmarks:
    """The parquet files of all seven, `n` documents each."""
    for place, make in ROWS.values():
        path = folder / f"{place}.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist([make(i) for i in range(n)]), path)
    return LocalBenchmarks(kind="files", folder=str(folder))


def word_tokenizer() -> Tokenizer:
    """A BPE of 300 entries with merges inside words, `world` among them."""
    text = [f"Question: the {animal} does swim in the world? Answer: fed the {animal} on day" for animal in ANIMALS]
    return train_bpe([*text * 3, "the world " * 50], BpeTokenizer(kind="bpe", vocab_size=300, training_bytes=100_000))[0]
