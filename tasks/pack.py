"""Stage `pack`: cuts the token shards into the memory-mapped rows that are trained and scored on."""

from __future__ import annotations

import argparse
from pathlib import Path

from tasks.command import command_parser, progress_bar, run_command

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
    parser.add_argument("--params", type=Path, default=Path("params.yaml"), help="parameter file (default: %(default)s)")
    parser.add_argument(
        "--tokens", type=Path, default=Path("artifacts/tokens"), help="folder of the token shards (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=Path("artifacts/data"), help="folder of the rows (default: %(default)s)")
    return parser.parse_args()


if __name__ == "__main__":
    run_command(main)
