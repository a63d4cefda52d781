"""Puts a preset parameter file in place of params.yaml: `python -m tasks.scale proxy-200m` (or `make scale SCALE=proxy-200m`)."""

from __future__ import annotations

import argparse
import difflib
import filecmp
import shutil
from pathlib import Path

from tasks.command import run_command

SCALES = Path("scales")
PARAMS = Path("params.yaml")
PREVIOUS = "params.previous.yaml"


def main() -> None:
    """Checks the preset, keeps an edited params.yaml as params.previous.yaml, and copies the preset over it."""
    parser = argparse.ArgumentParser(prog="python -m tasks.scale", description=__doc__)
    parser.add_argument("scale", help="name of a file of scales/, without .yaml")
    put_in_place(preset(parser.parse_args().scale), PARAMS)


def preset(scale: str) -> Path:
    """The file of a scale.

    Raises:
        ConfigError: there is no such scale.
    """
    from components.config.problems import ConfigError

    names = sorted(path.stem for path in SCALES.glob("*.yaml"))
    if scale not in names:
        close = difflib.get_close_matches(scale, names, n=1)
        remedy = f"did you mean {close[0]}?" if close else f"there are {', '.join(names)}"
        raise ConfigError(f"scale {scale!r}: no file {SCALES / scale}.yaml; {remedy}")
    return SCALES / f"{scale}.yaml"


def put_in_place(source: Path, params: Path) -> None:
    """Copies a valid parameter file over `params`; what stood there is kept beside it when it is no copy of a preset.

    Raises:
        ConfigError: the file is missing or wrong.
    """
    from components.config.loader import load_study

    load_study(source)
    if params.exists():
        if filecmp.cmp(source, params, shallow=False):
            return
        presets = (params.parent / SCALES).glob("*.yaml")
        if not any(filecmp.cmp(one, params, shallow=False) for one in presets):
            shutil.copyfile(params, params.with_name(PREVIOUS))
            print(f"kept the edited {params.name} as {PREVIOUS}")
    shutil.copyfile(source, params)
    print(f"{source} is now {params.name}")


if __name__ == "__main__":
    run_command(main)
