"""Speed of the data path against the tokenizer alone.

Both sides tokenize the same documents, by turns, with the same threads. The peer is the library's `encode_batch_fast` on texts that
lie in memory already, its result thrown away; ours reads the file, judges and hashes every document, tokenizes, and writes shards.
Prints MB/s of UTF-8 text by the wall clock and by CPU time (of all threads: the number to trust on a busy machine), the ratios
(1.0 = there is nothing but the tokenizer), and the peak memory of both stages.

    python -m bench.tokenize_pack                                  the State of the Union addresses, a small BPE of them
    python -m bench.tokenize_pack CORPUS.parquet tokenizer.json
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

from bench.texts import small_tokenizer
from bench.turns import Row, Size, Spread, at_least, bench_parser, quotients
from components.config.schema import FileTokenizer
from components.data.files import FilesCorpus
from components.data.packing import pack_study
from components.data.sources import Document, SotuCorpus, Source
from components.data.tokenization import tokenize_corpus
from components.data.tokenizer import Tokenizer, load_tokenizer

TEXTS_PER_CALL = 1000


class Time(NamedTuple):
    """Seconds by the wall clock and of all threads' CPU."""

    wall: float
    cpu: float


class FirstBytes:
    """The first documents of a corpus, up to a number of UTF-8 bytes."""

    def __init__(self, corpus: Source, n_bytes: int) -> None:
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
    if arguments.corpus is None:
        source, tokenizer = FirstBytes(SotuCorpus(), int(arguments.megabytes * 1e6)), small_tokenizer()
    else:
        settings = FileTokenizer(
            kind="file", path=arguments.tokenizer, vocab_size=arguments.vocab_size, eos_token=arguments.eos_token
        )
        tokenizer = load_tokenizer(settings)
        source = FirstBytes(FilesCorpus([arguments.corpus], arguments.text_column), int(arguments.megabytes * 1e6))
    times = measure(source, tokenizer, arguments.seq_len, arguments.rounds)
    for name, of_side in (("tokenizer alone", times.peer), ("stage tokenize", times.stage), ("stage pack", times.packing)):
        _report(name, times.n_bytes, of_side)
    for clock in Time._fields:
        print(f"stage tokenize / tokenizer alone, {clock}: {times.ratio(clock).median:.2f}")
    print(f"peak memory of both stages: {times.peak_mib:.0f} MiB, for {times.n_bytes / 2**20:.0f} MiB of text")


def rows(size: Size) -> list[Row]:
    """MB/s of the stage over those of the tokenizer, by CPU time."""
    n_bytes, rounds = {"smoke": (200_000, 1), "short": (3_000_000, 3), "full": (20_000_000, 3)}[size]
    times = measure(FirstBytes(SotuCorpus(), n_bytes), small_tokenizer(), 128, rounds, 0.3)
    speed = Spread.of([times.n_bytes / 1e6 / each.cpu for each in times.stage])
    note = f"{speed.median:.1f} MB/s of CPU time"
    return [Row(5, "tokenize MB/s", "encode_batch alone", at_least(0.9), times.ratio("cpu"), note)]


class Times(NamedTuple):
    """What was measured: one time for each round and side."""

    n_bytes: int
    stage: list[Time]
    packing: list[Time]
    peer: list[Time]
    peak_mib: float

    def ratio(self, clock: str) -> Spread:
        """Speed of the stage over the tokenizer's, by one of the clocks."""
        return quotients(*([getattr(each, clock) for each in side] for side in (self.peer, self.stage)))


def measure(source: FirstBytes, tokenizer: Tokenizer, seq_len: int, rounds: int, share: float = 0.01) -> Times:
    """Both stages and the tokenizer alone, by turns; `share` of the documents is held out."""
    n_bytes = sum(len(document.text.encode()) for document in source.documents())
    stage, packing, peer = [], [], []
    peak = 0.0
    for round_ in range(rounds):
        with tempfile.TemporaryDirectory() as scratch:
            tokens, packed = Path(scratch) / "tokens", Path(scratch) / "data"
            tokens.mkdir()
            stage.append(_timed(lambda to=tokens: tokenize_corpus(source, tokenizer, share, to, None, _ignore)))
            packing.append(_timed(lambda of=tokens, to=packed: pack_study(of, to, seq_len, 10**6, _ignore)))
        if round_ == 0:  # before the peer holds all texts
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        texts = [document.text for document in source.documents()]
        peer.append(_timed(lambda these=texts: _encode_all(tokenizer, these)))
    return Times(n_bytes, stage, packing, peer, peak)


def _arguments() -> argparse.Namespace:
    parser = bench_parser(__doc__)
    parser.add_argument("corpus", nargs="?", help="glob of parquet, jsonl or txt files (default: the State of the Union)")
    parser.add_argument("tokenizer", nargs="?", help="a tokenizer.json, needed with a corpus")
    parser.add_argument("--text-column", default="text", help="default: %(default)s")
    parser.add_argument("--vocab-size", type=int, default=49152, help="default: %(default)s")
    parser.add_argument("--eos-token", default="<|endoftext|>", help="default: %(default)s")
    parser.add_argument("--seq-len", type=int, default=2048, help="default: %(default)s")
    parser.add_argument(
        "--megabytes", type=float, default=20.0, help="of text, from the start of the corpus (default: %(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    arguments = parser.parse_args()
    if (arguments.corpus is None) != (arguments.tokenizer is None):
        parser.error("a corpus needs its tokenizer.json beside it")
    return arguments


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
