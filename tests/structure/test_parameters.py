"""The parameter files and the schema: presets load, the default is the quick scale, and every key is read by some code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import BaseModel

from components.config import schema
from components.config.loader import load_study, objective_kinds

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("path", sorted((ROOT / "scales").glob("*.yaml")), ids=lambda path: path.stem)
def test_scale_loads(path: Path) -> None:
    assert load_study(path).models


def test_quick_scale_is_the_default() -> None:
    assert (ROOT / "scales" / "quick.yaml").read_bytes() == (ROOT / "params.yaml").read_bytes()


def test_proxy_scale_is_the_papers_recipe() -> None:
    study = load_study(ROOT / "scales" / "proxy-200m.yaml")
    assert [(segment.n_blocks, segment.d_model) for segment in study.model.segments] == [(11, 320), (5, 576), (4, 960)]
    training = study.training
    tokens = training.steps * training.batch_rows * study.data.seq_len
    assert (training.steps, round(tokens / 1e9, 1), training.cooldown_steps) == (19073, 20.0, 1734)
    assert study.data.source.token_budget * (1 - study.data.validation_share) >= tokens
    assert study.data.tokenizer.vocab_size == 49152


def sections() -> list[type[BaseModel]]:
    kinds = [value for value in vars(schema).values() if isinstance(value, type) and issubclass(value, schema.Section)]
    return [*kinds, *objective_kinds().values()]


def test_every_key_is_read_somewhere() -> None:
    code = "".join(
        path.read_text(encoding="utf-8")
        for package in ("components", "tasks", "flows")
        for path in sorted((ROOT / package).rglob("*.py"))
    )
    keys = {(section.__name__, field) for section in sections() for field in section.model_fields}
    read_by_the_loader = {("StudyFile", "schema_version")}  # checked by its type, Literal[1]
    unread = [f"{section}.{field}" for section, field in sorted(keys) if not re.search(rf"\.{field}\b", code)]
    assert [key for key in unread if tuple(key.split(".")) not in read_by_the_loader] == []
