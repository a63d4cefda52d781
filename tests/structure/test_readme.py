"""The README and docs/ against the repository: every target and file that they name exists, every piece of YAML is valid."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from components.config.loader import read_yaml, resolve_study
from components.config.schema import BackboneBlock

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


def yaml_of_the_pages(folder: Path) -> list[dict[str, Any]]:
    """Every fenced block of YAML, and every inline mapping such as `source: {kind: files, ...}`."""
    fenced = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    inline = re.findall(r"`([a-z][\w-]*: \{[^`]+\})`", TEXT)
    found = []
    for i, text in enumerate([*fenced, *(text.replace("\n", " ") for text in inline)]):
        (folder / f"{i}.yaml").write_text(text, encoding="utf-8")
        found.append(read_yaml(folder / f"{i}.yaml"))
    return found


def test_every_piece_of_yaml_is_valid_where_it_belongs(tmp_path: Path) -> None:
    study = read_yaml(ROOT / "scales" / "proxy-200m.yaml")
    placed = set()
    for piece in yaml_of_the_pages(tmp_path):
        ((key, value),) = piece.items()
        raw = {**study, "arms": dict(study["arms"])}
        if key in ("source", "tokenizer"):
            raw["data"] = {**study["data"], key: value}
        elif key == "benchmarks":
            raw[key] = value
        elif key == "backbones":  # with the shape of its checkpoint, which the page says how to get
            assert all(BackboneBlock.model_validate(block) for block in value.values())
        elif key == "runtime":
            raw[key] = {**study[key], **value}
            raw["arms"] |= {name: study["arms"]["twin-full"] for name in value["arms"] if name not in study["arms"]}
        elif "base" in value:
            raw["repairs"] = {**study["repairs"], key: value}
        else:
            raw["arms"] |= {key: value}
        resolve_study(raw, Path(f"{key} of the pages"))
        placed.add(key)
    assert {"tlm-exitgrid", "benchmarks", "runtime", "repair-head", "source", "tokenizer", "backbones"} <= placed
