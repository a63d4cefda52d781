"""From few streams to many: what is copied, when the larger model is exactly the smaller one, and when it is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from components.models.cascade import Cascade
from components.models.expansion import expand_moments, expand_weights, table_sources
from components.models.streams import StreamedCascade, build_cascade
from tests.toys import VOCAB, toy_cascade, toy_tokens
from tests.unit.models.test_streams import toy_streamed, toy_streams

# float64: softmax over the same keys, each twice, rounds a little differently
TOLERANCE = 1e-12

INTRA = ("intra",) * 5
ONE_CROSS = ("intra", "intra", "cross_full", "intra", "intra")
TWO_CROSS = ("intra", "cross_full", "intra", "cross_full", "intra")


@pytest.mark.parametrize(
    ("n_from", "n_to", "replication", "sources"),
    [
        (1, 2, "cyclic", (1, 1)),
        (2, 4, "cyclic", (1, 2, 1, 2)),
        (2, 3, "cyclic", (1, 2, 1)),
        (3, 8, "cyclic", (1, 2, 3, 1, 2, 3, 1, 2)),
        (1, 4, "block", (1, 1, 1, 1)),
        (2, 4, "block", (1, 1, 2, 2)),
        (2, 3, "block", (1, 1, 2)),
        (2, 2, "block", (1, 2)),
    ],
)
def test_tables_copied(n_from: int, n_to: int, replication: Any, sources: tuple[int, ...]) -> None:
    assert table_sources(n_from, n_to, replication) == sources


def test_fewer_streams_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot expand 4 streams to 2"):
        table_sources(4, 2, "cyclic")


def _expanded(model: Cascade, n_from: int, n_to: int, replication: Any = "cyclic", **streams: Any) -> StreamedCascade:
    larger = build_cascade(model.settings.model_copy(update={"streams": toy_streams(n_streams=n_to, **streams)}), VOCAB).double()
    larger.load_state_dict(expand_weights(model.state_dict(), table_sources(n_from, n_to, replication)))
    assert isinstance(larger, StreamedCascade)
    return larger


def _largest_gap(small: Cascade, large: Cascade) -> float:
    tokens = toy_tokens(2, 10)
    return max(float((small(tokens, depth) - large(tokens, depth)).detach().abs().max()) for depth in range(1, 6))


@pytest.mark.parametrize("n", [2, 3, 4, 8])
@pytest.mark.parametrize("layers", [INTRA, ONE_CROSS])
def test_base_to_n_is_exact_within_streams_and_through_one_logical_cross_block(n: int, layers: tuple[str, ...]) -> None:
    base = toy_cascade(junction_norm=True)
    assert _largest_gap(base, _expanded(base, 1, n, layers=layers, rope_rule="logical")) < TOLERANCE


@pytest.mark.parametrize("n_to", [4, 6, 8])
@pytest.mark.parametrize("layers", [INTRA, ONE_CROSS])
def test_cyclic_expansion_of_two_streams_is_exact(n_to: int, layers: tuple[str, ...]) -> None:
    small = toy_streamed(n_streams=2, layers=layers, rope_rule="logical")
    assert _largest_gap(small, _expanded(small, 2, n_to, layers=layers, rope_rule="logical")) < TOLERANCE


@pytest.mark.parametrize(
    ("layers", "rope_rule", "replication"),
    [
        (ONE_CROSS, "by_layer", "cyclic"),
        (ONE_CROSS, "physical", "cyclic"),
        (TWO_CROSS, "logical", "cyclic"),
        (("cross_full",) * 5, "physical", "cyclic"),
    ],
)
def test_other_layouts_are_not_exact(layers: tuple[str, ...], rope_rule: str, replication: str) -> None:
    small = toy_streamed(n_streams=2, layers=layers, rope_rule=rope_rule)
    assert _largest_gap(small, _expanded(small, 2, 4, replication, layers=layers, rope_rule=rope_rule)) > 1e-3


def test_moments_go_to_the_first_copy_of_a_table_and_the_rest_is_kept() -> None:
    moments = {
        "embeddings.0.weight.exp_avg": torch.tensor(1.0),
        "stream_embeddings.0.1.weight.step": torch.tensor(2.0),
        "blocks.0.attention.qkv.weight.exp_avg": torch.tensor(3.0),
    }
    cyclic = expand_moments(moments, table_sources(2, 4, "cyclic"))
    assert cyclic == moments
    block = expand_moments(moments, table_sources(2, 4, "block"))
    assert block == {
        "embeddings.0.weight.exp_avg": torch.tensor(1.0),
        "stream_embeddings.1.1.weight.step": torch.tensor(2.0),  # table 3 is the first copy of table 2
        "blocks.0.attention.qkv.weight.exp_avg": torch.tensor(3.0),
    }


def test_copies_share_no_memory() -> None:
    weights = expand_weights(toy_cascade().state_dict(), table_sources(1, 3, "cyclic"))
    tables = [weights["embeddings.0.weight"], *(weights[f"stream_embeddings.{i}.0.weight"] for i in range(2))]
    assert len({table.data_ptr() for table in tables}) == 3
    assert all(torch.equal(table, tables[0]) for table in tables)
