"""Stage `import`: makes a model of this study of a pretrained Llama or Qwen3 checkpoint, to evaluate and to go on from."""

from __future__ import annotations

import argparse

from tasks.command import add_path, command_parser, run_command

EXAMPLES = """
python -m tasks.import_backbone --describe HuggingFaceTB/SmolLM2-135M
python -m tasks.import_backbone --arm smollm2        an entry of `backbones`, into artifacts/models
"""


def main() -> None:
    """Reads the checkpoint, checks that it is the one `backbones` describes, and writes it under every seed."""
    arguments = _arguments()
    if arguments.describe is not None:
        _describe(arguments.describe)
        return
    from components.config.loader import find_arm, load_study
    from components.config.problems import ConfigError

    study = load_study(arguments.params)
    arm = find_arm(study, arguments.arm)
    if arm.name not in study.backbones:
        raise ConfigError(f"--arm {arm.name}: not a backbone; there are {', '.join(study.backbones) or 'none'}")
    from components.data.tokenizer import Tokenizer
    from components.huggingface.backbone import import_backbone

    path, out = arm.objective.model_dump()["path"], arguments.out / arm.name
    import_backbone(arm, path, Tokenizer.open(arguments.tokenizer), study.data.seq_len, out)
    print(f"{out}: {path}, {arm.model.n_blocks} blocks, for {len(arm.training.seeds)} seed(s)")


def _describe(path: str) -> None:
    from components.huggingface.checkpoint import find_config
    from components.huggingface.config import model_yaml, read_config

    shape = read_config(find_config(path, "--describe"))
    print(f"# {path}: {shape.vocab_size:,} ids, at most {shape.max_tokens:,} tokens; its keys of `model`:")
    print(model_yaml(shape))


def _arguments() -> argparse.Namespace:
    parser = command_parser("tasks.import_backbone", __doc__, EXAMPLES)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--arm", help="an entry of `backbones` in the parameter file")
    which.add_argument("--describe", metavar="PATH", help="print the keys of `model` of this checkpoint (folder or hub id)")
    add_path(parser, "--params", "params.yaml", "parameter file")
    add_path(parser, "--tokenizer", "artifacts/tokenizer", "folder of the study's tokenizer")
    add_path(parser, "--out", "artifacts/models", "folder of the models")
    return parser.parse_args()


if __name__ == "__main__":
    run_command(main)
