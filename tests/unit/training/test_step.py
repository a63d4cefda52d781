"""One optimizer step: independent of accumulation, strict about what it touches, safe against bad losses."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from components.data.stream import BatchStream, PackedRows
from components.models.cascade import Cascade
from components.objectives.base import Objective
from components.training.optimizer import decay_groups
from components.training.step import NonFiniteLossError, TrainState, train_step
from tests.toys import gradients, largest_difference, telescopic, toy_batch, toy_cascade, toy_objective, toy_rows, toy_training

UNEVEN = (5, 7, 2, 9)


def _state(seed: int = 0, **training: object) -> TrainState:
    return TrainState.fresh(toy_cascade(seed), toy_training(**training))


def _step(state: TrainState, objective: Objective, micro_batch_rows: int = 4, **training: object) -> dict[str, float]:
    return train_step(state, toy_batch(UNEVEN, seed=state.step), objective, toy_training(**training), micro_batch_rows, eos_id=0)


def _weights(model: Cascade) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    "settings",
    [
        telescopic("uniform"),
        telescopic("uniform", distill_weight=0.3),
        {"kind": "fixed_exits", "distill_weight": 0.3, "backward": "joint"},
    ],
)
def test_accumulation_changes_neither_gradient_nor_loss(settings: dict[str, object]) -> None:
    found = []
    for rows in (4, 1):
        state = _state(grad_clip_norm=1e9)
        losses = _step(state, toy_objective(settings), rows, grad_clip_norm=1e9)
        found.append((gradients(state.model), losses))
    assert largest_difference(found[0][0], found[1][0]) < 1e-12  # float64, unequal counts of labels
    assert found[0][1] == pytest.approx(found[1][1], rel=1e-12)


def test_without_anchor_blocks_above_the_depth_stay_byte_identical_with_their_moments() -> None:
    state = _state()
    _step(state, toy_objective(telescopic("uniform", anchor_weight=1.0)))  # every parameter has moments now
    before = _weights(state.model)
    moments = {
        name: {key: value.clone() for key, value in state.optimizer.state[parameter].items()}
        for name, parameter in state.model.named_parameters()
        if parameter in state.optimizer.state
    }
    only_first = toy_objective(telescopic({"kind": "explicit", "weights": (1.0, 0.0, 0.0, 0.0, 0.0)}, anchor_weight=0.0))
    for _ in range(5):
        _step(state, only_first)
    after = _weights(state.model)
    touched = {"embeddings.0.weight", "exits.0.norm.weight", "exits.0.head.weight"}
    for name, parameter in state.model.named_parameters():
        if name in touched or name.startswith("blocks.0."):
            assert not torch.equal(before[name], after[name]), name
        else:
            assert torch.equal(before[name], after[name]), name
            assert all(torch.equal(state.optimizer.state[parameter][key], value) for key, value in moments.get(name, {}).items())


def test_every_parameter_is_in_one_decay_group_and_norms_and_embeddings_do_not_decay() -> None:
    model = toy_cascade()
    groups = decay_groups(model, decay_embeddings=False)
    names = [name for name, _ in model.named_parameters()]
    assert sorted(groups["decay"] + groups["no_decay"]) == sorted(names)
    assert set(groups["no_decay"]) == {name for name in names if "norm" in name or name.startswith("embeddings")}
    assert set(decay_groups(model, decay_embeddings=True)["no_decay"]) == {name for name in names if "norm" in name}


def test_decay_moves_matrices_by_lr_times_decay_and_nothing_else() -> None:
    state = _state(weight_decay=0.5)
    before = _weights(state.model)
    for parameter in state.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for group in state.optimizer.param_groups:
        group["lr"] = 0.1
    state.optimizer.step()
    decayed = set(decay_groups(state.model, decay_embeddings=False)["decay"])
    for name, weight in state.model.state_dict().items():
        factor = 1 - 0.1 * 0.5 if name in decayed else 1.0
        torch.testing.assert_close(weight, before[name] * factor, rtol=1e-12, atol=0)


def test_a_loss_that_is_not_finite_stops_before_the_weights_move() -> None:
    state = _state()
    with torch.no_grad():
        state.model.exits[2].head.weight[3, 4] = float("nan")
    before = _weights(state.model)
    with pytest.raises(NonFiniteLossError, match="step 0: loss nan"):
        _step(state, toy_objective({"kind": "twin", "exit": 3}))
    assert state.step == 0
    assert all(
        torch.equal(
            before[name],
            tensor,
        )
        or tensor.isnan().any()
        for name, tensor in state.model.state_dict().items()
    )
    assert not state.optimizer.state


def test_the_gradient_norm_is_clipped() -> None:
    state = _state()
    losses = _step(state, toy_objective({"kind": "twin", "exit": 3}), grad_clip_norm=1e-3)
    total = sum(float(grad.square().sum()) for grad in gradients(state.model).values()) ** 0.5
    assert losses["grad_norm"] > 1e-3
    assert total == pytest.approx(1e-3, rel=1e-3)


def test_loss_falls_on_a_batch_seen_again_and_again() -> None:
    training = toy_training(steps=60, warmup_steps=0, lr=0.01)
    state = TrainState.fresh(toy_cascade(dtype=torch.float32, init_std=0.02), training)
    objective, batch = toy_objective(telescopic("uniform")), toy_batch()
    losses = [train_step(state, batch, objective, training, 4, 0)["full"] for _ in range(60)]
    assert losses[0] == pytest.approx(np.log(48), rel=0.02)
    assert losses[-1] < 0.2


def test_end_of_text_is_a_label_like_any_other_and_is_learned(tmp_path: Path) -> None:
    """Filling has the same id: were it told apart by its id, no document would ever end."""
    stream = BatchStream(PackedRows.open(toy_rows(tmp_path) / "train"), 7, 4)
    training = toy_training(steps=50, warmup_steps=0, lr=0.01)
    state = TrainState.fresh(toy_cascade(dtype=torch.float32, init_std=0.02), training)
    objective, batches = toy_objective(telescopic("uniform")), [stream.batch(step) for step in range(15)]
    inputs = torch.cat([torch.from_numpy(batch.inputs) for batch in batches])
    is_end = torch.cat([torch.from_numpy(batch.labels) for batch in batches]) == 0

    def loss_at_ends() -> float:
        with torch.no_grad():
            return float(-state.model(inputs, 5).log_softmax(-1)[..., 0][is_end].mean())

    before = loss_at_ends()
    for step in range(50):
        train_step(state, stream.batch(step), objective, training, 4, eos_id=0)
    assert int(is_end.sum()) >= 35  # an epoch, of 40 documents
    assert loss_at_ends() < before - 0.5
