"""The models that users would pick instead, with the weights of ours."""

from __future__ import annotations

from typing import Any

from components.models.cascade import Cascade


def llama_of(model: Cascade, max_tokens: int, attention: str = "sdpa") -> Any:
    """The cascade of one segment as a `LlamaForCausalLM` of `transformers`.

    Args:
        max_tokens: the longest row that it has to take.
        attention: implementation, `sdpa` or `eager`.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    settings, (segment,) = model.settings, model.settings.segments
    config = LlamaConfig(
        vocab_size=model.vocab_size, hidden_size=segment.d_model, intermediate_size=settings.ffn_ratio * segment.d_model,
        num_hidden_layers=segment.n_blocks, num_attention_heads=segment.d_model // settings.head_dim, head_dim=settings.head_dim,
        max_position_embeddings=max_tokens, rms_norm_eps=settings.norm_eps, tie_word_embeddings=False,
        attn_implementation=attention, rope_parameters={"rope_type": "default", "rope_theta": settings.rope_theta},
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
