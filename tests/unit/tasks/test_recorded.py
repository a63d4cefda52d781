"""What `dvc.lock` and the files say about models that started from others: repairs, expansions, controls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from components.config.loader import load_study, read_yaml
from components.config.schema import Study
from components.models.files import ModelCard
from components.results import (
    ArmCost,
    ArmEvaluation,
    DepthScore,
    SeedCost,
    SeedEvaluation,
    ValidationSet,
    write_record,
)
from tasks.recorded import TRAINED, recorded_arms
from tests.toys import ROOT

CONTROL = {"base": "tlm-uniform", "of": "hd-n2", "equal": "flops"}
REPAIR = {"base": "mlms-norm-distill", "part": "head", "training": {"lr": 0.01}}


def _lists(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _lists(value) for key, value in node.items()}
    return [_lists(value) for value in node] if isinstance(node, list | tuple) else node


def _study(folder: Path) -> Study:
    raw = _lists(dict(read_yaml(ROOT / "scales" / "tiny.yaml"))) | {"controls": {"hd-n1": CONTROL}, "repairs": {"fixed": REPAIR}}
    _dump(raw, folder / "params.yaml")
    return load_study(folder / "params.yaml")


def _dump(node: Any, path: Path) -> None:
    with path.open("w") as file:
        YAML(typ="safe", pure=True).dump(node, file)


def _leave_results(folder: Path, study: Study, name: str) -> None:
    """The card, cost and evaluation of one model, as its stages leave them."""
    arm, artifacts = study.models[name], folder / "artifacts"
    card = ModelCard(
        version=1, arm=name, seed=42, model=arm.model, vocab_size=300, eos_id=0, objective=arm.objective.model_dump(mode="json"),
        trained_depths=(1, 2, 3, 4), repair=None, steps=arm.training.steps, tokens_per_step=128, seq_len=32, data_fingerprint="d",
        stream_fingerprint="s", tokenizer_hash="t",
    )  # fmt: skip
    model = artifacts / "models" / name / "seed-42"
    model.mkdir(parents=True)
    (model / "model.json").write_text(json.dumps(card.model_dump(mode="json")))
    cost = SeedCost(
        seed=42, seconds=1.0, devices=1, device="cpu", device_hours=0.1, unit="core-hours", steps=arm.training.steps, tokens=1,
        tokens_per_second=1.0, flops=1, peak_memory_bytes=1, stream_fingerprint="s",
    )  # fmt: skip
    write_record(ArmCost(version=1, arm=name, seeds=(cost,)), artifacts / "cost" / f"{name}.json")
    scores = tuple(
        DepthScore(
            depth=1,
            n_streams=n,
            state="ok",
            nll_nats=4.0 - n,
            ppl=1.0,
            bits_per_byte=1.0,
            parameters=1,
            flops_per_token=1,
            blocks_run=1,
        )
        for n in ((1, 2) if name == "hd-n2" else (1,))
    )
    seed = SeedEvaluation(seed=42, depths=scores, aulb_nats=None, aulb_clipped_nats=None)
    evaluation = ArmEvaluation(
        version=1, arm=name, objective=arm.objective.kind, n_blocks=4, exits=(2, 3, 4), trained_depths=(1, 2, 3, 4), vocab_size=300,
        validation=ValidationSet(fingerprint="v", n_documents=1, n_tokens=1, n_bytes=1), seeds=(seed,),
    )  # fmt: skip
    write_record(evaluation, artifacts / "evaluation" / f"{name}.json")


def _lock(folder: Path, study: Study) -> None:
    raw = _lists(dict(read_yaml(folder / "params.yaml")))
    stages: dict[str, Any] = {}
    for kind, name in (("repair", "fixed"), ("expand", "hd-n2"), ("control", "hd-n1")):
        section, evaluation = TRAINED[kind]
        params = {f"{section}.{name}": raw[section][name], "training": raw["training"]}
        if kind == "control":
            params["expansions.hd-n2"] = raw["expansions"]["hd-n2"]
        model = {"path": f"artifacts/models/{name}", "md5": name}
        stages[f"{kind}@{name}"] = {"params": {"params.yaml": params}, "outs": [model]}
        stages[f"{evaluation}@{name}"] = {"deps": [model]}
        _leave_results(folder, study, name)
    _dump({"stages": stages}, folder / "dvc.lock")


def test_models_that_started_from_others_are_recorded_as_they_were_trained(tmp_path: Path) -> None:
    study = _study(tmp_path)
    _lock(tmp_path, study)
    records = recorded_arms(tmp_path)
    assert set(records) == {"fixed", "hd-n2", "hd-n1"}
    for name, record in records.items():
        own = study.models[name]
        assert (record.arm.base, record.arm.model, record.arm.training) == (own.base, own.model, own.training)
        assert record.arm.objective == own.objective
        assert record.evaluation is not None


def test_each_number_of_streams_has_its_own_curve(tmp_path: Path) -> None:
    study = _study(tmp_path)
    _lock(tmp_path, study)
    points = {name: value for name, value, _ in recorded_arms(tmp_path)["hd-n2"].depth_points(42)}
    assert points["depth/nll"] == 2.0
    assert points["depth_n1/nll"] == 3.0
