"""A prefix of a telescopic cascade with more than one width, or with experts, as a `transformers` model in one file.

`tasks.export` copies this file into the exported folder; it needs torch and transformers, nothing of the project it comes from.

    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)

Llama-style blocks stand in segments of growing width. Where a segment begins, the residual stream is joined by a fresh slice of the
token embedding, so the model needs token ids: `inputs_embeds` is not supported, nor is a static cache.

Shapes: B batch, T new tokens, S tokens with the past, D width of the residual stream, H heads, K channels per head, V vocabulary;
N = B T tokens, E experts, R tokens that go to one, F inner width.
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
        heads: [query heads, key and value heads] of the blocks of each segment.
        inner_widths: of the SwiGLU of each segment.
        qk_norm: queries and keys have norms of their own.
        rope_frequencies: of each pair of channels; absent: rope_theta decides.
        junction_norm: rescale the stream to the L2 norm of the fresh slice where a segment begins.
        affine_read_out: an affine map is added to the stream before the final norm.
        experts: n_experts, top_k, d_inner, n_shared, gate, has_bias of the mixture in every block; absent: a SwiGLU.
        dense_last: the last block has a SwiGLU all the same.
    """

    model_type = "telescopic-cascade"

    def __init__(
        self,
        vocab_size: int = 2,
        segments: tuple[tuple[int, int], ...] = ((1, 2),),
        heads: tuple[tuple[int, int], ...] = ((1, 1),),
        inner_widths: tuple[int, ...] = (8,),
        head_dim: int = 2,
        qk_norm: bool = False,
        junction_norm: bool = False,
        affine_read_out: bool = False,
        experts: dict[str, Any] | None = None,
        dense_last: bool = False,
        rope_theta: float = 10000.0,
        rope_frequencies: tuple[float, ...] | None = None,
        norm_eps: float = 1e-5,
        max_position_embeddings: int = 2048,
        **kwargs: Any,
    ) -> None:
        self.vocab_size, self.head_dim, self.qk_norm = vocab_size, head_dim, qk_norm
        self.segments, self.heads = [list(segment) for segment in segments], [list(pair) for pair in heads]
        self.inner_widths = list(inner_widths)
        self.rope_frequencies = None if rope_frequencies is None else list(rope_frequencies)
        self.junction_norm, self.affine_read_out = junction_norm, affine_read_out
        self.experts, self.dense_last = experts, dense_last
        self.rope_theta, self.norm_eps, self.max_position_embeddings = rope_theta, norm_eps, max_position_embeddings
        self.num_hidden_layers = sum(n_blocks for n_blocks, _ in self.segments)
        self.hidden_size = self.segments[-1][1]
        self.num_attention_heads, self.num_key_value_heads = self.heads[-1]
        super().__init__(**{"tie_word_embeddings": False, **kwargs})


class RMSNorm(nn.Module):
    def __init__(self, d_model: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(d_model))
        self.eps = eps

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.rms_norm(x_BTD, self.weight.shape, self.weight, self.eps)


class Attention(nn.Module):
    def __init__(self, segment: int, config: TelescopicConfig) -> None:
        super().__init__()
        d_model, self.head_dim = config.segments[segment][1], config.head_dim
        self.n_heads, self.n_kv_heads = config.heads[segment]
        self.d_queries = self.n_heads * self.head_dim
        self.qkv = nn.Linear(d_model, self.d_queries + 2 * self.n_kv_heads * self.head_dim, bias=False)
        self.out = nn.Linear(self.d_queries, d_model, bias=False)
        self.q_norm = RMSNorm(self.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(self.head_dim, config.norm_eps) if config.qk_norm else nn.Identity()

    def forward(self, x_BTD: Tensor, angles: Tensor, mask_BHTS: Tensor | None, past: DynamicCache | None, layer: int) -> Tensor:
        q_BHTK, k_BGSK, v_BGSK = self.split_heads(self.qkv(x_BTD)).split((self.n_heads, self.n_kv_heads, self.n_kv_heads), dim=1)
        q_BHTK, k_BGSK = _rotate(self.q_norm(q_BHTK), angles), _rotate(self.k_norm(k_BGSK), angles)
        if past is not None:
            k_BGSK, v_BGSK = past.update(k_BGSK, v_BGSK, layer)
        mixed_BHTK = self.mix(q_BHTK, k_BGSK, v_BGSK, mask_BHTS, mask_BHTS is None and x_BTD.shape[1] > 1)
        out: Tensor = self.out(mixed_BHTK.transpose(1, 2).flatten(2))
        return out

    def split_heads(self, x_BTC: Tensor) -> Tensor:
        """[B, heads, T, K]."""
        return x_BTC.view(*x_BTC.shape[:2], -1, self.head_dim).transpose(1, 2)

    def mix(self, q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, mask_BHTS: Tensor | None, is_causal: bool = False) -> Tensor:
        """Attention; several query heads read one head of keys and values when these are fewer."""
        return F.scaled_dot_product_attention(
            q_BHTK, k_BGSK, v_BGSK, attn_mask=mask_BHTS, is_causal=is_causal, enable_gqa=self.n_heads != self.n_kv_heads
        )


class SwiGLU(nn.Module):
    def __init__(self, d_model: int, d_inner: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(d_model, 2 * d_inner, bias=False)
        self.down = nn.Linear(d_inner, d_model, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        gate_BTF, up_BTF = self.gate_up(x_BTD).chunk(2, dim=-1)
        out: Tensor = self.down(F.silu(gate_BTF) * up_BTF)
        return out


class ExpertMatrices(nn.Module):
    def __init__(self, n_experts: int, d_out: int, d_in: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_experts, d_out, d_in))


class Experts(nn.Module):
    """Routed experts, of which a token goes to the `top_k` with the highest scores, and shared ones for all.

    The router's bias takes part in the choice alone, not in the weights of those chosen, which are their scores over the sum.
    """

    def __init__(self, d_model: int, n_experts: int, top_k: int, d_inner: int, n_shared: int, gate: str, has_bias: bool) -> None:
        super().__init__()
        self.top_k, self.gate = top_k, gate
        self.router = nn.Linear(d_model, n_experts, bias=has_bias)
        self.gate_up = ExpertMatrices(n_experts, 2 * d_inner, d_model)
        self.down = ExpertMatrices(n_experts, d_model, d_inner)
        self.shared = SwiGLU(d_model, n_shared * d_inner) if n_shared else None

    def forward(self, x_BTD: Tensor) -> Tensor:
        x_ND = x_BTD.flatten(0, -2)
        chosen_NS, weights_NS = self.route(x_ND)
        out_ND = torch.zeros_like(x_ND)
        for expert in chosen_NS.unique().tolist():
            rows, places = (chosen_NS == expert).nonzero(as_tuple=True)
            gate_RF, up_RF = F.linear(x_ND[rows], self.gate_up.weight[expert]).chunk(2, dim=-1)
            mixed_RD = F.linear(F.silu(gate_RF) * up_RF, self.down.weight[expert]) * weights_NS[rows, places, None]
            out_ND.index_add_(0, rows, mixed_RD.to(out_ND.dtype))
        out_BTD = out_ND.view_as(x_BTD)
        return out_BTD if self.shared is None else out_BTD + self.shared(x_BTD)

    def route(self, x_ND: Tensor) -> tuple[Tensor, Tensor]:
        """The experts of each token and their weights, [N, top_k]; in float32, and of equal scores the first expert wins."""
        logits_NE = F.linear(x_ND.float(), self.router.weight.float())
        scores_NE = logits_NE.softmax(dim=-1) if self.gate == "softmax" else logits_NE.sigmoid()
        ranked_NE = scores_NE if self.router.bias is None else scores_NE + self.router.bias.float()
        chosen_NS = ranked_NE.sort(dim=-1, descending=True, stable=True).indices[:, : self.top_k]
        kept_NS = scores_NE.gather(1, chosen_NS)
        return chosen_NS, kept_NS / kept_NS.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)


class Block(nn.Module):
    def __init__(self, segment: int, config: TelescopicConfig) -> None:
        super().__init__()
        d_model = config.segments[segment][1]
        self.attention_norm = RMSNorm(d_model, config.norm_eps)
        self.attention = Attention(segment, config)
        self.ffn_norm = RMSNorm(d_model, config.norm_eps)
        self.ffn = Experts(d_model, **config.experts) if config.experts else SwiGLU(d_model, config.inner_widths[segment])

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
        self.blocks = nn.ModuleList(
            self.block_type(segment, config) for segment, (n_blocks, _) in enumerate(config.segments) for _ in range(n_blocks)
        )
        if config.dense_last:
            self.blocks[-1].ffn = SwiGLU(widths[-1], config.inner_widths[-1])
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
            kwargs: `num_items_in_batch`, as `Trainer` gives it: labels that the loss is the mean over, of all micro-batches of a
                step; by default those of this call.

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
            targets = labels[:, 1:].flatten()
            n_items = kwargs.get("num_items_in_batch")
            n_items = (targets != -100).sum() if n_items is None else n_items
            loss = F.cross_entropy(logits_BTV[:, :-1].flatten(0, 1).float(), targets, ignore_index=-100, reduction="sum") / n_items
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
        config, device = self.config, positions_BT.device
        channels = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device)
        frequencies_K: Tensor = config.rope_theta ** (-channels / config.head_dim)
        if config.rope_frequencies is not None:
            frequencies_K = torch.tensor(config.rope_frequencies, device=device)
        return (positions_BT.float()[:, :, None] * frequencies_K)[:, None]


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
