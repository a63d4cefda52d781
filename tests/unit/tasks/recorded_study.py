"""Made-up results and a `dvc.lock` of models that started from others: a repair, an expansion, a control."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from components.config.loader import load_study, read_yaml
from components.config.schema import Study
from components.models.files import ModelCard
from components.results import (
    ArmBenchmarks,
    ArmCost,
    ArmEvaluation,
    BenchmarkDepth,
    BenchmarkScores,
    CorpusDepth,
    CorpusScores,
    DepthScore,
    MetricScore,
    SeedBenchmarks,
    SeedCost,
    SeedEvaluation,
    ValidationSet,
    write_record,
)
from tasks.recorded import TRAINED
from tests.toys import ROOT

CONTROL = {"base": "tlm-uniform", "of": "hd-n2", "equal": "flops"}
REPAIR = {"base": "mlms-norm-distill", "part": "head", "training": {"lr": 0.01}}


def lists(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: lists(value) for key, value in node.items()}
    return [lists(value) for value in node] if isinstance(node, list | tuple) else node


def make_study(folder: Path) -> Study:
    """The tiny scale with a repair and a control; writes `params.yaml`."""
    raw = lists(dict(read_yaml(ROOT / "scales" / "tiny.yaml"))) | {"controls": {"hd-n1": CONTROL}, "repairs": {"fixed": REPAIR}}
    dump(raw, folder / "params.yaml")
    return load_study(folder / "params.yaml")


def dump(node: Any, path: Path) -> None:
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
    write_record(_benchmarks(name), artifacts / "benchmarks" / f"{name}.json")


def _benchmarks(name: str) -> ArmBenchmarks:
    """One benchmark and one corpus; accuracy is 0.1 x streams, and not finite at depth 2."""
    cells, corpus_cells = [], []
    for n in (1, 2) if name == "hd-n2" else (1,):
        for depth, state, value in ((1, "ok", 0.1 * n), (2, "nan", None)):
            metric = MetricScore(metric="acc", normalised_by="none", state=state, value=value, stderr=0.01)
            cells.append(BenchmarkDepth(depth=depth, n_streams=n, blocks_run=depth, metrics=(metric,)))
            corpus_cells.append(
                CorpusDepth(depth=depth, n_streams=n, blocks_run=depth, state=state, nll_nats=value, bits_per_byte=value)
            )
    scores = BenchmarkScores(
        benchmark="piqa", task_version="1", fingerprint="f", n=3, chance=0.5, n_requests=6, n_shortened=0, n_split=0,
        depths=tuple(cells),
    )  # fmt: skip
    corpus = CorpusScores(
        corpus="books", fingerprint="f", n_documents=1, n_empty=0, n_tokens=1, n_bytes=1, depths=tuple(corpus_cells)
    )
    return ArmBenchmarks(
        version=1, arm=name, status="run", harness="h", limit=3, window_tokens=32, n_blocks=4, exits=(2, 3, 4),
        seeds=(SeedBenchmarks(seed=42, benchmarks=(scores,), corpora=(corpus,)),),
    )  # fmt: skip


def write_lock(folder: Path, study: Study) -> None:
    """`dvc.lock` and the results of the models that started from others."""
    raw = lists(dict(read_yaml(folder / "params.yaml")))
    stages: dict[str, Any] = {}
    for kind, name in (("repair", "fixed"), ("expand", "hd-n2"), ("control", "hd-n1")):
        section, *later = TRAINED[kind]
        params = {f"{section}.{name}": raw[section][name], "training": raw["training"]}
        if kind == "control":
            params["expansions.hd-n2"] = raw["expansions"]["hd-n2"]
        model = {"path": f"artifacts/models/{name}", "md5": name}
        stages[f"{kind}@{name}"] = {"params": {"params.yaml": params}, "outs": [model]}
        stages |= {f"{stage}@{name}": {"deps": [model]} for stage in later}
        _leave_results(folder, study, name)
    dump({"stages": stages}, folder / "dvc.lock")
