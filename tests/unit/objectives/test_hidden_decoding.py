"""Hidden Decoding keeps the base's objective, draws the number of streams, and costs what it says."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from components.config.problems import CheckpointError, Problem
from components.config.schema import Arm, Model
from components.models.sizes import head_flops, prefix_flops
from components.models.stream_sizes import block_rows, visible_keys
from components.models.streams import StreamedCascade
from components.objectives.base import build_objective
from components.objectives.hidden_decoding import Objective, Settings, never_separate
from tests.toys import VOCAB, gradients, largest_difference, telescopic, toy_arm, toy_token_batch, toy_training
from tests.unit.models.test_expansion import INTRA, ONE_CROSS, TWO_CROSS
from tests.unit.models.test_streams import toy_streamed

# float64, a few hundred terms
TOLERANCE = 1e-12


def hidden_arm(inner: dict[str, Any], name: str = "hd", base: str = "toy", optimizer: str = "keep", **streams: Any) -> Arm:
    kept = toy_arm(inner)
    settings = Settings(
        kind="hidden_decoding",
        base=base,
        inner=kept.objective,
        replication="cyclic",
        optimizer=optimizer,
        control=None,  # type: ignore[arg-type]
    )
    model = toy_streamed(**streams).settings
    return Arm(name=name, base=base, model=model, training=toy_training(), objective=settings, first_step=10)


def _objective(inner: dict[str, Any], seed: int = 0, **streams: Any) -> Objective:
    objective = build_objective(hidden_arm(inner, **streams), VOCAB, seed)
    assert isinstance(objective, Objective)
    return objective


def _fixed(depth: int) -> dict[str, Any]:
    return telescopic({"kind": "explicit", "weights": tuple(float(k == depth) for k in range(1, 6))})


@pytest.mark.parametrize("depth", [1, 3, 5])
@pytest.mark.parametrize("supervision", ["last", "sum", "all"])
def test_gradient_is_that_of_prefix_and_anchor_at_n_streams(supervision: str, depth: int) -> None:
    model, batch = toy_streamed(supervision=supervision), toy_token_batch((12, 5, 9))

    def nll(k: int) -> torch.Tensor:
        if supervision != "all":
            return F.cross_entropy(model(batch.tokens_BT, k).flatten(0, 1), batch.labels_BT.flatten())
        with model.running(3, reads_all=True):
            hidden_ND, head_VD = model.read(batch.tokens_BT, k)
        per_stream = (hidden_ND @ head_VD.T).view(3, 12, 3, VOCAB)  # rows of the batch, tokens, streams
        return torch.stack([F.cross_entropy(per_stream[:, :, s].flatten(0, 1), batch.labels_BT.flatten()) for s in range(3)]).mean()

    loss = nll(depth) + nll(5)
    loss.backward()
    expected = gradients(model)
    model.zero_grad()
    sums = _objective(_fixed(depth), supervision=supervision).backward(model, batch, step=0)
    assert largest_difference(gradients(model), expected) < TOLERANCE
    assert float(sums["loss"]) * batch.scale == pytest.approx(float(loss), rel=1e-12)


@pytest.mark.parametrize("backward", ["joint", "per_exit", "separate"])
def test_a_suite_keeps_its_exits_and_its_teacher_at_n_streams(backward: str) -> None:
    """However it is walked: separate passes leave out streams that a shared one still needs deeper down."""
    model, batch = toy_streamed(), toy_token_batch((12, 5, 9))
    logp = {k: torch.log_softmax(model(batch.tokens_BT, k), -1) for k in (2, 4, 5)}
    counts = batch.labels_BT != -100
    loss = F.nll_loss(logp[5][counts], batch.labels_BT[counts])
    for k in (2, 4):
        soft = -(logp[5].detach().exp() * logp[k]).sum(-1)[counts].mean()
        loss = loss + 0.7 * F.nll_loss(logp[k][counts], batch.labels_BT[counts]) + 0.3 * soft
    loss.backward()
    expected = {name: grad for name, grad in gradients(model).items() if bool(grad.any())}
    model.zero_grad()
    _objective({"kind": "fixed_exits", "distill_weight": 0.3, "backward": backward}).backward(model, batch, step=0)
    found = {name: grad for name, grad in gradients(model).items() if bool(grad.any())}
    assert largest_difference(found, expected) < TOLERANCE


def test_sampled_streams_are_a_function_of_seed_and_step_and_uniform() -> None:
    first, again, other = (_objective(telescopic(), seed, n_streams=4, sampled=(1, 2, 4)) for seed in (0, 0, 1))
    drawn = [first.streams_at(step) for step in range(600)]
    assert drawn == [again.streams_at(step) for step in range(600)]
    assert drawn != [other.streams_at(step) for step in range(600)]
    # 600 draws of a third: standard deviation 11.5
    assert all(abs(drawn.count(n) - 200) < 50 for n in (1, 2, 4))


def test_the_draw_of_streams_does_not_move_the_draw_of_depths() -> None:
    plain = build_objective(toy_arm(telescopic()), VOCAB, 0)
    sampled = _objective(telescopic(), n_streams=4, sampled=(1, 2, 4))
    assert all(sampled.depths_at(step) == plain.depths_at(step) for step in range(50))


def test_a_step_trains_the_last_tables_and_leaves_the_others() -> None:
    model = toy_streamed(n_streams=4, sampled=(1, 2, 4))
    objective = _objective(_fixed(3), n_streams=4, sampled=(1, 2, 4))
    for n in (1, 2, 4):
        step = next(step for step in range(100) if objective.streams_at(step) == n)
        model.zero_grad(set_to_none=True)
        objective.backward(model, toy_token_batch(), step)
        tables = [model.embeddings, *model.stream_embeddings]
        assert [table[0].weight.grad is not None for table in tables] == [False] * (4 - n) + [True] * n


@pytest.mark.parametrize("supervision", ["last", "all"])
def test_flops_are_those_of_prefix_and_anchor_at_n_streams(supervision: str) -> None:
    objective = _objective(_fixed(3), n_streams=4, sampled=(1, 2, 4), supervision=supervision)
    per_n = {}
    for n in (1, 2, 4):
        shape = objective.model.running(n)
        per_n[n] = 3 * sum(prefix_flops(shape, VOCAB, depth, 32) for depth in (3, 5))
    assert [objective.step_flops(step, 32) for step in range(20)] == [per_n[objective.streams_at(step)] for step in range(20)]
    assert objective.expected_flops(32) == pytest.approx(sum(per_n.values()) / 3)
    assert head_flops(objective.model, VOCAB, 3) == (4 if supervision == "all" else 1) * 2 * 24 * VOCAB


@pytest.mark.parametrize("streams", [{}, {"supervision": "all"}, {"supervision": "sum"}, {"kv": "shared"}, {"sampled": (1, 2, 4)}])
def test_a_step_multiplies_as_much_as_its_formula_says(streams: dict[str, Any]) -> None:
    """Matrix products of prefix and anchor, counted by PyTorch: 3 x forward, and heads for the rows that predict alone."""
    from torch.utils.flop_counter import FlopCounterMode

    objective = _objective(_fixed(3), n_streams=4, **streams)
    model, batch = objective.new_model(), toy_token_batch()
    model.init_weights(0)
    for step in range(3):
        shape = objective.model.running(objective.streams_at(step))
        with torch.autocast("cpu", dtype=torch.bfloat16), FlopCounterMode(display=False) as counter:  # heads are plain products
            objective.backward(model, batch, step)
        attention = sum(_attention_flops(shape, depth, 12) for depth in (3, 5))
        assert counter.get_total_flops() / batch.tokens_BT.numel() == objective.step_flops(step, 12) - 3 * attention


def _attention_flops(shape: Model, deepest: int, length: int) -> int:
    """Scores and mixing of a forward pass, per token."""
    streams, flops = shape.streams, 0
    assert streams is not None
    for block in range(1, deepest + 1):
        asking = block_rows(streams, block, deepest).asking
        keys = visible_keys(streams.layers[block - 1], streams.n_streams, asking, length, streams.local)
        flops += 4 * shape.blocks[block - 1].d_queries * keys // length
    return flops


def test_streams_from_one_table_stay_equal_through_one_logical_cross_block() -> None:
    """The warning is right: equal tables get equal gradients, and with positions by layer they do not."""

    def table_gradients(rope_rule: str) -> list[torch.Tensor]:
        model = toy_streamed(n_streams=4, layers=ONE_CROSS, rope_rule=rope_rule)
        tables = [model.embeddings[0], *(own[0] for own in model.stream_embeddings)]
        slices = [[model.embeddings[i], *(own[i] for own in model.stream_embeddings)] for i in range(3)]
        for first, *others in slices:
            for other in others:
                other.load_state_dict(first.state_dict())
        _objective(_fixed(5), n_streams=4, layers=ONE_CROSS, rope_rule=rope_rule).backward(model, toy_token_batch(), 0)
        return [table.weight.grad for table in tables]

    equal, apart = table_gradients("logical"), table_gradients("by_layer")
    assert all(torch.allclose(equal[0], other, atol=1e-14, rtol=1e-10) for other in equal[1:3])
    assert not torch.allclose(equal[0], equal[3], atol=1e-6)
    assert not torch.allclose(apart[0], apart[1], atol=1e-8)


def test_streams_that_never_separate_are_told_apart_from_others() -> None:
    def answer(**streams: Any) -> bool:
        return never_separate(toy_streamed(**streams).settings)

    assert answer(layers=ONE_CROSS, rope_rule="logical")
    assert not answer(layers=TWO_CROSS, rope_rule="logical")
    assert not answer(layers=ONE_CROSS, rope_rule="by_layer")
    assert not answer(layers=ONE_CROSS, rope_rule="logical", n_streams=2)


def test_starting_such_a_model_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from components.training.run import run_training
    from tests.toys import toy_run

    run = toy_run(tmp_path, telescopic())
    run_training(run, lambda _: None)
    objective = _objective(telescopic(), layers=ONE_CROSS, rope_rule="logical")
    with caplog.at_level(logging.WARNING):
        objective.start(objective.new_model(), run.output_dir)
    assert "stay equal" in caplog.text


def test_what_cannot_be_expanded_is_refused() -> None:
    def problems(inner: dict[str, Any], **streams: Any) -> str:
        arm = hidden_arm(inner, **streams)
        return "\n".join(str(Problem(*problem)) for problem in arm.objective.problems(arm.model))

    assert problems(telescopic()) == ""
    assert "streams.layers: all intra" in problems(telescopic(), layers=INTRA)
    assert problems(telescopic(), layers=INTRA, n_streams=1) == ""
    assert "base: must be trained with one of telescopic" in problems({"kind": "layerdrop", "drop_probability": 0.1})
    objective = _objective(telescopic())
    with pytest.raises(CheckpointError, match="needs the trained model of its base"):
        objective.start(StreamedCascade(objective.model, VOCAB), None)
