"""A prefix of a telescopic cascade with more than one width, as a `transformers` model in one file.

`tasks.export` copies this file into the exported folder; it needs torch and transformers, nothing of the project it comes from.

    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

Llama-style blocks stand in segments of growing width. Where a segment begins, the residual stream is joined by a fresh slice of the
token embedding, so the model needs token ids: `inputs_embeds` is not supported, nor is a static cache.

Shapes: B batch, T new tokens, S tokens with the past, D width of the residual stream, H heads, K channels per head, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DynamicCache, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast


class TelescopicConfig(PretrainedConfig):
    """Shape of the cascade.

    Attributes:
        segments: [blocks, width] of each segment, in order.
        junction_norm: rescale the stream to the L2 norm of the fresh slice where a segment begins.
        affine_read_out: an affine map is added to the stream before the final norm.
    """

    model_type = "telescopic-cascade"

    def __init__(
        self,
        vocab_size: int = 2,
        segments: tuple[tuple[int, int], ...] = ((1, 2),),
        head_dim: int = 2,
        ffn_ratio: int = 4,
        junction_norm: bool = False,
        affine_read_out: bool = False,
        rope_theta: float = 10000.0,
        norm_eps: float = 1e-5,
        max_position_embeddings: int = 2048,
        **kwargs: Any,
    ) -> None:
        self.vocab_size, self.head_dim, self.ffn_ratio = vocab_size, head_dim, ffn_ratio
        self.segments = [list(segment) for segment in segments]
        self.junction_norm, self.affine_read_out = junction_norm, affine_read_out
        self.rope_theta, self.norm_eps, self.max_position_embeddings = rope_theta, norm_eps, max_position_embeddings
        self.num_hidden_layers = sum(n_blocks for n_blocks, _ in self.segments)
        self.hidden_size = self.segments[-1][1]
        self.num_attention_heads = self.num_key_value_heads = self.hidden_size // head_dim
        super().__init__(**{"tie_word_embeddings": False, **kwargs})


class RMSNorm(nn.Module):
    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.rms_norm(x_BTD, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, d_model: int, head_dim: int) -> None:
        super().__init__()
        self.n_heads, self.head_dim = d_model // head_dim, head_dim
        self.qkv = nn.Linear(d_model, 3 * d_model, bias=False)
        self.out = nn.Linear(d_model, d_model, bias=False)

    def forward(self, x_BTD: Tensor, angles: Tensor, mask_BHTS: Tensor | None, past: DynamicCache | None, layer: int) -> Tensor:
        batch, length, width = x_BTD.shape
        q_BHTK, k_BHSK, v_BHSK = self.qkv(x_BTD).view(batch, length, 3, self.n_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q_BHTK, k_BHSK = _rotate(q_BHTK, angles), _rotate(k_BHSK, angles)
        if past is not None:
            k_BHSK, v_BHSK = past.update(k_BHSK, v_BHSK, layer)
        mixed_BHTK = F.scaled_dot_product_attention(
            q_BHTK, k_BHSK, v_BHSK, attn_mask=mask_BHTS, is_causal=mask_BHTS is None and length > 1
        )
        out: Tensor = self.out(mixed_BHTK.transpose(1, 2).reshape(batch, length, width))
        return out


class SwiGLU(nn.Module):
    def __init__(self, d_model: int, d_inner: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.down = nn.Linear(d_inner, d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate_BTF, up_BTF = self.gate_up(x_BTD).chunk(2, dim=-1)
        out: Tensor = self.down(F.silu(gate_BTF) * up_BTF)
        return out


class Block(nn.Module):
    def __init__(self, d_model: int, config: TelescopicConfig) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(d_model, config.norm_eps)
        self.attention = Attention(d_model, config.head_dim)
        self.ffn_norm = RMSNorm(d_model, config.norm_eps)
        self.ffn = SwiGLU(d_model, config.ffn_ratio * d_model)

    def forward(self, x_BTD: Tensor, angles: Tensor, mask_BHTS: Tensor | None, past: DynamicCache | None, layer: int) -> Tensor:
        x_BTD = x_BTD + self.attention(self.attention_norm(x_BTD), angles, mask_BHTS, past, layer)
        out: Tensor = x_BTD + self.ffn(self.ffn_norm(x_BTD))
        return out


class TelescopicForCausalLM(PreTrainedModel, GenerationMixin):
    """The prefix as a causal language model."""

    config_class: type[PretrainedConfig] = TelescopicConfig
    block_type: type[nn.Module] = Block
    _no_split_modules = ["Block"]  # noqa: RUF012
    _supports_sdpa = True

    def __init__(self, config: TelescopicConfig) -> None:
        super().__init__(config)
        widths = [width for _, width in config.segments]
        self.embeddings = nn.ModuleList(
            nn.Embedding(config.vocab_size, width - before) for before, width in zip([0, *widths], widths, strict=False)
        )
        self.blocks = nn.ModuleList(self.block_type(width, config) for n_blocks, width in config.segments for _ in range(n_blocks))
        self.affine = nn.Linear(widths[-1], widths[-1]) if config.affine_read_out else None
        self.norm = RMSNorm(widths[-1], config.norm_eps)
        self.head = nn.Linear(widths[-1], config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """The table of the first segment; later segments add channels of their own."""
        return self.embeddings[0]

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        cache: DynamicCache | None = None,
        past_key_values: DynamicCache | None = None,
        use_cache: bool | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,
        return_dict: bool | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Logits of the new tokens, of the last `logits_to_keep` when that is not 0; with labels also the next-token loss.

        Args:
            cache: keys and values of the past; older versions of transformers call it `past_key_values`.

        Shapes:
            input_ids: int64 [B, T]. attention_mask: [B, S], 0 where a token is padding. position_ids: int64 [B, T].
        """
        if kwargs.get("inputs_embeds") is not None:
            raise ValueError(
                "inputs_embeds: not supported, the fresh slices of later segments are looked up by token; give input_ids"
            )
        past = cache if cache is not None else past_key_values
        if past is None and use_cache:
            past = DynamicCache()
        n_past = 0 if past is None else int(past.get_seq_length())
        if position_ids is None:
            position_ids = _positions(attention_mask, n_past, input_ids)
        x_BTD = self._run(input_ids, position_ids, attention_mask, past, n_past)
        if self.affine is not None:
            x_BTD = x_BTD + self.affine(x_BTD)
        logits_BTV = self.head(self.norm(x_BTD[:, -logits_to_keep:] if logits_to_keep else x_BTD))
        loss = None
        if labels is not None:
            loss = F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten(), ignore_index=-100)
        return CausalLMOutputWithPast(loss, logits_BTV, past)

    def _run(
        self, tokens_BT: Tensor, positions_BT: Tensor, attention_mask: Tensor | None, past: DynamicCache | None, n_past: int
    ) -> Tensor:
        """The residual stream of the new tokens after all blocks."""
        angles, mask_BHTS = self._angles(positions_BT), _mask(attention_mask, n_past, tokens_BT)
        x_BTD: Tensor = self.embeddings[0](tokens_BT)
        layer = 0
        for segment, (n_blocks, _) in enumerate(self.config.segments):
            if segment:
                x_BTD = self._widen(x_BTD, self.embeddings[segment](tokens_BT))
            for _ in range(n_blocks):
                x_BTD = self.blocks[layer](x_BTD, angles, mask_BHTS, past, layer)
                layer += 1
        return x_BTD

    def _widen(self, x_BTD: Tensor, fresh_BTD: Tensor) -> Tensor:
        if self.config.junction_norm:
            norm = torch.linalg.vector_norm(x_BTD, dim=-1, keepdim=True).clamp_min(1e-12)
            x_BTD = x_BTD * (torch.linalg.vector_norm(fresh_BTD, dim=-1, keepdim=True) / norm)
        return torch.cat((x_BTD, fresh_BTD), dim=-1)

    def _angles(self, positions_BT: Tensor) -> Tensor:
        """Rotary angles, float32 [B, 1, T, K/2]."""
        channels = torch.arange(0, self.config.head_dim, 2, dtype=torch.float32, device=positions_BT.device)
        angles_BTK: Tensor = positions_BT.float()[:, :, None] * self.config.rope_theta ** (-channels / self.config.head_dim)
        return angles_BTK[:, None]


def _rotate(x_BHTK: Tensor, angles: Tensor) -> Tensor:
    cos, sin = angles.cos().to(x_BHTK.dtype), angles.sin().to(x_BHTK.dtype)
    first, second = x_BHTK.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _positions(attention_mask: Tensor | None, n_past: int, tokens_BT: Tensor) -> Tensor:
    """A token's position is the number of tokens before it that are not padding."""
    length = tokens_BT.shape[1]
    if attention_mask is None:
        return torch.arange(n_past, n_past + length, device=tokens_BT.device)[None]
    return (attention_mask.cumsum(-1) - 1).clamp_min(0)[:, -length:]


def _mask(attention_mask: Tensor | None, n_past: int, tokens_BT: Tensor) -> Tensor | None:
    """Bool [B or 1, 1, T, S], True where attending is allowed; None for plain causal attention without past or padding."""
    length = tokens_BT.shape[1]
    is_padded = attention_mask is not None and not bool(attention_mask.all())
    if not is_padded and (n_past == 0 or length == 1):
        return None
    at_T = torch.arange(n_past, n_past + length, device=tokens_BT.device)
    seen_S = torch.arange(n_past + length, device=tokens_BT.device)
    mask_TS = seen_S <= at_T[:, None]
    if attention_mask is None or not is_padded:
        return mask_TS[None, None]
    # a padding token sees itself, so that no row of the softmax is empty
    return (mask_TS & attention_mask.bool()[:, None, :] | (seen_S == at_T[:, None]))[:, None]
