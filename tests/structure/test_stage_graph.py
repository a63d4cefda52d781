"""`dvc.yaml` against the parameter files, the commands and the code it names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from components.config.loader import read_yaml

ROOT = Path(__file__).resolve().parents[2]
PARAMETER_FILES = [ROOT / "params.yaml", *sorted((ROOT / "scales").glob("*.yaml"))]


def stages() -> Iterator[tuple[str, dict[str, Any], str | None]]:
    """Name, body and `foreach` section of every stage of the file."""
    for name, stage in read_yaml(ROOT / "dvc.yaml")["stages"].items():
        section = re.fullmatch(r"\$\{(\w+)\}", stage["foreach"]).group(1) if "foreach" in stage else None
        yield name, stage.get("do", stage), section


def paths(entries: Any) -> list[str]:
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries or ()]


def look_up(values: Any, key: str) -> bool:
    """Is the dotted key there? Names of arms hold no dots."""
    for part in key.split("."):
        if not isinstance(values, dict) or part not in values:
            return False
        values = values[part]
    return True


def expand(key: str, section: str | None, values: dict[str, Any]) -> list[str]:
    """The key for every entry of the `foreach` section."""
    if section is None:
        return [key]
    items = values[section].items()
    fill = [key.replace("${key}", name) for name, _ in items]
    fields = re.findall(r"\$\{item\.(\w+)\}", key)
    for field in fields:
        fill = [one.replace(f"${{item.{field}}}", str(item[field])) for one, (_, item) in zip(fill, items, strict=True)]
    return fill


@pytest.mark.parametrize("path", PARAMETER_FILES, ids=lambda path: path.stem)
def test_every_parameter_of_a_stage_exists(path: Path) -> None:
    values = read_yaml(path)
    wanted = {one for _, stage, section in stages() for key in stage["params"] for one in expand(key, section, values)}
    assert [key for key in sorted(wanted) if not look_up(values, key)] == []


def test_no_stage_depends_on_where_it_runs() -> None:
    assert [name for name, stage, _ in stages() if any(key.startswith("runtime") for key in stage["params"])] == []


def test_every_command_is_a_module_that_exists_and_a_dependency() -> None:
    for name, stage, _ in stages():
        module = re.search(r"-m tasks\.(\w+)", stage["cmd"]).group(1)
        assert (ROOT / "tasks" / f"{module}.py").exists(), name
        assert f"tasks/{module}.py" in stage["deps"], name


def test_every_code_dependency_exists() -> None:
    code = {path for _, stage, _ in stages() for path in paths(stage["deps"]) if not path.startswith("artifacts/")}
    assert [path for path in sorted(code) if not (ROOT / path).exists()] == []


def test_every_file_dependency_is_made_by_another_stage() -> None:
    made = {path for _, stage, _ in stages() for path in paths(stage["outs"])}
    needed = {path for _, stage, _ in stages() for path in paths(stage["deps"]) if path.startswith("artifacts/")}
    made_as_templates = {re.sub(r"\$\{[^}]+\}", "*", path) for path in made}
    for path in needed:
        template = re.sub(r"\$\{[^}]+\}", "*", path)
        assert any(out == template or out.startswith(f"{template}/") or template.startswith(f"{out}/") for out in made_as_templates)


def test_nothing_is_written_outside_the_ignored_folders() -> None:
    ignored = {line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()}
    assert {path.split("/")[0] for _, stage, _ in stages() for path in paths(stage["outs"])} <= ignored


def test_training_depends_on_the_code_its_checkpoints_are_named_after() -> None:
    source = (ROOT / "components" / "training" / "run.py").read_text(encoding="utf-8")
    parts = re.findall(r'"([^"]+)"', re.search(r"CODE_OF_A_RUN = \(([^)]+)\)", source).group(1))
    for name, stage, _ in stages():
        if "tasks.train" in stage["cmd"]:
            assert {f"components/{part}" for part in parts} <= set(stage["deps"]), name


def imported_components(path: Path, seen: set[Path]) -> set[Path]:
    """Files of `components` that a file imports, at its top or inside functions, and what they import."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        names: list[str] = []
        if isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            file = ROOT / f"{name.replace('.', '/')}.py"
            if name.startswith("components.") and file.exists() and file not in seen:
                seen.add(file)
                imported_components(file, seen)
    return seen


# What only checks, names or stores values; the config files that decide numbers are listed by the stages that train.
DECIDES_NO_NUMBER = ("components/config", "components/data/checked_arrow.py", "components/results", "components/profiling/plan.py")


def test_a_stage_depends_on_all_code_that_it_imports() -> None:
    missing = []
    for name, stage, _ in stages():
        module = re.search(r"-m tasks\.(\w+)", stage["cmd"]).group(1)
        listed = tuple(paths(stage["deps"]))
        for file in imported_components(ROOT / "tasks" / f"{module}.py", set()):
            relative = file.relative_to(ROOT).as_posix()
            if not relative.startswith((*DECIDES_NO_NUMBER, *listed)):
                missing.append(f"{name}: {relative}")
    assert sorted(missing) == []


def test_the_identity_of_a_run_covers_the_code_its_stage_depends_on() -> None:
    text = (ROOT / "components" / "training" / "run.py").read_text(encoding="utf-8")
    identity = set(re.findall(r'"([\w/.]+)"', re.search(r"CODE_OF_A_RUN = \((.*?)\)", text, re.DOTALL).group(1)))
    stage = next(stage for name, stage, _ in stages() if name == "train")
    assert identity == {path.removeprefix("components/") for path in paths(stage["deps"]) if path.startswith("components/")}
