"""SmolLM2-135M, a real checkpoint of 30 blocks, grouped queries and a tied head; `gguf_checkpoint.py` says how to come by it.

Skipped unless the environment variable SMOLLM2 names its folder.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from components.huggingface.config import read_config
from components.huggingface.weights import read_weights, split_weights
from components.models.cascade import Cascade
from components.models.files import load_weights


@pytest.fixture(scope="module")
def folder() -> Path:
    if "SMOLLM2" not in os.environ:
        pytest.skip("SMOLLM2 names no folder")
    return Path(os.environ["SMOLLM2"])


def test_logits_are_those_of_transformers_and_the_tensors_come_back(folder: Path) -> None:
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    shape = read_config(folder)
    assert (shape.vocab_size, shape.model.n_blocks, shape.model.blocks[0].n_kv_heads) == (49152, 30, 3)
    with torch.device("meta"):
        ours = Cascade(shape.model, shape.vocab_size)
    load_weights(ours, dict(read_weights(folder, shape.model)), folder)
    assert sum(parameter.numel() for parameter in ours.parameters()) == 134_515_008
    with safe_open(folder / "model.safetensors", "pt") as file:
        back = split_weights(ours.state_dict(), shape.model)
        assert all(torch.equal(back[name], file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
    theirs = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    tokens = torch.randint(0, 49152, (1, 96), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        found, wanted = ours(tokens, 30), theirs(tokens).logits
    # float32 through 30 blocks: 1e-4 of the largest logit
    torch.testing.assert_close(found, wanted, atol=1e-4 * float(wanted.abs().max()), rtol=0)
