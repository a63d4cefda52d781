"""Speed of the data path against the tokenizer alone: `python bench/tokenize_pack.py CORPUS.parquet tokenizer.json`.

Both sides tokenize the same documents, by turns, with the same threads. The peer is the library's `encode_batch_fast` on texts that
lie in memory already, its result thrown away; ours reads the file, judges and hashes every document, tokenizes, and writes shards.
Prints MB/s of UTF-8 text by the wall clock and by CPU time (of all threads: the number to trust on a busy machine), the ratios
(1.0 = there is nothing but the tokenizer), and the peak memory of both stages.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from components.config.schema import FileTokenizer
from components.data.files import FilesCorpus
from components.data.packing import pack_study
from components.data.sources import Document
from components.data.tokenization import tokenize_corpus
from components.data.tokenizer import Tokenizer, load_tokenizer

TEXTS_PER_CALL = 1000


class Time(NamedTuple):
    """Seconds by the wall clock and of all threads' CPU."""

    wall: float
    cpu: float


class FirstBytes:
    """The first documents of a corpus, up to a number of UTF-8 bytes."""

    def __init__(self, corpus: FilesCorpus, n_bytes: int) -> None:
        self._corpus, self._n_bytes = corpus, n_bytes

    def documents(self) -> Iterator[Document]:
        """Reads the files anew."""
        left = self._n_bytes
        for document in self._corpus.documents():
            yield document
            left -= len(document.text.encode())
            if left <= 0:
                return


def main() -> None:
    """Measures and prints."""
    arguments = _arguments()
    settings = FileTokenizer(kind="file", path=arguments.tokenizer, vocab_size=arguments.vocab_size, eos_token=arguments.eos_token)
    tokenizer = load_tokenizer(settings)
    source = FirstBytes(FilesCorpus([arguments.corpus], arguments.text_column), int(arguments.megabytes * 1e6))
    n_bytes = sum(len(document.text.encode()) for document in source.documents())
    stage, packing, peer = [], [], []
    peak = 0.0
    for round_ in range(arguments.rounds):
        with tempfile.TemporaryDirectory() as scratch:
            tokens, rows = Path(scratch) / "tokens", Path(scratch) / "data"
            tokens.mkdir()
            stage.append(_timed(lambda to=tokens: tokenize_corpus(source, tokenizer, 0.01, to, None, _ignore)))
            packing.append(_timed(lambda of=tokens, to=rows: pack_study(of, to, arguments.seq_len, 10**6, _ignore)))
        if round_ == 0:  # before the peer holds all texts
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        texts = [document.text for document in source.documents()]
        peer.append(_timed(lambda these=texts: _encode_all(tokenizer, these)))
    for name, times in (("tokenizer alone", peer), ("stage tokenize", stage), ("stage pack", packing)):
        _report(name, n_bytes, times)
    for clock in Time._fields:
        ratios = [getattr(alone, clock) / getattr(ours, clock) for alone, ours in zip(peer, stage, strict=True)]
        print(f"stage tokenize / tokenizer alone, {clock}: {statistics.median(ratios):.2f}")
    print(f"peak memory of both stages: {peak:.0f} MiB, for {n_bytes / 2**20:.0f} MiB of text")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", help="glob of parquet, jsonl or txt files")
    parser.add_argument("tokenizer", help="a tokenizer.json")
    parser.add_argument("--text-column", default="text", help="default: %(default)s")
    parser.add_argument("--vocab-size", type=int, default=49152, help="default: %(default)s")
    parser.add_argument("--eos-token", default="<|endoftext|>", help="default: %(default)s")
    parser.add_argument("--seq-len", type=int, default=2048, help="default: %(default)s")
    parser.add_argument(
        "--megabytes", type=float, default=20.0, help="of text, from the start of the corpus (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    return parser.parse_args()


def _encode_all(tokenizer: Tokenizer, texts: list[str]) -> None:
    for at in range(0, len(texts), TEXTS_PER_CALL):
        tokenizer.raw.encode_batch_fast(texts[at : at + TEXTS_PER_CALL], add_special_tokens=False)


def _timed(action: Callable[[], object]) -> Time:
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return Time(time.perf_counter() - wall, time.process_time() - cpu)


def _report(name: str, n_bytes: int, times: list[Time]) -> None:
    for clock in Time._fields:
        speeds = sorted(n_bytes / 1e6 / getattr(each, clock) for each in times)
        print(f"{name:16s} {clock:5s} {statistics.median(speeds):8.2f} MB/s (min {speeds[0]:.2f}, max {speeds[-1]:.2f})")


def _ignore(_: int) -> None:
    """No progress bar in a measurement."""


if __name__ == "__main__":
    main()
