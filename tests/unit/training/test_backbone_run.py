"""Training goes on from an imported checkpoint: tied, in bfloat16, without an optimizer's state."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from components.config.schema import Arm, Study
from components.models.cascade import Cascade
from components.models.files import ModelCard, load_model, save_model
from components.objectives.base import build_objective
from components.training.run import TrainingRun, run_training
from tests.toys import VOCAB, toy_rows
from tests.unit.config.test_backbones import FOUR, TLM, TWO, _load


def _imported(arm: Arm, folder: Path) -> Cascade:
    """What the import leaves behind."""
    model = Cascade(arm.model, VOCAB)
    model.init_weights(2)
    card = ModelCard(
        version=1, arm=arm.name, seed=42, model=arm.model, vocab_size=VOCAB, eos_id=0, objective=arm.objective.model_dump(),
        trained_depths=(2,), repair=None, steps=0, tokens_per_step=0, seq_len=64, data_fingerprint="", stream_fingerprint="",
        tokenizer_hash="toy",
    )  # fmt: skip
    save_model(model.bfloat16(), card, folder)
    return model.float()


def _run(study: Study, name: str, root: Path) -> Path:
    """Trains the model of that name; returns its folder."""
    arm = study.models[name]
    out = root / name / "seed-42"
    run = TrainingRun(
        arm=arm, seed=42, data_dir=root / "data", run_dir=root / "runs" / name, output_dir=out,
        base_dir=root / str(arm.base) / "seed-42", runtime=study.runtime.model_copy(update={"device": "cpu"}), stream_seed=7,
    )  # fmt: skip
    run_training(run, lambda progress: None)
    return out


def test_streams_and_depth_go_on_from_it_and_expansions_from_them(tmp_path: Path) -> None:
    study = _load(tmp_path, {"hd-n2": TWO, "hd-n4": FOUR, "tlm": TLM})
    toy_rows(tmp_path / "data")
    _imported(study.models["llama"], tmp_path / "llama" / "seed-42")
    for name in ("hd-n2", "hd-n4", "tlm"):
        model, card = load_model(_run(study, name, tmp_path))
        assert all(bool(parameter.isfinite().all()) for parameter in model.parameters())
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        assert (model.settings.tied_embeddings, card.trained_depths) == ((True, (1, 2)) if name == "tlm" else (False, (2,)))
    lines = [json.loads(line) for line in (tmp_path / "tlm" / "seed-42" / "history.jsonl").read_text().splitlines()]
    assert {depth for line in lines for depth in line["depths"]} == {1, 2}


def test_step_zero_is_the_checkpoint_with_the_table_as_every_table_and_head(tmp_path: Path) -> None:
    study = _load(tmp_path, {"hd-n2": TWO})
    base = _imported(study.models["llama"], tmp_path / "base")
    objective = build_objective(study.models["hd-n2"], VOCAB, 0)
    model = objective.new_model()
    objective.start(model, tmp_path / "base")
    table = base.embeddings[0].weight
    assert all(
        torch.equal(copy, table)
        for copy in (model.embeddings[0].weight, model.stream_embeddings[0][0].weight, model.exits[0].head.weight)
    )
    assert torch.equal(model.blocks[1].attention.qkv.weight, base.blocks[1].attention.qkv.weight)
    assert objective.moments(tmp_path / "base") == {}
