"""The section `backbones`, and what expansions and controls make of a backbone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from components.config.loader import load_study, read_yaml
from components.config.problems import ConfigError
from components.config.schema import Study
from components.objectives.base import build_objective, settings_of
from tests.toys import ROOT, telescopic
from tests.unit.config.test_expansions import _lists

STREAMS = {
    "n_streams": 2,
    "layers": ["intra", "cross_full"],
    "rope_rule": "by_layer",
    "kv": "separate",
    "supervision": "last",
    "n_mirrored": 0,
}
TWO: dict[str, Any] = {"base": "llama", "streams": STREAMS, "optimizer": "fresh", "training": {"steps": 12, "warmup_steps": 2}}
FOUR = {**TWO, "base": "hd-n2", "streams": {"n_streams": 4}, "optimizer": "keep", "training": {"steps": 8, "warmup_steps": 2}}
TLM = {"base": "llama", "objective": telescopic(), "optimizer": "fresh", "training": {"steps": 12, "warmup_steps": 2}}
DROPS = {"kind": "layerdrop", "drop_probability": 0.1}
LLAMA3 = {"kind": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 1.0, "original_context": 9}
SHAPE = {"segments": [{"n_blocks": 2, "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "d_inner": 40}], "tied_embeddings": True}


def _load(folder: Path, expansions: dict[str, Any] | None = None, **sections: Any) -> Study:
    from ruamel.yaml import YAML

    raw = dict(read_yaml(ROOT / "scales" / "tiny.yaml"))
    raw |= {"arms": {}, "backbones": {"llama": {"path": "llama", "model": SHAPE}}, "expansions": expansions or {}, "controls": {}}
    path = folder / "params.yaml"
    with path.open("w") as file:
        YAML(typ="safe", pure=True).dump(_lists(raw | sections), file)
    return load_study(path)


def test_a_backbone_is_a_model_that_is_not_trained(tmp_path: Path) -> None:
    study = _load(tmp_path)
    arm = study.models["llama"]
    shape = arm.model.blocks[0]
    assert (shape.n_heads, shape.n_kv_heads, shape.head_dim, shape.d_inner) == (4, 2, 8, 40)
    assert (arm.objective.kind, arm.objective.trains, arm.next_step) == ("pretrained", False, 0)
    assert arm.objective.trained_depths(arm.model) == (2,)


def test_what_goes_on_from_it_starts_at_the_first_batch_and_unties_with_streams(tmp_path: Path) -> None:
    study = _load(tmp_path, {"hd-n2": TWO, "hd-n4": FOUR, "tlm": TLM})
    two, four, tlm = (study.models[name] for name in ("hd-n2", "hd-n4", "tlm"))
    assert (two.first_step, four.first_step, tlm.first_step) == (0, 12, 0)
    assert (two.objective.inner.kind, tlm.objective.inner.kind) == ("pretrained", "telescopic")
    assert (two.model.tied_embeddings, tlm.model.tied_embeddings) == (False, True)
    assert tlm.objective.trained_depths(tlm.model) == (1, 2)
    assert settings_of(json.loads(two.objective.model_dump_json())) == two.objective  # as a model card has them


def test_controls_of_it_have_its_loss_and_shape_and_the_tokens_or_flops(tmp_path: Path) -> None:
    controls = {name: {"base": "llama", "of": "hd-n4", "equal": name} for name in ("tokens", "flops")}
    study = _load(tmp_path, {"hd-n2": TWO, "hd-n4": FOUR}, controls=controls)
    tokens, flops = (study.models[name] for name in ("tokens", "flops"))
    assert tokens.training.steps == 20
    assert (tokens.model, tokens.objective.optimizer) == (study.models["llama"].model, "fresh")  # as its lineage starts
    spent = {arm: build_objective(study.models[arm], 300, 0).expected_flops(32) for arm in ("hd-n2", "hd-n4", "flops")}
    assert flops.training.steps == round((spent["hd-n2"] * 12 + spent["hd-n4"] * 8) / spent["flops"])


def test_an_expansion_of_an_arm_may_change_the_objective_too(tmp_path: Path) -> None:
    arms = read_yaml(ROOT / "scales" / "tiny.yaml")["arms"]
    deeper = {**TLM, "base": "twin-full", "optimizer": "keep"}
    study = _load(tmp_path, {"tlm": deeper}, arms=arms)
    assert study.models["tlm"].first_step == study.models["twin-full"].training.steps
    assert study.models["tlm"].objective.trained_depths(study.models["tlm"].model) == (1, 2, 3, 4)


@pytest.mark.parametrize(
    ("expansions", "sections", "key", "says"),
    [
        ({"hd-n2": {**TWO, "optimizer": "keep"}}, {}, "expansions.hd-n2.optimizer", "no optimizer state"),
        ({"same": {"base": "llama", "optimizer": "fresh"}}, {}, "expansions.same", "changes nothing"),
        ({"tlm": {**TLM, "objective": {"kind": "telescopik"}}}, {}, "expansions.tlm.objective.kind", "telescopic"),
        ({"tlm": {**TLM, "objective": DROPS}}, {}, "expansions.tlm.base", "must be trained with"),
        ({}, {"backbones": {}}, "arms", "nothing to study"),
        ({}, {"backbones": {"llama": {"path": ""}}}, "backbones.llama.path", "at least 1 character"),
        ({}, {"backbones": {"llama": {"path": "x"}}}, "backbones.llama.model.segments", "one segment"),
        ({}, {"backbones": {"llama": {"path": "x", "modle": {}}}}, "backbones.llama.modle", "unknown key"),
        ({"hd": {**TWO, "base": "lama"}}, {}, "expansions.hd.base", "did you mean llama"),
        ({"hd": {**TWO, "training": {"batch_rows": 7}}}, {}, "expansions.hd.training.batch_rows", "must be a multiple"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_key_and_remedy(
    tmp_path: Path, expansions: dict[str, Any], sections: dict[str, Any], key: str, says: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        _load(tmp_path, expansions, **sections)
    lines = [line for line in str(raised.value).splitlines() if f": {key}: " in line]
    assert any(says in line for line in lines), str(raised.value)


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({"segments": [{"n_blocks": 2, "d_model": 16, "n_heads": 3, "n_kv_heads": 2}]}, "segments.0.n_kv_heads", "must divide"),
        ({"ffn_ratio": None}, "ffn_ratio", "needed by segment 0"),
        ({"tied_embeddings": True}, "tied_embeddings", "one segment"),
        ({"rope_scaling": LLAMA3}, "rope_scaling.high_freq_factor", "more than low_freq_factor"),
        ({"rope_scaling": {"kind": "linear", "factor": 0.5}}, "rope_scaling.factor", "greater than or equal to 1"),
        ({"rope_scaling": {"kind": "yarn", "factor": 4.0}}, "rope_scaling", "llama3"),
    ],
)  # fmt: skip
def test_a_shape_that_cannot_be_is_named(tmp_path: Path, changes: dict[str, Any], key: str, says: str) -> None:
    model = {**read_yaml(ROOT / "scales" / "tiny.yaml")["model"], **changes}
    with pytest.raises(ConfigError) as raised:
        _load(tmp_path, arms=read_yaml(ROOT / "scales" / "tiny.yaml")["arms"], backbones={}, model=model)
    lines = [line for line in str(raised.value).splitlines() if f": model.{key}: " in line]
    assert any(says in line for line in lines), str(raised.value)
