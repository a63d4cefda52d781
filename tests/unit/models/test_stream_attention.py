"""Folded and chunked attention against softmax under a whole mask, with grouped keys, windows and documents."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from components.models.cascade import document_mask
from components.models.stream_attention import CHUNK_ROWS, Window, cross_attention, intra_attention
from tests.toys import toy_tokens
from tests.unit.models.stream_reference import plain_attention, visible_rows

# float64, sums of at most a thousand products
TOLERANCE = 1e-12


def _qkv(rows: int, heads: int = 4, groups: int = 4, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(2, rows, h, 6, dtype=torch.float64, generator=generator) for h in (heads, groups, groups))
    return q, k, v


@pytest.mark.parametrize("groups", [4, 2, 1])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_folded_streams_equal_the_masked_reference(n: int, groups: int) -> None:
    q, k, v = _qkv(n * 7, groups=groups)
    expected = plain_attention(q, k, v, visible_rows("intra", n, 7, None))
    torch.testing.assert_close(intra_attention(q, k, v, 7, None), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("groups", [4, 2])
def test_folded_streams_that_share_keys_equal_the_masked_reference(groups: int) -> None:
    q, k, v = _qkv(3 * 7, groups=groups)
    expected = plain_attention(q, k, v, visible_rows("intra", 3, 7, None, kv="shared"))
    torch.testing.assert_close(intra_attention(q, k[:, ::3], v[:, ::3], 7, None), expected, atol=TOLERANCE, rtol=0)


WINDOWS = [None, (1, "rows"), (4, "rows"), (50, "rows"), (1, "tokens"), (6, "tokens"), (90, "tokens")]


@pytest.mark.parametrize("groups", [4, 2])
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("last_only", [False, True])
def test_rows_across_streams_equal_the_masked_reference(window: tuple[int, str] | None, last_only: bool, groups: int) -> None:
    n, length = 3, 60
    assert n * length > CHUNK_ROWS  # several chunks
    q, k, v = _qkv(n * length, groups=groups)
    asking = range(n - 1 if last_only else 0, n * length, n if last_only else 1)
    seen = visible_rows("cross_full" if window is None else "cross_local", n, length, window)
    expected = plain_attention(q, k, v, seen)[:, list(asking)]
    chosen = None if window is None else Window(window[0], 1 if window[1] == "rows" else n)
    found = cross_attention(q[:, list(asking)], k, v, asking, chosen, None)
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


def test_documents_split_both_kinds() -> None:
    n, length = 2, 40
    q, k, v = _qkv(n * length)
    documents = torch.stack([torch.arange(length) // 15, torch.arange(length) // 9])
    of_rows = documents.repeat_interleave(n, dim=1)
    same = of_rows[:, :, None] == of_rows[:, None, :]
    intra = plain_attention(q, k, v, visible_rows("intra", n, length, None) & same)
    torch.testing.assert_close(intra_attention(q, k, v, length, document_mask(documents)), intra, atol=TOLERANCE, rtol=0)
    local = plain_attention(q, k, v, visible_rows("cross_local", n, length, (9, "rows")) & same)
    found = cross_attention(q, k, v, range(n * length), Window(9, 1), of_rows)
    torch.testing.assert_close(found, local, atol=TOLERANCE, rtol=0)


def test_no_mask_is_made_within_streams_or_of_all_rows_by_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """What PyTorch's attention is given: batches of single streams, whole rows without a mask, chunks of the last stream's rows."""
    from tests.unit.models.test_streams import toy_streamed

    calls, attention = list[tuple[int, int, int | None]](), F.scaled_dot_product_attention

    def noting(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
        assert options.get("is_causal", False) == (attn_mask is None)
        calls.append((len(q), q.shape[2], None if attn_mask is None else attn_mask.numel()))
        return attention(q, k, v, attn_mask=attn_mask, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", noting)
    model, length = toy_streamed(n_streams=4, layers=("intra", "cross_full", "intra", "intra", "cross_full")), 200
    model(toy_tokens(2, length), 5)
    whole, last = calls[:4], calls[4:]
    assert whole == [(8, length, None), (2, 4 * length, None), (8, length, None), (8, length, None)]
    assert [rows for _, rows, _ in last] == [CHUNK_ROWS, length - CHUNK_ROWS]
    assert [mask for _, _, mask in last] == [CHUNK_ROWS * 4 * CHUNK_ROWS, (length - CHUNK_ROWS) * 4 * length]


def test_a_window_costs_in_proportion_to_the_length() -> None:
    """Scores that are worked out, counted by PyTorch: twice the rows, twice the work."""
    from torch.utils.flop_counter import FlopCounterMode

    def flops(rows: int) -> int:
        q, k, v = _qkv(rows)
        with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            cross_attention(q, k, v, range(rows), Window(64, 1), None)
        return counter.get_total_flops()

    assert flops(4096) / flops(2048) == pytest.approx(2.0, rel=0.02)
