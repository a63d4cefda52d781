"""Streams against a dense reference with whole masks, and what they can see."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from components.config.schema import Model
from components.config.streams import Streams
from components.models.cascade import Cascade
from components.models.streams import StreamedCascade, build_cascade
from tests.toys import VOCAB, toy_cascade, toy_model, toy_tokens
from tests.unit.models.stream_reference import reference_logits

# float64, sums of a few hundred products
TOLERANCE = 1e-11
MIXED = ("intra", "cross_full", "intra", "cross_local", "intra")


def toy_streams(**changes: Any) -> Streams:
    defaults: dict[str, Any] = {
        "n_streams": 3, "layers": MIXED, "rope_rule": "by_layer", "kv": "separate", "supervision": "last", "n_mirrored": 0,
    }  # fmt: skip
    chosen = {**defaults, **changes}
    if "cross_local" in chosen["layers"] and "local" not in chosen:
        chosen["local"] = {"size": 5, "unit": "rows"}
    return Streams.model_validate(chosen)


def toy_streamed(
    seed: int = 0, dtype: torch.dtype = torch.float64, model: dict[str, Any] | None = None, **changes: Any
) -> StreamedCascade:
    settings = Model.model_validate({**dict(toy_model(**(model or {}))), "streams": toy_streams(**changes)})
    streamed = StreamedCascade(settings, VOCAB)
    streamed.init_weights(seed)
    generator = torch.Generator().manual_seed(seed)
    for parameter in streamed.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return streamed.to(dtype)


LAYOUTS: dict[str, dict[str, Any]] = {
    "by_layer": {},
    "physical": {"rope_rule": "physical", "layers": ("cross_full",) * 5},
    "logical": {"rope_rule": "logical"},
    "all_intra": {"layers": ("intra",) * 5},
    "intra_physical": {"layers": ("intra",) * 5, "rope_rule": "physical"},
    "tokens_window": {"layers": ("cross_local",) * 5, "local": {"size": 3, "unit": "tokens"}},
    "rows_window": {"layers": ("cross_local",) * 5, "local": {"size": 4, "unit": "rows"}},
    "one_row_window": {"layers": ("cross_local", "intra", "intra", "intra", "intra"), "local": {"size": 1, "unit": "rows"}},
    "shared": {"kv": "shared"},
    "two": {"n_streams": 2},
    "five": {"n_streams": 5, "layers": ("intra", "cross_local", "cross_full", "intra", "cross_full")},
    "sum": {"supervision": "sum"},
}


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_equal_a_dense_masked_reference(layout: str, depth: int) -> None:
    model, tokens = toy_streamed(**LAYOUTS[layout]), toy_tokens(2, 9)
    reads = "sum" if layout == "sum" else "last"
    expected = reference_logits(model.state_dict(), model.settings, tokens, depth, model.streams.n_streams, reads)
    torch.testing.assert_close(model(tokens, depth), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("junction_norm", [False, True])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_fewer_streams_run_the_last_tables(n: int, junction_norm: bool) -> None:
    model, tokens = toy_streamed(n_streams=4, model={"junction_norm": junction_norm}), toy_tokens(2, 9)
    for depth in (2, 3, 5):
        with model.running(n):
            logits = model(tokens, depth)
        expected = reference_logits(model.state_dict(), model.settings, tokens, depth, n)
        torch.testing.assert_close(logits, expected, atol=TOLERANCE, rtol=0)


def test_every_stream_can_be_read_out() -> None:
    model, tokens = toy_streamed(supervision="all"), toy_tokens(2, 9)
    with model.running(3, reads_all=True):
        hidden_ND, head_VD = model.read(tokens, 4)
    expected = reference_logits(model.state_dict(), model.settings, tokens, 4, 3, "all")
    torch.testing.assert_close((hidden_ND @ head_VD.T).view(2, 9, 3, VOCAB), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("layers", [("intra",) * 5, ("cross_full",) * 5, (*MIXED[:3], "intra", "intra")])
@pytest.mark.parametrize("rope_rule", ["by_layer", "physical", "logical"])
def test_one_stream_is_the_base_bit_for_bit(layers: tuple[str, ...], rope_rule: str, documents: bool) -> None:
    base = toy_cascade(dtype=torch.float32)
    model = build_cascade(
        base.settings.model_copy(update={"streams": toy_streams(n_streams=1, layers=layers, rope_rule=rope_rule)}), VOCAB
    )
    model.load_state_dict(base.state_dict())
    tokens = toy_tokens(2, 160)
    numbers = torch.arange(160).div(50, rounding_mode="floor").expand(2, -1) if documents else None
    for depth in range(1, 6):
        assert torch.equal(model(tokens, depth, numbers), base(tokens, depth, numbers))


def test_without_streams_the_model_is_a_plain_cascade() -> None:
    assert type(build_cascade(toy_model(), VOCAB)) is Cascade
    assert toy_cascade().stream_counts == (1,)


def test_a_uniform_dense_model_is_a_cascade_of_one_segment() -> None:
    from components.config.schema import Segment

    model = toy_streamed(model={"segments": (Segment(n_blocks=4, d_model=24),)}, layers=("intra", "cross_full", "intra", "intra"))
    tokens = toy_tokens(2, 9)
    torch.testing.assert_close(
        model(tokens, 4), reference_logits(model.state_dict(), model.settings, tokens, 4, 3), atol=TOLERANCE, rtol=0
    )


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_token_changes_no_logit_before_it(layout: str) -> None:
    model, tokens = toy_streamed(**LAYOUTS[layout]), toy_tokens(1)
    changed = tokens.clone()
    changed[0, 7] = (changed[0, 7] + 1) % VOCAB
    for depth in range(1, 6):
        before, after = model(tokens, depth), model(changed, depth)
        assert torch.equal(before[0, :7], after[0, :7])
        assert not torch.equal(before[0, 7], after[0, 7])


@pytest.mark.parametrize("layers", [("cross_full",) * 5, ("cross_local",) * 5])
def test_a_stream_never_sees_later_streams_of_its_token(layers: tuple[str, ...]) -> None:
    """Table j changed at one token: streams before j of that token, and all earlier tokens, stay as they are."""
    model = toy_streamed(layers=layers, local={"size": 7, "unit": "rows"} if "cross_local" in layers else None)
    tokens = torch.arange(12)[None]
    for table in (2, 3):
        with model.running(3, reads_all=True), torch.no_grad():
            before = model.read(tokens, 5)[0].view(12, 3, -1)
            for slices in model.stream_embeddings[table - 2]:
                slices.weight[6] += 1.0
            after = model.read(tokens, 5)[0].view(12, 3, -1)
        assert torch.equal(before[:6], after[:6])
        assert torch.equal(before[6, : table - 1], after[6, : table - 1])
        assert all(not torch.equal(before[6, stream], after[6, stream]) for stream in range(table - 1, 3))


@pytest.mark.parametrize("kv", ["separate", "shared"])
def test_gradients_reach_every_table_through_a_cross_layer_and_else_only_the_last(kv: str) -> None:
    def reached(layers: tuple[str, ...]) -> list[bool]:
        model = toy_streamed(layers=layers, kv=kv, n_streams=4)
        model(toy_tokens(), 5).square().sum().backward()
        tables = [model.embeddings, *model.stream_embeddings]
        return [any(t.weight.grad is not None and bool(t.weight.grad.any()) for t in table) for table in tables]

    assert reached(("intra", "intra", "cross_full", "intra", "intra")) == [True] * 4
    assert reached(("intra",) * 5) == ([False, False, False, True] if kv == "separate" else [True, False, False, True])


def test_a_pass_that_ends_before_streams_mix_leaves_the_other_tables_without_gradient() -> None:
    model = toy_streamed(layers=("intra", "intra", "cross_full", "intra", "intra"), n_streams=3)
    model(toy_tokens(), 2).square().sum().backward()
    *others, last = [model.embeddings, *model.stream_embeddings]
    assert all(slice_.weight.grad is None for table in others for slice_ in table)  # a zero would let momentum move them
    assert bool(last[0].weight.grad.any())


def test_documents_keep_to_themselves_in_every_kind_of_layer() -> None:
    model, tokens = toy_streamed(model={"document_attention": "block_diagonal"}), toy_tokens(1, 14)
    numbers = torch.tensor([[0] * 6 + [1] * 8])
    changed = tokens.clone()
    changed[0, 2] = (changed[0, 2] + 1) % VOCAB
    for depth in range(1, 6):
        assert torch.equal(model(tokens, depth, numbers)[0, 6:], model(changed, depth, numbers)[0, 6:])
        alone = model(tokens[:, 6:], depth)
        # rotary attention sees only distances, but its angles are float32
        torch.testing.assert_close(model(tokens, depth, numbers)[0, 6:], alone[0], atol=1e-5, rtol=0)


def test_one_trunk_pass_gives_the_logits_of_every_depth() -> None:
    model, tokens = toy_streamed(n_mirrored=0), toy_tokens()
    for depth, x_BTD in model.residuals(tokens, range(1, 6)):
        hidden_ND, head_VD = model.read_residual(x_BTD, depth)
        torch.testing.assert_close((hidden_ND @ head_VD.T).view(3, 12, VOCAB), model(tokens, depth), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("n", [0, 4])
def test_streams_that_the_model_does_not_have_are_refused(n: int) -> None:
    with pytest.raises(ValueError, match=rf"{n} streams outside 1\.\.3"), toy_streamed().running(n):
        pass


def test_a_skipped_block_changes_nothing_but_that() -> None:
    """LayerDrop: without block 4 (of the segment of block 3), depth 4 reads what came out of block 3."""
    model, tokens = toy_streamed(), toy_tokens()
    ((_, skipped_BTD),) = model.residuals(tokens, [4], skipped=[4])
    ((_, shallow_BTD),) = model.residuals(tokens, [3])
    torch.testing.assert_close(skipped_BTD, shallow_BTD, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("layout", ["by_layer", "tokens_window", "shared"])
def test_bfloat16_products_are_close_to_float32(layout: str) -> None:
    model, tokens = toy_streamed(dtype=torch.float32, **LAYOUTS[layout]), toy_tokens()
    exact = model(tokens, 5).detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rounded = model(tokens, 5).detach()
    # eight bits of mantissa, through five blocks: the logits' spread is about 1
    assert float((rounded.float() - exact).abs().mean()) < 0.02 * float(exact.std())
