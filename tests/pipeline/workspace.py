"""A checkout in a folder of its own, with a small corpus, for tests that run whole studies."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

COPIED = (
    "components",
    "tasks",
    "flows",
    "scales",
    ".dvc",
    "dvc.yaml",
    ".dvcignore",
    ".gitignore",
    "pyproject.toml",
    "prefect.toml",
)
TOOL_SETTINGS = ("RAY_", "MLFLOW_", "PREFECT_", "DVC_")
HOLD = """
        while (run.run_dir.parents[2] / "hold").exists():
            (run.run_dir.parents[2] / "held").touch()
            time.sleep(0.05)
"""
WORDS = "the a cold warm river stone runs falls over under near far from old new mill town and then again"


def _listen_to_interrupts() -> None:
    """A test run in the background of a shell ignores SIGINT, and hands that on; a command started by a person does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@dataclass(frozen=True)
class Workspace:
    """A checkout in a folder of its own, and how to run commands in it."""

    root: Path

    def environment(self, settings: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(TOOL_SETTINGS)}
        path = os.pathsep.join([str(Path(sys.executable).parent), clean["PATH"]])
        return {**clean, "PATH": path, "OMP_NUM_THREADS": "1", **settings}

    def run(
        self, *arguments: str, expected: int = 0, seconds: float = 1200, settings: Mapping[str, str] = MappingProxyType({})
    ) -> str:
        """What `python -m ...` printed; fails unless it exits as expected.

        Args:
            settings: environment variables.
        """
        done = subprocess.run(
            [sys.executable, "-m", *arguments],
            cwd=self.root,
            env=self.environment(settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == expected, done.stdout
        return done.stdout

    def start(self, *arguments: str, settings: Mapping[str, str] = MappingProxyType({})) -> subprocess.Popen[str]:
        """The command in the background, in a session of its own, with more environment; its lines come through stdout."""
        return subprocess.Popen(
            [sys.executable, "-m", *arguments],
            cwd=self.root,
            env=self.environment(settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=_listen_to_interrupts,
        )

    def edit(self, old: str, new: str) -> None:
        """Replaces the one place of params.yaml that reads `old`."""
        params = self.root / "params.yaml"
        text = params.read_text(encoding="utf-8")
        assert text.count(old) == 1
        params.write_text(text.replace(old, new), encoding="utf-8")

    @contextmanager
    def edited(self, old: str, new: str) -> Iterator[None]:
        """Inside the block, params.yaml reads `new` in the one place that reads `old`."""
        self.edit(old, new)
        try:
            yield
        finally:
            self.edit(new, old)

    def insert(self, file: str, after: str, code: str) -> None:
        """Adds code to a module of this checkout, below the one line that ends in `after`."""
        module = self.root / file
        text = module.read_text(encoding="utf-8")
        assert text.count(f"{after}\n") == 1
        module.write_text(text.replace(f"{after}\n", f"{after}\n{code}"), encoding="utf-8")

    def hold_training(self) -> None:
        """Trainings of this checkout wait in step 4, where they first report, until `release`; `is_held` says that one does."""
        self.insert("tasks/train.py", "report(asdict(progress))", HOLD.lstrip("\n"))
        (self.root / "hold").touch()

    def is_held(self) -> bool:
        return (self.root / "held").exists()

    def release(self) -> None:
        (self.root / "hold").unlink()


def tiny_study(repository: Path, root: Path) -> Workspace:
    """A copy of the repository with the tiny scale and a corpus of its own."""
    root.mkdir()
    for part in COPIED:
        source = repository / part
        if source.is_dir():
            shutil.copytree(source, root / part, ignore=shutil.ignore_patterns("__pycache__", "tmp", "cache", "config.local"))
        else:
            shutil.copyfile(source, root / part)
    write_corpus(root / "corpus")
    workspace = Workspace(root)
    shutil.copyfile(root / "scales" / "tiny.yaml", root / "params.yaml")
    workspace.edit("    kind: sotu ", "    kind: files\n    paths: ['corpus/*.txt']\n    text_column: text ")
    subprocess.run(["git", "init", "--quiet", "."], cwd=root, check=True)
    return workspace


def write_corpus(folder: Path) -> None:
    """Sixty short documents with some structure: enough to tokenize, split and train on in a second."""
    folder.mkdir()
    words = WORDS.split()
    for document in range(60):
        picked = [words[(document * 7 + i * i + i // 3) % len(words)] for i in range(400)]
        (folder / f"{document:02}.txt").write_text(" ".join(picked) + f" number {document}.\n", encoding="utf-8")
