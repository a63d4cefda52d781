"""Compiled blocks: the same numbers, and as many graphs as there are kinds of blocks, whatever depths are drawn."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch._dynamo

from components.models import onednn
from components.models.cascade import Cascade
from components.training.compiled import MOST_GRAPHS, compile_blocks
from components.training.run import run_training
from tests.toys import gradients, largest_difference, telescopic, toy_cascade, toy_objective, toy_run, toy_token_batch, toy_tokens
from tests.unit.models.test_streams import LAYOUTS, toy_streamed

N_SHAPES = 3  # segments of the toy cascade


@pytest.fixture(autouse=True)
def _dynamo_as_it_was() -> Iterator[None]:
    config = torch._dynamo.config
    before = config.recompile_limit, config.fail_on_recompile_limit_hit
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()
    config.recompile_limit, config.fail_on_recompile_limit_hit = before


def n_graphs() -> int:
    counted: int = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return counted


def both(model: Cascade, compiled: Cascade, compute: object) -> None:
    """Runs the computation on the model and on one that is compiled: their gradients must agree."""
    assert callable(compute)
    for one in (model, compiled):
        one.zero_grad()
        compute(one)
    assert largest_difference(gradients(model), gradients(compiled)) < 1e-12  # float64


@pytest.mark.parametrize("distill_weight", [0.0, 0.3])
def test_every_depth_runs_on_one_graph_per_shape(distill_weight: float) -> None:
    model, compiled, batch = toy_cascade(), toy_cascade(), toy_token_batch((12, 5, 9))
    compile_blocks(compiled, "aot_eager")
    objective = toy_objective(telescopic("roundrobin", distill_weight=distill_weight))
    for step in range(6):  # all five depths
        both(model, compiled, lambda one, step=step: objective.backward(one, batch, step))
    assert n_graphs() == N_SHAPES


@pytest.mark.parametrize("layout", ["by_layer", "shared", "five"])
def test_streams_add_a_graph_per_kind_of_block_and_number_of_streams(layout: str) -> None:
    model, compiled, tokens = toy_streamed(**LAYOUTS[layout]), toy_streamed(**LAYOUTS[layout]), toy_tokens()
    compile_blocks(compiled, "aot_eager")

    def backward(one: Cascade) -> None:
        for n_streams in range(1, model.streams.n_streams + 1):
            with one.running(n_streams):
                for depth in (2, 3, 5):
                    one(tokens, depth).square().mean().backward()

    both(model, compiled, backward)
    first = n_graphs()
    both(model, compiled, backward)
    assert n_graphs() == first < MOST_GRAPHS / 4


def test_more_graphs_than_the_limit_are_an_error() -> None:
    model = toy_cascade()
    compile_blocks(model, "aot_eager")
    torch._dynamo.config.recompile_limit = 2
    with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
        model(toy_tokens(), 5)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles C++")
def test_a_compiled_run_ends_where_the_plain_one_does(tmp_path: Path) -> None:
    ends = []
    for is_compiled in (False, True):
        run = toy_run(tmp_path / str(is_compiled), telescopic("uniform", distill_weight=0.3), compile=is_compiled)
        losses: list[float] = []
        run_training(run, lambda progress, losses=losses: losses.append(progress.loss_nats))
        ends.append(losses)
    assert n_graphs() == N_SHAPES
    assert ends[0] == pytest.approx(ends[1], rel=1e-5)
    assert len(ends[0]) == 10


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="compiles C++")
def test_products_in_onednn_are_not_copied_by_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import lowering
    from torch._inductor.utils import run_and_get_code

    product = torch.ops.aten.mm.default
    monkeypatch.setitem(lowering.lowerings, product, lowering.lowerings[product])  # as it was, after this test
    monkeypatch.setattr(onednn, "pays", lambda: True)
    monkeypatch.setattr(torch._inductor.config, "force_disable_caches", True)  # or code of another test might come back
    model, compiled, tokens = toy_cascade(), toy_cascade(), toy_tokens()
    compile_blocks(compiled)

    def backward() -> torch.Tensor:
        logits = compiled(tokens, 1)
        logits.square().mean().backward()
        return logits

    logits, codes = run_and_get_code(backward)
    torch.testing.assert_close(logits, model(tokens, 1), atol=1e-12, rtol=0)  # float64
    assert codes
    for code in codes:
        assert "aten.mm.default(" in code
        assert "extern_kernels.mm(" not in code
