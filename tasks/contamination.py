"""Stage `contamination`: counts the benchmarks' documents that stand, in part, in the training corpus; once for all arms."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from tasks.command import add_path, command_parser, progress_bar, run_command

if TYPE_CHECKING:
    from components.config.schema import Study
    from components.results import Contamination


EXAMPLES = """
python -m tasks.contamination                        what `benchmarks.tasks` names, into artifacts/contamination.json
"""


def main() -> None:
    """Reads the benchmarks and the token shards, writes the record, prints the count of every benchmark."""
    arguments = _arguments()
    from components.config.loader import load_study
    from components.evaluation.contamination import NGRAM_WORDS
    from components.results import Contamination, write_record

    study = load_study(arguments.params)
    if study.benchmarks.tasks:
        result = _search(study, arguments)
    else:
        result = Contamination(
            version=1, status="not_run", ngram_words=NGRAM_WORDS, corpus_fingerprint=None, n_documents=0, n_words=0, benchmarks=()
        )
        print(f"benchmarks.tasks is empty in {arguments.params}: nothing to look for")
    write_record(result, arguments.out)
    for found in result.benchmarks:
        print(f"{found.benchmark}: {found.n_overlapping} of {found.n} documents share 13 words in a row with the training corpus")


def _search(study: Study, arguments: argparse.Namespace) -> Contamination:
    from components.data.manifest import MANIFEST_FILE, TokensManifest
    from components.evaluation.contamination import NGRAM_WORDS, NgramIndex, search_corpus
    from components.evaluation.harness import load_benchmark
    from components.results import BenchmarkOverlap, Contamination, read_record

    settings = study.benchmarks
    manifest = read_record(TokensManifest, arguments.tokens / MANIFEST_FILE)
    benchmarks = {name: load_benchmark(name, settings.source, settings.limit) for name in settings.tasks}
    index = NgramIndex({name: benchmark.texts for name, benchmark in benchmarks.items()})
    with progress_bar(manifest.train.documents, "contamination", "document") as bar:
        search_corpus(index, arguments.tokens, manifest, arguments.tokenizer, os.cpu_count() or 1, bar.update)
    return Contamination(
        version=1,
        status="run",
        ngram_words=NGRAM_WORDS,
        corpus_fingerprint=manifest.corpus_fingerprint,
        n_documents=index.n_documents,
        n_words=index.n_words,
        benchmarks=tuple(
            BenchmarkOverlap(
                benchmark=name,
                fingerprint=benchmarks[name].fingerprint,
                n=len(benchmarks[name].documents),
                n_checked=overlap.n_checked,
                n_overlapping=len(overlap.documents),
                documents=overlap.documents,
            )
            for name, overlap in index.overlaps().items()
        ),
    )


def _arguments() -> argparse.Namespace:
    parser = command_parser("tasks.contamination", __doc__, EXAMPLES)
    add_path(parser, "--params", "params.yaml", "parameter file")
    add_path(parser, "--tokenizer", "artifacts/tokenizer", "folder of the tokenizer")
    add_path(parser, "--tokens", "artifacts/tokens", "folder of the token shards")
    add_path(parser, "--out", "artifacts/contamination.json", "file of the result")
    return parser.parse_args()


if __name__ == "__main__":
    run_command(main)
