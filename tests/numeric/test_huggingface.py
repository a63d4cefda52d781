"""Checkpoints of `transformers`, imported: the same logits, and the same tensors back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from components.config.model import Model
from components.config.schema import BpeTokenizer
from components.data.tokenizer import train_bpe
from components.huggingface.config import config_of, read_config
from components.huggingface.weights import read_weights, split_weights
from components.inference.export import export_prefix
from components.inference.generate import Request, generate
from components.models.cascade import Cascade
from components.models.files import ModelCard, load_model, load_weights, save_model

VOCAB = 96
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
# Every one differs from its neighbours in what import has to get right.
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "llama": {"num_key_value_heads": 4},
    "llama-tied-grouped": {"num_key_value_heads": 2, "tie_word_embeddings": True},
    "llama-llama3-rope": {"num_key_value_heads": 1, "rope_parameters": LLAMA3, "max_position_embeddings": 256},
    "llama-linear-rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "llama-wide-heads": {"head_dim": 16, "num_key_value_heads": 2},
    "llama-sharded-bfloat16": {"num_key_value_heads": 2, "dtype": "bfloat16"},
    "qwen3": {"num_key_value_heads": 2, "head_dim": 16, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}},
    "qwen3-tied-sharded": {"num_key_value_heads": 1, "head_dim": 8, "tie_word_embeddings": True, "rms_norm_eps": 1e-6},
}


def save_checkpoint(folder: Path, name: str, **changes: Any) -> Any:
    """A random checkpoint in the folder, and the model of `transformers` that wrote it."""
    import transformers

    family = transformers.LlamaConfig if name.startswith("llama") else transformers.Qwen3Config
    sizes = {
        "vocab_size": VOCAB, "hidden_size": 32, "intermediate_size": 44, "num_hidden_layers": 3, "num_attention_heads": 4,
        "max_position_embeddings": 64, "attn_implementation": "eager", "initializer_range": 0.2,
    }  # fmt: skip
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(family(**{**sizes, **CHECKPOINTS.get(name, {}), **changes})).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += (0.2 * torch.randn(parameter.shape)).to(parameter.dtype)
    model.save_pretrained(folder, max_shard_size="20KB" if "sharded" in name else "5GB")
    return model


def imported(folder: Path, dtype: torch.dtype | None = torch.float32) -> Cascade:
    shape = read_config(folder)
    with torch.device("meta"):
        model = Cascade(shape.model, shape.vocab_size)
    load_weights(model, dict(read_weights(folder, shape.model)), folder)
    return model.to(dtype=dtype)


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    """Every tensor of every safetensors file of a folder."""
    return {name: tensor for path in folder.glob("*.safetensors") for name, tensor in load_file(path).items()}


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_logits_are_those_of_transformers(tmp_path: Path, name: str) -> None:
    theirs = save_checkpoint(tmp_path, name).float()
    ours = imported(tmp_path)
    length = theirs.config.max_position_embeddings
    tokens = torch.randint(0, VOCAB, (2, length), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        wanted, found = theirs(tokens).logits, ours(tokens, 3)
    # float32: two implementations of the same sums
    torch.testing.assert_close(found, wanted, atol=2e-5 * float(wanted.abs().max()), rtol=1e-5)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == ("sharded" in name)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_every_tensor_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    save_checkpoint(tmp_path, name)
    model = imported(tmp_path, dtype=None)
    back = split_weights(model.state_dict(), model.settings)
    stored = tensors_of(tmp_path)
    assert back.keys() == stored.keys()
    assert all(back[key].dtype == stored[key].dtype and torch.equal(back[key], stored[key]) for key in stored)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_the_configuration_comes_back_as_the_same_shape(tmp_path: Path, name: str) -> None:
    import json

    save_checkpoint(tmp_path, name)
    shape = read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(config_of(shape.model, shape.vocab_size, shape.max_tokens, "float32")))
    again = read_config(tmp_path)
    assert (again.model, again.vocab_size, again.max_tokens) == (
        shape.model.model_copy(update={"init_std": 0.02}), shape.vocab_size, shape.max_tokens,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["llama-tied-grouped", "llama-llama3-rope", "llama-sharded-bfloat16", "qwen3"])
def test_the_exported_folder_is_the_checkpoint_again(tmp_path: Path, name: str) -> None:
    """Imported as a stage does it, loaded, exported at full depth: the same tensors, and a configuration of the same shape."""
    save_checkpoint(tmp_path / "theirs", name)
    shape = read_config(tmp_path / "theirs")
    tokenizer = train_bpe(["a b c d " * 9], BpeTokenizer(kind="bpe", vocab_size=257, training_bytes=99))[0]
    card = ModelCard(
        version=1, arm="base", seed=0, model=shape.model, vocab_size=VOCAB, eos_id=0, objective={}, trained_depths=(3,),
        repair=None, steps=0, tokens_per_step=0, seq_len=shape.max_tokens, data_fingerprint="",
        stream_fingerprint="", tokenizer_hash="",
    )  # fmt: skip
    save_model(imported(tmp_path / "theirs", dtype=None), card, tmp_path / "ours")
    model, _ = load_model(tmp_path / "ours", dtype=None)
    kind = export_prefix(model, card, 3, tokenizer, "", tmp_path / "back")
    assert kind == {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}[name.split("-")[0]]
    assert read_config(tmp_path / "back").model == shape.model.model_copy(update={"init_std": 0.02})
    stored, back = tensors_of(tmp_path / "theirs"), tensors_of(tmp_path / "back")
    assert back.keys() == stored.keys()
    assert all(back[key].dtype == stored[key].dtype and torch.equal(back[key], stored[key]) for key in stored)


@pytest.mark.parametrize("name", ["llama-tied-grouped", "llama-llama3-rope", "qwen3"])
def test_the_engine_decodes_what_transformers_decodes(tmp_path: Path, name: str) -> None:
    theirs = save_checkpoint(tmp_path, name)
    prompt = [5, 17, 80, 3, 42, 9]
    wanted = theirs.generate(torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0)
    found = generate(imported(tmp_path).eval(), [Request(tuple(prompt), 3, 24)])[0].tokens
    assert found == wanted[0, len(prompt) :].tolist()


def test_old_spelling_of_the_rotary_keys_is_read(tmp_path: Path) -> None:
    """transformers before 5 writes `rope_theta` and `rope_scaling`; the first Llama 2 wrote neither."""
    import json

    save_checkpoint(tmp_path, "llama-llama3-rope")
    path = tmp_path / "config.json"
    raw, new = json.loads(path.read_text()), read_config(tmp_path).model
    rope = raw.pop("rope_parameters")
    raw |= {"rope_theta": rope.pop("rope_theta"), "rope_scaling": {"type": rope.pop("rope_type"), **rope}}
    path.write_text(json.dumps(raw))
    assert read_config(tmp_path).model == new
    for key in ("rope_theta", "rope_scaling"):
        del raw[key]
    path.write_text(json.dumps(raw))
    assert read_config(tmp_path).model == new.model_copy(update={"rope_theta": 10000.0, "rope_scaling": None})


def test_the_real_stories_checkpoint_has_the_logits_of_transformers(shared_data: Path) -> None:
    from transformers import AutoModelForCausalLM

    folder = shared_data / "stories260K" / "hf"
    model: Model = read_config(folder).model
    theirs, ours = AutoModelForCausalLM.from_pretrained(folder).eval(), imported(folder)
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert sum(p.numel() for p in ours.parameters()) == sum(file.get_tensor(key).numel() for key in file.keys())  # noqa: SIM118
    tokens = torch.randint(3, 512, (2, 300), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        torch.testing.assert_close(ours(tokens, model.n_blocks), theirs(tokens).logits, atol=2e-4, rtol=1e-5)  # logits up to 20
