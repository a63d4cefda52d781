"""Every command's `--help`, and every command that a text names: the README, docs/ and the examples of `--help` itself."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from components.config.loader import read_yaml
from flows import launch

ROOT = Path(__file__).resolve().parents[2]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))])
CODE = re.findall(r"```\w*\n(.*?)```", TEXT, flags=re.DOTALL) + re.findall(r"`([^`\n]+)`", TEXT)
LINES = [line.removeprefix("$ ") for block in CODE for line in block.splitlines()]
NO_COMMAND_LINE = {"flows.remains", "flows.serve", "tasks.supervisor"}  # started by others, or without options


def modules() -> list[str]:
    """Those of tasks and flows that are commands."""
    paths = [path for folder in ("tasks", "flows") for path in sorted((ROOT / folder).glob("*.py"))]
    names = [f"{path.parent.name}.{path.stem}" for path in paths if 'if __name__ == "__main__"' in path.read_text("utf-8")]
    return [name for name in names if name not in NO_COMMAND_LINE]


def parse(module: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the command makes of its options, before it does anything."""
    monkeypatch.setattr("sys.argv", ["command", *arguments])
    monkeypatch.chdir(ROOT)
    loaded = importlib.import_module(module)
    if module.startswith("flows."):
        return launch.options_of(getattr(loaded, module.removeprefix("flows.")).fn)
    return loaded._arguments()


def invocations(lines: list[str]) -> list[tuple[str, list[str]]]:
    """(module, arguments) of every line that runs one of them; what follows two spaces or a # is a remark."""
    found = []
    for line in lines:
        words = shlex.split(re.split(r" {2,}", line.strip())[0], comments=True) if "-m " in line else []
        if "-m" in words[:4] and words[words.index("-m") + 1 :]:
            module, *arguments = words[words.index("-m") + 1 :]
            if module in modules():
                found.append((module, arguments))
    return found


@pytest.mark.parametrize("module", modules())
def test_help_names_the_command_and_gives_examples_that_parse(
    module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(module, ["--help"], monkeypatch)
    shown = capsys.readouterr().out
    assert ended.value.code == 0
    assert shown.startswith(f"usage: python -m {module} ")
    examples = invocations(shown.partition("\nexamples:\n")[2].splitlines())
    assert examples
    for named, arguments in examples:
        assert named == module
        assert parse(module, arguments, monkeypatch) is not None


def test_every_option_says_what_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    bare = []
    for module in modules():
        with pytest.raises(SystemExit):
            parse(module, ["--help"], monkeypatch)
        lines = capsys.readouterr().out.partition("\noptions:\n")[2].partition("\n\n")[0].splitlines()
        for line, after in zip(lines, [*lines[1:], ""], strict=True):
            said_beside = re.match(r"  -[^ ].* {2,}\S", line)
            if line.startswith("  -") and not said_beside and not after.startswith(" " * 8):
                bare.append(f"{module}: {line.strip()}")
    assert bare == []


def test_every_command_of_the_pages_parses(monkeypatch: pytest.MonkeyPatch) -> None:
    named = invocations(LINES)
    assert {"tasks.plan", "tasks.generate", "tasks.select", "tasks.export", "flows.full_study"} <= {module for module, _ in named}
    for module, arguments in named:
        if arguments or module.startswith("flows."):  # a bare name in a sentence stands for the command
            parse(module, arguments, monkeypatch)


def test_every_scale_of_the_pages_exists() -> None:
    named = set(re.findall(r"(?:--scale |SCALE=)([\w-]+)", "\n".join(LINES)))
    assert named
    assert {scale for scale in named if not (ROOT / "scales" / f"{scale}.yaml").exists()} == set()


def test_every_stage_of_the_pages_exists() -> None:
    stages = read_yaml(ROOT / "dvc.yaml")["stages"]
    named = [words for line in LINES for words in re.findall(r"dvc repro((?: (?:-\w|[a-z][\w@-]*))+)", line)]
    targets = {word.partition("@")[0] for words in named for word in words.split() if not word.startswith("-")}
    assert {"tokenize", "contamination", "benchmark", "import"} & targets
    assert targets - set(stages) == set()
