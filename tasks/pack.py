"""Stage `pack`: cuts the token shards into the memory-mapped rows that are trained and scored on."""

from __future__ import annotations

import argparse

from tasks.command import add_path, command_parser, progress_bar, run_command

EXAMPLES = """
python -m tasks.pack                                 the tokens of artifacts/tokens, into artifacts/data
"""


def main() -> None:
    """Reads `data` of the parameter file and the token shards, writes the rows of both splits, and prints the counts."""
    arguments = _arguments()
    from components.config.loader import load_study

    data = load_study(arguments.params).data
    from components.data.packing import pack_study

    with progress_bar(None, "pack", "tok") as bar:
        manifest = pack_study(arguments.tokens, arguments.out, data.seq_len, data.validation_max_tokens, bar.update)
    for split in (manifest.train, manifest.validation):
        header = split.header
        print(
            f"{arguments.out}/{header.split}: {header.n_rows:,} rows of {header.seq_len} tokens, {header.n_documents:,} documents, "
            f"tokens in {header.tokens_in:,}, out {header.tokens_out:,}, dropped {header.tokens_dropped:,}, "
            f"unused {split.unused_tokens:,}, filling {split.padding_tokens:,}"
        )


def _arguments() -> argparse.Namespace:
    parser = command_parser("tasks.pack", __doc__, EXAMPLES)
    add_path(parser, "--params", "params.yaml", "parameter file")
    add_path(parser, "--tokens", "artifacts/tokens", "folder of the token shards")
    add_path(parser, "--out", "artifacts/data", "folder of the rows")
    return parser.parse_args()


if __name__ == "__main__":
    run_command(main)
