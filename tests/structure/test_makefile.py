"""What the Makefile runs, with a Python that only notes how it was called; `make setup` itself is the first step of CI."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def make(folder: Path, *words: str, **variables: str) -> tuple[list[str], str]:
    """How Python was called, and what was printed."""
    for name in ("python", "lint-imports"):
        program = folder / name
        program.write_text(f'#!/bin/sh\n[ $# = 0 ] || echo "$@ with $MLFLOW_BACKEND_STORE_URI" >> "{folder}/calls"\n')
        program.chmod(0o755)
    ready = folder / "ready"
    ready.touch()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")} | variables
    command = ["make", "-s", *words, f"BIN={folder}", f"READY={ready}", "-o", str(ready)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    calls = folder / "calls"
    return calls.read_text().splitlines() if calls.exists() else [], done.stdout


@pytest.mark.parametrize(
    ("store", "said", "started"),
    [
        (None, "http://127.0.0.1:5123", "sqlite:///mlruns/mlflow.db"),
        ("postgresql://user:secret@127.0.0.1/mlflow", "http://127.0.0.1:5123", "postgresql://user:secret@127.0.0.1/mlflow"),
        ("http://mlflow.example:5000", "open MLFLOW_TRACKING_URI in a browser", None),
    ],
)
def test_ui_starts_pages_only_for_a_store_without_a_server(
    store: str | None, said: str, started: str | None, tmp_path: Path
) -> None:
    (tracked, *calls), shown = make(tmp_path, "ui", "PORT=5123", **({"MLFLOW_TRACKING_URI": store} if store else {}))
    assert tracked.startswith("-m tasks.track")
    assert said in shown
    assert calls == ([f"-m mlflow ui --host 127.0.0.1 --port 5123 with {started}"] if started else [])
    assert "secret" not in shown


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        (("study",), ["-m flows.full_study", "-m tasks.report --summary"]),
        (("test",), ["-m pytest"]),
        (("fast",), ["-m pytest -m not slow"]),
        (("lint",), ["-m ruff format --check .", "-m ruff check .", "-m mypy"]),
        (("server",), ["-m prefect server start --host 127.0.0.1 --port 4200"]),
        (("server", "PORT=4300"), ["-m prefect server start --host 127.0.0.1 --port 4300"]),
        (("serve",), ["-m flows.serve"]),
        (("scale", "SCALE=all-arms"), ["-m tasks.scale all-arms"]),
        (("bench",), ["-m bench.all --size short"]),
        (("bench", "SIZE=full"), ["-m bench.all --size full"]),
    ],
)
def test_a_target_runs_its_commands(words: tuple[str, ...], commands: list[str], tmp_path: Path) -> None:
    calls, _ = make(tmp_path, *words)
    assert [call.removesuffix(" with ") for call in calls] == commands


def test_help_has_every_target(tmp_path: Path) -> None:
    named = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, flags=re.MULTILINE).group(1).split())
    assert {line.split()[1] for line in make(tmp_path)[1].splitlines()} == named - {"fast", "lint"}  # the two parts of check


def test_clean_takes_results_and_leaves_what_was_installed_and_written(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    kept, gone = {".venv", ".dvc", "Makefile", "params.yaml", "data", "exports"}, {"artifacts", "runs", "mlruns", ".prefect"}
    for name in kept | gone:
        (tmp_path / name).mkdir(exist_ok=True) if name not in ("Makefile", "params.yaml") else (tmp_path / name).touch()
    subprocess.run(["make", "-s", "clean"], cwd=tmp_path, check=True, timeout=60)
    assert {path.name for path in tmp_path.iterdir()} == kept


FREEZING = """#!/bin/sh
case "$*" in
*"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
*"pip install"*) echo "$@" > asked ;;
*"pip freeze"*) printf 'numpy==2.4.6\\ntorch==2.13.0+cpu\\ntqdm==4.70.1\\n' ;;
esac
"""


def test_lock_writes_what_a_fresh_environment_has_and_leaves_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "requirements.lock").write_text("# what this is\nnumpy==1.0.0\n")
    (tmp_path / "python").write_text(FREEZING)
    (tmp_path / "python").chmod(0o755)
    subprocess.run(["make", "-s", "lock", f"PYTHON={tmp_path / 'python'}"], cwd=tmp_path, check=True, timeout=60)
    assert (tmp_path / "requirements.lock").read_text() == "# what this is\nnumpy==2.4.6\ntorch==2.13.0\ntqdm==4.70.1\n"
    assert (tmp_path / "asked").read_text().rstrip().endswith("setuptools>=80 .[dev]")
    assert list((tmp_path / "build").iterdir()) == []


def pins(lines: list[str]) -> dict[str, str]:
    """Versions by name, spelt as the index spells names."""
    return {
        re.sub(r"\[.*\]", "", name).lower().replace("_", "-"): version for name, version in (line.split("==") for line in lines)
    }


def test_every_pin_is_what_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = pins([*project["dependencies"], *project["optional-dependencies"]["dev"]])
    locked = pins((ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()[1:])
    assert {name: locked.get(name) for name in wanted} == wanted


AUDITING = """#!/bin/sh
case "$*" in
*"-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
*"pip install"*) cp "$0" build/audit/bin/pip-audit ;;
*) echo "$@" >> asked ;;
esac
"""


def test_audit_asks_about_every_pin_and_takes_no_answer_for_a_failure(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(MAKEFILE)
    (tmp_path / "python").write_text(AUDITING)
    (tmp_path / "python").chmod(0o755)
    for _ in range(2):  # the second time in the same environment
        subprocess.run(["make", "-s", "audit", f"PYTHON={tmp_path / 'python'}"], cwd=tmp_path, check=True, timeout=60)
    asked = (tmp_path / "asked").read_text().splitlines()
    assert asked == ["--requirement requirements.lock --no-deps --disable-pip --strict"] * 2
