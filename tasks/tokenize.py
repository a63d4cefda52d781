"""Stage `tokenize`: makes or loads the tokenizer and turns the corpus of `data.source` into token shards."""

from __future__ import annotations

import argparse

from tasks.command import add_path, command_parser, progress_bar, run_command

EXAMPLES = """
python -m tasks.tokenize                             the corpus of params.yaml, into artifacts/tokens and artifacts/tokenizer
python -m tasks.tokenize --params scales/small.yaml --out elsewhere/tokens --tokenizer-out elsewhere/tokenizer
"""


def main() -> None:
    """Reads `data` of the parameter file, writes the tokenizer and the token shards, and prints the counts."""
    arguments = _arguments()
    from components.config.loader import load_study
    from components.config.schema import FineWebEduSource

    data = load_study(arguments.params).data
    from components.data.tokenization import tokenize_study

    budget = data.source.token_budget if isinstance(data.source, FineWebEduSource) else None
    with progress_bar(budget, "tokenize", "tok") as bar:
        manifest = tokenize_study(data, arguments.tokenizer_out, arguments.out, bar.update)
    documents = manifest.documents
    print(
        f"{arguments.out}: {documents.total:,} documents: {documents.train:,} train, {documents.validation:,} validation, "
        f"{documents.duplicates:,} duplicates, {documents.empty:,} empty, "
        f"{documents.below_minimum_score + documents.without_score:,} under the minimum score or without one; "
        f"{manifest.train.tokens:,} training tokens"
    )


def _arguments() -> argparse.Namespace:
    parser = command_parser("tasks.tokenize", __doc__, EXAMPLES)
    add_path(parser, "--params", "params.yaml", "parameter file")
    add_path(parser, "--out", "artifacts/tokens", "folder of the token shards")
    add_path(parser, "--tokenizer-out", "artifacts/tokenizer", "folder of the tokenizer")
    return parser.parse_args()


if __name__ == "__main__":
    run_command(main)
