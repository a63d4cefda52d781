"""The import of a checkpoint: a model for each seed, or a complaint that names what does not fit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from components.config.problems import CheckpointError, ConfigError
from components.config.schema import Arm, BpeTokenizer
from components.data.tokenizer import Tokenizer, train_bpe
from components.huggingface.backbone import import_backbone
from components.huggingface.checkpoint import find_checkpoint
from components.huggingface.config import read_config
from components.huggingface.weights import split_weights
from components.models.cascade import Cascade
from components.models.files import load_model
from components.objectives.pretrained import Settings
from tests.toys import toy_training
from tests.unit.huggingface.test_config import LLAMA

VOCAB = 300


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    text = " ".join(f"a{i} b{i * i} is no c{i % 7}d{i % 11}" for i in range(400))
    return train_bpe([text], BpeTokenizer(kind="bpe", vocab_size=VOCAB, training_bytes=10**6))[0]


@pytest.fixture
def folder(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    """A tied checkpoint in bfloat16 with its tokenizer."""
    from safetensors.torch import save_file

    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**LLAMA, "vocab_size": VOCAB, "tie_word_embeddings": True}))
    shape = read_config(folder)
    model = Cascade(shape.model, VOCAB)
    model.init_weights(1)
    save_file(split_weights(model.bfloat16().state_dict(), shape.model), folder / "model.safetensors")
    tokenizer.raw.save(str(folder / "tokenizer.json"))
    return folder


def _arm(folder: Path, **changes: Any) -> Arm:
    model = read_config(folder).model.model_copy(update=changes)
    objective = Settings(kind="pretrained", path=str(folder))
    return Arm(name="llama", base=None, model=model, training=toy_training(seeds=(4, 7)), objective=objective)


def test_every_seed_has_the_weights_in_the_files_dtype_and_one_copy_on_the_disk(folder: Path, tokenizer: Tokenizer) -> None:
    out = folder.parent / "out"
    import_backbone(_arm(folder), str(folder), tokenizer, 64, out)
    files = [out / f"seed-{seed}" / "model.safetensors" for seed in (4, 7)]
    assert files[0].samefile(files[1])
    stored, card = load_model(out / "seed-7", dtype=None)
    assert (card.seed, card.steps, card.seq_len, card.eos_id, card.trained_depths) == (7, 0, 64, tokenizer.eos_id, (2,))
    assert {parameter.dtype for parameter in stored.parameters()} == {torch.bfloat16}
    used, _ = load_model(out / "seed-4")
    assert {parameter.dtype for parameter in used.parameters()} == {torch.float32}
    assert used.exit_at(2).head.weight is used.embeddings[0].weight  # tied, not copied


@pytest.mark.parametrize(
    ("changes", "seq_len", "says"),
    [
        ({"rope_theta": 5e5}, 64, "backbones.llama.model.rope_theta: the checkpoint has 10000.0"),
        ({"qk_norm": True, "norm_eps": 1e-6}, 64, "backbones.llama.model.qk_norm: the checkpoint has False"),
        ({}, 65, "data.seq_len: must be at most 64"),
    ],
)
def test_what_the_parameter_file_says_must_be_true(
    folder: Path, tokenizer: Tokenizer, changes: dict[str, Any], seq_len: int, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        import_backbone(_arm(folder, **changes), str(folder), tokenizer, seq_len, folder.parent / "out")
    assert not (folder.parent / "out").exists()


def test_another_tokenizer_is_refused_even_with_as_many_ids(folder: Path, tokenizer: Tokenizer) -> None:
    other = train_bpe(
        ["other words of another kind " * 30 + str(list(range(900)))],
        BpeTokenizer(kind="bpe", vocab_size=VOCAB, training_bytes=10**6),
    )[0]
    with pytest.raises(ConfigError, match=r"data\.tokenizer: must be the checkpoint's own"):
        import_backbone(_arm(folder), str(folder), other, 64, folder.parent / "out")
    spare = Tokenizer(tokenizer.raw, tokenizer.eos_token, "spare", padding=8)
    with pytest.raises(ConfigError, match="must have the 300 ids"):
        import_backbone(_arm(folder), str(folder), spare, 64, folder.parent / "out")


def test_a_path_that_is_neither_folder_nor_hub_id_is_refused(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none"), "./none", "none", "a/b/c"):
        with pytest.raises(CheckpointError, match="no such folder"):
            find_checkpoint(path, "backbones.llama.path")
