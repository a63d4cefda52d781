"""Two gloo workers with 3 and 29 labels that count: every objective's gradient is that of one batch of 32, masks included."""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from components.data.stream import IGNORED, Batch
from components.models.files import load_tensors, save_tensors
from components.training.step import TrainState, train_step
from tests.toys import ROOT, VOCAB, gradients, largest_difference, telescopic, toy_cascade, toy_objective, toy_training

pytestmark = pytest.mark.slow

VALID = (3, 29)
STEP = 4  # LayerDrop leaves out two of the five blocks here
OBJECTIVES = {
    "uniform": telescopic("uniform", distill_weight=0.3),
    "no-anchor": telescopic("uniform", anchor_weight=0.0),
    "mlms": {"kind": "fixed_exits", "distill_weight": 0.3, "backward": "per_exit"},
    "twin": {"kind": "twin", "exit": 3},
    "layerdrop": {"kind": "layerdrop", "drop_probability": 0.4},
}


def joined_batch() -> Batch:
    tokens = torch.randint(0, VOCAB, (2, 33), generator=torch.Generator().manual_seed(3)).numpy()
    labels = tokens[:, 1:].copy()
    for row, count in enumerate(VALID):
        labels[row, count:] = IGNORED
    return Batch(tokens[:, :-1].copy(), labels, sum(VALID))


def step_gradients(name: str, batch: Batch) -> dict[str, torch.Tensor]:
    training = toy_training(grad_clip_norm=1e9)
    state = dataclasses.replace(TrainState.fresh(toy_cascade(), training), step=STEP)
    train_step(state, batch, toy_objective(OBJECTIVES[name]), training, 1, eos_id=0)
    return gradients(state.model)


def work(folder: Path, rank: int, port: int) -> None:
    """What each of the two processes runs."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    whole = joined_batch()
    share = Batch(whole.inputs[rank : rank + 1], whole.labels[rank : rank + 1], whole.n_valid_global)
    for name in OBJECTIVES:
        save_tensors(step_gradients(name, share), folder / f"{name}-{rank}.safetensors")
    masks = [toy_objective(OBJECTIVES["layerdrop"]).skipped(step) for step in range(500)]
    (folder / f"masks-{rank}.json").write_text(json.dumps(masks))
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("workers")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    code = "import sys; from pathlib import Path; from tests.numeric.test_unequal_workers import work; "
    code += "work(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))"
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(folder), str(rank), str(port)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)},
        )
        for rank in range(2)
    ]
    assert [worker.wait(timeout=240) for worker in workers] == [0, 0]
    return folder


@pytest.mark.parametrize("name", OBJECTIVES)
def test_tokens_weigh_the_same_whichever_worker_has_them(folder: Path, name: str) -> None:
    found = [load_tensors(folder / f"{name}-{rank}.safetensors") for rank in range(2)]
    assert largest_difference(found[0], found[1]) == 0.0
    assert largest_difference(found[0], step_gradients(name, joined_batch())) < 1e-13  # float64, the same sums in another order


def test_layerdrop_masks_are_the_same_on_both_workers(folder: Path) -> None:
    masks = [json.loads((folder / f"masks-{rank}.json").read_text()) for rank in range(2)]
    assert masks[0] == masks[1]
    assert len({tuple(mask) for mask in masks[0]}) > 20
    assert len(masks[0][STEP]) == 2


def test_a_mean_of_the_workers_means_would_be_another_gradient() -> None:
    whole = joined_batch()
    alone = [
        step_gradients("twin", Batch(whole.inputs[r : r + 1], whole.labels[r : r + 1], count)) for r, count in enumerate(VALID)
    ]
    mean_of_means = {key: (alone[0][key] + alone[1][key]) / 2 for key in alone[0]}
    assert largest_difference(mean_of_means, step_gradients("twin", whole)) > 1e-3
