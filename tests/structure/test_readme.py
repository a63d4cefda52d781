"""The README and docs/ against the repository: every command and every file they name exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXT = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)


def code_of_the_pages() -> str:
    """Everything in back-quotes, inline or fenced."""
    return "\n".join(re.findall(r"```.*?```|`[^`\n]+`", TEXT, flags=re.DOTALL))


def test_every_make_target_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    named = set(re.findall(r"\bmake ([a-z]+)", code_of_the_pages()))
    assert named
    assert {target for target in named if not re.search(rf"^{target}:", makefile, flags=re.MULTILINE)} == set()


def test_every_module_exists() -> None:
    named = set(re.findall(r"python -m ((?:tasks|flows|bench)\.\w+)", code_of_the_pages()))
    assert named
    assert {module for module in named if not (ROOT / f"{module.replace('.', '/')}.py").exists()} == set()


def test_every_path_exists() -> None:
    folders = "components|tasks|flows|scales|tests|bench"
    named = set(re.findall(rf"\b((?:{folders})/[\w./-]*\w)", code_of_the_pages()))
    assert {path for path in named if not (ROOT / path).exists() and "<" not in path} == set()
