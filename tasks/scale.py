"""Puts a preset parameter file in place of params.yaml; an edited params.yaml is kept as params.previous.yaml.

When that is taken, by other edits, as params.previous-2.yaml and so on: nothing that was written by hand is ever overwritten.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.command import command_parser, run_command

if TYPE_CHECKING:
    from components.config.schema import Study

SCALES = Path("scales")
PARAMS = Path("params.yaml")
EXAMPLES = """
python -m tasks.scale proxy-200m                     the same as `make scale SCALE=proxy-200m`
python -m tasks.scale quick                          back to the quick study
"""


def main() -> None:
    """Checks the preset, keeps an edited params.yaml as params.previous.yaml, and copies the preset over it."""
    put_in_place(preset(_arguments().scale), PARAMS)


def preset(scale: str, root: Path = Path()) -> Path:
    """The file of a scale, of the checkout at `root`.

    Raises:
        ConfigError: there is no such scale.
    """
    from components.config.problems import ConfigError
    from components.config.validation import suggest

    names = sorted(path.stem for path in (root / SCALES).glob("*.yaml"))
    if scale not in names:
        remedy = suggest(scale, names) or f"there are {', '.join(names)}"
        raise ConfigError(f"scale {scale!r}: no file {SCALES}/{scale}.yaml; {remedy}")
    return root / SCALES / f"{scale}.yaml"


def put_in_place(source: Path, params: Path, seeds: Sequence[int] = ()) -> None:
    """Copies a valid parameter file over `params`; what stood there is kept beside it when it is no copy of a preset.

    Args:
        seeds: written in the place of `training.seeds`; none leaves them.

    Raises:
        ConfigError: the file is missing or wrong, or the seeds do not fit it.
    """
    check_file(source, seeds)
    text = with_seeds(source.read_text(encoding="utf-8"), seeds)
    if params.exists():
        before = params.read_text(encoding="utf-8", errors="replace")
        if before == text:
            return
        presets = (one.read_text(encoding="utf-8") for one in (params.parent / SCALES).glob("*.yaml"))
        if not any(_differs_in_seeds_only(before, preset) for preset in presets):
            print(f"kept the edited {params.name} as {_keep(params).name}")
    params.write_text(text, encoding="utf-8")
    told = f", with the seeds {', '.join(map(str, seeds))}" if seeds else ""
    print(f"{source} is now {params.name}{told}" if source != params else f"{params.name}{told}")


def _differs_in_seeds_only(text: str, preset: str) -> bool:
    from ruamel.yaml.error import YAMLError

    try:
        return text == preset or with_seeds(text, [0]) == with_seeds(preset, [0])
    except (YAMLError, AttributeError, StopIteration, TypeError, ValueError):  # hand-made text can be anything
        return False


def _keep(params: Path) -> Path:
    """Copies the file to the first name that is free, or has this very text already."""
    text, number = params.read_bytes(), 1
    while True:
        kept = params.with_name(f"{params.stem}.previous{'' if number == 1 else f'-{number}'}{params.suffix}")
        if not kept.exists():
            shutil.copyfile(params, kept)
        if kept.read_bytes() == text:
            return kept
        number += 1


def check_file(source: Path, seeds: Sequence[int] = ()) -> Study:
    """The study of a parameter file as it would be with these seeds.

    Raises:
        ConfigError: the file is missing or wrong, or the seeds do not fit it or cannot be written into it.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    from components.config.loader import as_tuples, load_study, resolve_study
    from components.config.problems import ConfigError

    study = load_study(source)
    if not seeds:
        return study
    text, yaml = source.read_text(encoding="utf-8"), YAML(typ="safe", pure=True)
    raw = yaml.load(text)
    raw["training"]["seeds"][:] = seeds  # in place: they change wherever an alias names them
    try:
        is_written = yaml.load(with_seeds(text, seeds)) == raw
    except (YAMLError, StopIteration):
        is_written = False
    if not is_written:
        raise ConfigError(
            f"{source}: training.seeds: {list(seeds)} cannot take the place of what stands there; write them there as `seeds: [42]`"
        )
    return resolve_study(as_tuples(raw), source)


def with_seeds(text: str, seeds: Sequence[int]) -> str:
    """A valid parameter file with other `training.seeds`; everything else, comments included, stays as it is."""
    from ruamel.yaml import YAML

    if not seeds:
        return text
    root = YAML(typ="safe", pure=True).compose(text)
    training = next(value for key, value in root.value if key.value == "training")
    key, node = next((key, value) for key, value in training.value if key.value == "seeds")
    start, end = node.start_mark.index, (node if node.flow_style else node.value[-1]).end_mark.index
    indent = " " * (node.start_mark.column == key.start_mark.column)  # only a list of dashes may stand as far left as its key
    anchor = f"&{node.anchor} " if node.anchor else ""
    return f"{text[:start]}{indent}{anchor}[{', '.join(map(str, seeds))}]{text[end:]}"


def _arguments() -> argparse.Namespace:
    parser = command_parser("tasks.scale", __doc__, EXAMPLES)
    parser.add_argument("scale", help="name of a file of scales/, without .yaml")
    return parser.parse_args()


if __name__ == "__main__":
    run_command(main)
