"""Small real objects for tests: a toy cascade, a toy recipe, toy batches and packed rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from components.config.loader import load_study
from components.config.schema import Arm, Model, Segment, Training
from components.data.manifest import RowsHeader
from components.data.rows import n_rows_of, write_rows
from components.data.stream import Batch
from components.models.cascade import Cascade
from components.objectives.base import Objective, TokenBatch, build_objective
from components.training.run import TrainingRun

VOCAB = 48
ROOT = Path(__file__).resolve().parents[1]


def toy_model(**changes: Any) -> Model:
    """Five blocks in three segments (exits at 2, 4, 5)."""
    segments = tuple(Segment(n_blocks=n, d_model=d) for n, d in ((2, 16), (2, 24), (1, 32)))
    study = load_study(ROOT / "scales" / "tiny.yaml")
    return study.model.model_copy(update={"segments": segments, "init_std": 0.2, **changes})


def toy_training(**changes: Any) -> Training:
    """Ten steps of four rows; validated, unlike `model_copy`."""
    study = load_study(ROOT / "scales" / "tiny.yaml")
    base = {key: getattr(study.training, key) for key in Training.model_fields}
    return Training(**{**base, "steps": 10, "warmup_steps": 2, "batch_rows": 4, **changes})


def toy_cascade(seed: int = 0, dtype: torch.dtype = torch.float64, **changes: Any) -> Cascade:
    """A toy cascade with drawn weights, norms' gains included so that they matter."""
    model = Cascade(toy_model(**changes), VOCAB)
    model.init_weights(seed)
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.to(dtype)


def toy_arm(objective: dict[str, Any], name: str = "toy", **changes: Any) -> Arm:
    """An arm with the toy model and the given objective settings."""
    from components.config.loader import resolve_arm

    arm = resolve_arm(name, {"objective": objective}, toy_model(**changes), toy_training(), problems := [])
    assert arm is not None, problems
    return arm


def telescopic(sampler: dict[str, Any] | str = "uniform", **changes: Any) -> dict[str, Any]:
    """Settings of the telescopic objective, the paper's defaults unless changed."""
    chosen = {"kind": sampler} if isinstance(sampler, str) else sampler
    defaults = {"prefix_weight": 1.0, "anchor_weight": 1.0, "distill_weight": 0.0, "exclude_full": False}
    return {"kind": "telescopic", "sampler": chosen, **defaults, **changes}


def toy_objective(settings: dict[str, Any], seed: int = 0, **changes: Any) -> Objective:
    return build_objective(toy_arm(settings, **changes), VOCAB, seed)


def toy_tokens(rows: int = 3, length: int = 12, seed: int = 0) -> torch.Tensor:
    """int64 [rows, length]."""
    return torch.randint(0, VOCAB, (rows, length), generator=torch.Generator().manual_seed(seed))


def toy_token_batch(valid: tuple[int, ...] = (12, 12, 12), seed: int = 0) -> TokenBatch:
    """A micro-batch whose row i has `valid[i]` labels that count."""
    tokens, labels = toy_tokens(len(valid), 12, seed), toy_tokens(len(valid), 12, seed + 1)
    for row, count in enumerate(valid):
        labels[row, count:] = -100
    return TokenBatch(tokens, labels, None, 1.0 / sum(valid))


def toy_batch(valid: tuple[int, ...] = (12, 12, 12, 12), seed: int = 0) -> Batch:
    """A global batch as the stream gives it."""
    micro = toy_token_batch(valid, seed)
    return Batch(micro.tokens_BT.numpy(), micro.labels_BT.numpy(), int(sum(valid)))


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The gradients that are there, by name."""
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def largest_difference(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> float:
    """Largest absolute difference of two sets of tensors with the same names."""
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left)


def toy_rows(folder: Path, n_documents: int = 40, split: str = "train", seq_len: int = 12) -> Path:
    """Packed rows of random documents under `folder/<split>`; returns `folder`, the `data_dir` of a run."""
    random = np.random.default_rng(5)
    documents = [np.append(random.integers(1, VOCAB, random.integers(5, 30)), 0).astype(np.uint16) for _ in range(n_documents)]
    n_tokens = sum(len(document) for document in documents)
    header = RowsHeader(
        version=1, split=split, seq_len=seq_len, vocab_size=VOCAB, eos_id=0, tokenizer_hash="toy", corpus_fingerprint="toy",
        fingerprint=f"toy-{n_documents}", n_documents=n_documents, n_rows=n_rows_of(n_tokens, seq_len), tokens_in=n_tokens,
        tokens_out=n_tokens, tokens_dropped=0,
    )  # fmt: skip
    (folder / split).mkdir(parents=True)
    write_rows(folder / split, header, iter(documents))
    return folder


def toy_run(root: Path, objective: dict[str, Any], seed: int = 0, **changes: Any) -> TrainingRun:
    """A training run of ten steps over toy rows, checkpointing every three."""
    runtime = load_study(ROOT / "scales" / "tiny.yaml").runtime
    runtime = runtime.model_copy(
        update={"device": "cpu", "micro_batch_rows": 4, "checkpoint_every_steps": 3, "log_every_steps": 1, "keep_checkpoints": 2}
        | changes
    )
    data = root / "data"
    if not data.exists():
        toy_rows(data)
    return TrainingRun(toy_arm(objective), seed, data, root / "runs", root / "model", None, runtime, stream_seed=7)
