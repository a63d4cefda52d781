"""A cascade of one segment is a Llama: its logits against `transformers`."""

from __future__ import annotations

from typing import Any

import torch

from components.config.schema import Segment
from components.models.cascade import Cascade
from tests.toys import VOCAB, toy_model, toy_tokens


def llama_of(model: Cascade) -> Any:
    """The cascade of one segment as a `LlamaForCausalLM`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings, (segment,) = model.settings, model.settings.segments
    config = LlamaConfig(
        vocab_size=model.vocab_size, hidden_size=segment.d_model, intermediate_size=settings.ffn_ratio * segment.d_model,
        num_hidden_layers=segment.n_blocks, num_attention_heads=segment.d_model // settings.head_dim, head_dim=settings.head_dim,
        max_position_embeddings=64, rms_norm_eps=settings.norm_eps, tie_word_embeddings=False, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": settings.rope_theta},
    )  # fmt: skip
    llama = LlamaForCausalLM(config).eval()
    weights = {"model.embed_tokens.weight": model.embeddings[0].weight, "model.norm.weight": model.exits[0].norm.weight}
    weights["lm_head.weight"] = model.exits[0].head.weight
    for i, block in enumerate(model.blocks):
        at = f"model.layers.{i}"
        for name, part in zip("qkv", block.attention.qkv.weight.chunk(3), strict=True):
            weights[f"{at}.self_attn.{name}_proj.weight"] = part
        gate, up = block.ffn.gate_up.weight.chunk(2)
        weights |= {
            f"{at}.self_attn.o_proj.weight": block.attention.out.weight,
            f"{at}.mlp.gate_proj.weight": gate,
            f"{at}.mlp.up_proj.weight": up,
            f"{at}.mlp.down_proj.weight": block.ffn.down.weight,
            f"{at}.input_layernorm.weight": block.attention_norm.weight,
            f"{at}.post_attention_layernorm.weight": block.ffn_norm.weight,
        }
    llama.load_state_dict(weights)
    return llama


def test_one_segment_gives_the_logits_of_a_transformers_llama() -> None:
    model = Cascade(toy_model(segments=(Segment(n_blocks=3, d_model=32),)), VOCAB)
    model.init_weights(1)
    tokens = toy_tokens(2, 40)
    with torch.no_grad():
        # float32: two implementations of the same sums, logits of size about 1
        torch.testing.assert_close(model(tokens, 3), llama_of(model)(tokens).logits, atol=2e-5, rtol=1e-5)
