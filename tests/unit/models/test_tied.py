"""A head that is the embedding table, and blocks with grouped queries: parameters, gradients, files, sizes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from components.config.schema import Model, Segment
from components.models.cascade import Cascade
from components.models.expansion import expand_weights, untied
from components.models.files import load_weights
from components.models.sizes import prefix_parameters, stored_parameters, trunk_flops
from components.models.streams import build_cascade
from tests.toys import VOCAB, toy_model, toy_tokens
from tests.unit.models.test_streams import toy_streams

ONE = (Segment(n_blocks=3, d_model=16),)
GROUPED = (Segment(n_blocks=3, d_model=16, n_heads=6, n_kv_heads=2, d_inner=20),)


def _drawn(**changes: Any) -> Cascade:
    model = build_cascade(Model.model_validate({**dict(toy_model()), "segments": ONE, "tied_embeddings": True, **changes}), VOCAB)
    model.init_weights(0)
    return model


def test_one_parameter_gets_the_gradients_of_both_its_uses() -> None:
    tied, own = _drawn(), _drawn(tied_embeddings=False)
    own.load_state_dict(untied(tied.state_dict()))
    for model in (tied, own):
        model.double()(toy_tokens(), 3).square().sum().backward()
    both = own.embeddings[0].weight.grad + own.exits[0].head.weight.grad
    torch.testing.assert_close(tied.embeddings[0].weight.grad, both)
    assert "exits.0.head.weight" not in dict(tied.named_parameters())
    assert "exits.0.head.weight" not in tied.state_dict()


def test_the_tie_holds_through_copies_other_dtypes_and_loading_into_meta(tmp_path: Path) -> None:
    model = _drawn()
    with torch.device("meta"):
        loaded = Cascade(model.settings, VOCAB)
    load_weights(loaded, {name: tensor.clone() for name, tensor in model.state_dict().items()}, tmp_path)
    for same in (copy.deepcopy(model), _drawn().double(), loaded):
        assert same.exit_at(3).head.weight is same.embeddings[0].weight
    assert copy.deepcopy(model).embeddings[0].weight is not model.embeddings[0].weight
    assert torch.equal(loaded(toy_tokens(), 3), model(toy_tokens(), 3))


def test_untied_and_expanded_it_predicts_the_same_where_the_expansion_is_exact() -> None:
    """All blocks intra and logical positions: two streams of one table give what one stream gives."""
    base = _drawn(segments=GROUPED, qk_norm=True)
    streams = toy_streams(n_streams=2, layers=("intra",) * 3, rope_rule="logical")
    larger = _drawn(segments=GROUPED, qk_norm=True, tied_embeddings=False, streams=streams)
    larger.load_state_dict(expand_weights(untied(base.state_dict()), (1, 1)))
    for depth in (1, 2, 3):
        torch.testing.assert_close(larger(toy_tokens(), depth), base(toy_tokens(), depth), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("qk_norm", [False, True])
@pytest.mark.parametrize("tied_embeddings", [False, True])
@pytest.mark.parametrize("segments", [ONE, GROUPED])
def test_parameters_are_counted(segments: tuple[Segment, ...], tied_embeddings: bool, qk_norm: bool) -> None:
    model = _drawn(segments=segments, tied_embeddings=tied_embeddings, qk_norm=qk_norm)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert stored_parameters(model.settings, VOCAB) == counted
    alone = Cascade(model.settings.prefix(2), VOCAB)
    assert prefix_parameters(model.settings, VOCAB, 2) == sum(parameter.numel() for parameter in alone.parameters())


def test_products_of_grouped_blocks_are_counted() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model, length = _drawn(segments=GROUPED), 12
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        list(model.residuals(toy_tokens(1, length), [3]))
    attention = 3 * 4 * model.settings.blocks[0].d_queries
    products = sum(count for name, count in counter.get_flop_counts()["Global"].items() if "mm" in str(name))
    assert trunk_flops(model.settings, 3, length) * length == products + attention * (length + 1) // 2 * length
