"""Exports one depth of a trained arm as a checkpoint that `transformers` loads.

A prefix of one width is an ordinary LlamaForCausalLM; one with a junction, or with streams, brings its own modelling file
(trust_remote_code=True).
"""

from __future__ import annotations

import argparse
from pathlib import Path

from components.inference.export_folder import check_out
from tasks.choice import ChosenModel, add_model_arguments, add_streams_argument, check_option, check_streams, choose_model
from tasks.command import add_path, command_parser, run_command
from tasks.registry import register_export, run_of

EXAMPLES = """
python -m tasks.export --arm tlm-uniform --depth 7 --out exports/small     the first 7 blocks
python -m tasks.export --arm tlm-uniform --depth 16 --out exports/full     the whole cascade
python -m tasks.export --arm hd-n4 --depth 12 --out exports/hidden         with the streams of the model
python -m tasks.export --arm mlms --depth 8 --seed 43 --out exports/other  another seed's model
python -m tasks.export --arm tlm-uniform --depth 7 --out exports/small --register   also a model in MLflow's registry
"""


def main() -> None:
    """Checks the request, then writes the folder, and registers it if asked to."""
    arguments = _arguments()
    chosen = choose_model(arguments)
    depth = check_option("--depth", arguments.depth, chosen.arm.model.n_blocks)
    streams = check_streams(arguments.streams, chosen.arm)
    check_out(arguments.out)
    if not arguments.register:
        _export(arguments, chosen, depth, streams)
        return
    run_id = run_of(Path.cwd(), chosen.study.runtime.experiment, f"{chosen.arm.name}/seed-{chosen.seed}")
    _export(arguments, chosen, depth, streams)
    name = f"{chosen.arm.name}-depth-{depth}" + (f"-streams-{streams}" if streams > 1 else "")
    tags = {"arm": chosen.arm.name, "seed": str(chosen.seed), "depth": str(depth), "n_streams": str(streams)}
    print(f"MLflow: {register_export(Path.cwd(), run_id, name, arguments.out, tags)}")


def _export(arguments: argparse.Namespace, chosen: ChosenModel, depth: int, streams: int) -> None:
    from components.config.problems import DataError
    from components.data.tokenizer import Tokenizer

    tokenizer = Tokenizer.open(arguments.tokenizer)

    from components.inference.export import export_prefix
    from components.inference.export_readme import export_readme
    from components.models.files import load_model
    from components.results import ArmEvaluation, ArmProfile, read_record

    model, card = load_model(chosen.folder, dtype=None)
    if card.tokenizer_hash != tokenizer.hash:
        raise DataError(f"{arguments.tokenizer}: not the tokenizer that {chosen.folder} was trained with; run `dvc repro`")
    check_option("--depth", depth, model.n_blocks)
    found = {name: arguments.artifacts / name / f"{chosen.arm.name}.json" for name in ("evaluation", "profile")}
    evaluation = read_record(ArmEvaluation, found["evaluation"]) if found["evaluation"].exists() else None
    profile = read_record(ArmProfile, found["profile"]) if found["profile"].exists() else None
    readme = export_readme(card, (depth, streams), evaluation, profile, tokenizer.eos_token)
    with model.running(streams):
        kind = export_prefix(model, card, depth, tokenizer, readme, arguments.out)
    size = sum(path.stat().st_size for path in arguments.out.iterdir())
    remote = "" if kind in ("LlamaForCausalLM", "Qwen3ForCausalLM") else ", trust_remote_code=True"
    print(f"{arguments.out}: {chosen.arm.name}, depth {depth} of {model.n_blocks}, {size / 2**20:,.1f} MiB, {kind}")
    print(f'load it with AutoModelForCausalLM.from_pretrained("{arguments.out}"{remote})')


def _arguments() -> argparse.Namespace:
    parser = command_parser("tasks.export", __doc__, EXAMPLES)
    add_model_arguments(parser)
    parser.add_argument("--depth", type=int, required=True, help="k, blocks of the prefix")
    add_streams_argument(parser)
    parser.add_argument("--out", type=Path, required=True, help="folder to write; must not exist or be empty")
    add_path(parser, "--tokenizer", "artifacts/tokenizer", "folder of the tokenizer")
    add_path(parser, "--artifacts", "artifacts", "results whose numbers go into the README")
    parser.add_argument("--register", action="store_true", help="also make it a version of a model in MLflow's registry")
    return parser.parse_args()


if __name__ == "__main__":
    run_command(main)
