"""Who may import whom, and that importing does nothing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from components.config.loader import load_study, objective_kinds

# Each tool has its adapters; nobody else touches it. Flows are Prefect's own place.
ADAPTERS = {
    "ray": {"tasks/ray_train.py"},
    "mlflow": {"tasks/tracking.py"},
    "dvc": {"tasks/graph.py"},
    "prefect": {"tasks/stage.py", "flows/"},
}
LIGHT_MODULES = (
    "command",
    "graph",
    "pack",
    "recorded",
    "ray_head",
    "ray_train",
    "report",
    "scale",
    "supervisor",
    "track",
    "tracking",
    "train",
)


def sources(repository: Path) -> Iterator[tuple[str, ast.Module]]:
    for package in ("components", "tasks", "flows"):
        for path in sorted((repository / package).rglob("*.py")):
            yield path.relative_to(repository).as_posix(), ast.parse(path.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return {name.split(".")[0] for name in names}


def test_import_rules_hold(repository: Path) -> None:
    command = [str(Path(sys.executable).with_name("lint-imports"))]
    done = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_nothing_reads_a_pickle(repository: Path) -> None:
    """What a pickle holds runs when it is read."""
    readers = {"cloudpickle", "dill", "joblib", "marshal", "pickle", "shelve"}
    loads = [
        f"{path}:{node.lineno}"
        for path, tree in sources(repository)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and ast.unparse(node) in {"torch.load", "np.load", "numpy.load", "pd.read_pickle"}
    ]
    assert [path for path, tree in sources(repository) if imported(tree) & readers] + loads == []


def test_each_tool_is_used_by_its_adapters_only(repository: Path) -> None:
    strangers = [
        f"{path} imports {tool}"
        for path, tree in sources(repository)
        for tool in imported(tree) & set(ADAPTERS)
        if not any(path.startswith(allowed) for allowed in ADAPTERS[tool])
    ]
    assert strangers == []


def test_importing_a_module_does_nothing(repository: Path) -> None:
    allowed = (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.If)
    acting = [
        f"{path}:{node.lineno}"
        for path, tree in sources(repository)
        for node in tree.body
        if not isinstance(node, allowed) and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    assert acting == []


def test_conditions_at_module_level_are_main_or_typing(repository: Path) -> None:
    conditions = {ast.unparse(node.test) for _, tree in sources(repository) for node in tree.body if isinstance(node, ast.If)}
    assert conditions <= {"__name__ == '__main__'", "TYPE_CHECKING"}


@pytest.mark.parametrize("module", LIGHT_MODULES)
def test_commands_start_without_the_heavy_libraries(repository: Path, module: str) -> None:
    code = f"import sys, tasks.{module}; print(*sorted({{'torch', 'ray', 'mlflow', 'prefect', 'datasets'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_no_code_knows_a_model_by_its_name(repository: Path) -> None:
    """What a model is follows from its settings, of which the kind of objective is one: a kind may be called as an arm of it is."""
    names = {name for path in (repository / "scales").glob("*.yaml") for name in load_study(path).models} - set(objective_kinds())
    known = [
        f"{path}:{node.lineno} {node.value}"
        for path, tree in sources(repository)
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and node.value in names
    ]
    assert {"tlm-uniform", "hd-n2", "repair-head"} <= names
    assert known == []


def test_one_place_compiles(repository: Path) -> None:
    """torch.compile gives up silently after a few graphs; there, the number of graphs is known and watched."""
    compiles = re.compile(r"torch\.compile\(|\.compile\((?!r?\")")  # not re.compile(r"...")
    files = (repository / "components").rglob("*.py")
    assert [path.name for path in files if compiles.search(path.read_text(encoding="utf-8"))] == ["compiled.py"]
