"""Step time of every arm against its FLOPs, relative to `twin-full`: is each arm as cheap as the theory says?

Every arm takes whole optimizer steps of the same shape on the same batch; the arms take turns, round by round, so that a busy
machine slows all of them alike. Printed per arm: the FLOP ratio to the twin, the time ratio (median and spread over rounds),
and their quotient, which should be at most 1.05. One thread.

    python bench/arm_cost.py [--rounds 7] [--width 256]
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from components.config.loader import load_study, read_yaml, resolve_arm
from components.config.schema import Arm, Model, Segment, Study
from components.data.stream import Batch
from components.objectives.base import build_objective
from components.training.step import TrainState, train_step

VOCAB, SEQ_LEN, ROWS = 4096, 256, 2
ALL_ARMS = Path(__file__).parents[1] / "scales" / "all-arms.yaml"
SCHEDULES = {  # same gradients as the suite, another walk
    f"mlms {backward}": {"objective": {"kind": "fixed_exits", "distill_weight": 0.0, "backward": backward}}
    for backward in ("joint", "separate")
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7, help="turns that every arm takes (default: %(default)s)")
    parser.add_argument("--width", type=int, default=256, help="width of the first segment (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    study = load_study()
    model = study.model.model_copy(
        update={
            "segments": tuple(Segment(n_blocks=n, d_model=arguments.width * m // 4) for n, m in ((4, 4), (2, 6), (2, 8))),
            "head_dim": 64,
        }
    )
    blocks = {**read_yaml(ALL_ARMS)["arms"], **SCHEDULES}
    runners = {name: _Runner(_arm(name, block, model, study)) for name, block in blocks.items()}
    for runner in runners.values():
        runner.turn()
    ratios: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(arguments.rounds):
        costs = {name: runner.turn() for name, runner in runners.items()}
        for name, (seconds, flops) in costs.items():
            twin_seconds, twin_flops = costs["twin-full"]
            ratios[name].append((seconds / flops) / (twin_seconds / twin_flops))
    widths = [segment.d_model for segment in model.segments]
    print(f"{model.n_blocks} blocks, widths {widths}, vocabulary {VOCAB}, {ROWS} x {SEQ_LEN} tokens a step")
    print(f"{'arm':24}{'FLOP ratio':>12}{'time / FLOP ratio':>20}{'spread':>16}")
    unit = runners["twin-full"].expected_flops
    for name, runner in runners.items():
        low, *_, high = sorted(ratios[name])
        print(f"{name:24}{runner.expected_flops / unit:12.3f}{statistics.median(ratios[name]):20.3f}{low:9.3f}-{high:.3f}")


class _Runner:
    """One arm with its own model, taking turns of as many steps as the model has blocks (a whole round robin)."""

    def __init__(self, arm: Arm) -> None:
        self._arm = arm
        self._objective = build_objective(arm, VOCAB, 0)
        network = self._objective.new_model()
        network.init_weights(0)
        self._state = TrainState.fresh(network, arm.training)
        random = np.random.default_rng(0)
        inputs, labels = (random.integers(0, VOCAB, (ROWS, SEQ_LEN)) for _ in range(2))
        self._batch = Batch(inputs, labels, labels.size)
        self.expected_flops = self._objective.expected_flops(SEQ_LEN)

    def turn(self) -> tuple[float, int]:
        """Seconds and FLOPs per token of one turn."""
        steps = range(self._state.step, self._state.step + self._arm.model.n_blocks)
        flops = sum(self._objective.step_flops(step, SEQ_LEN) for step in steps)
        started = time.perf_counter()
        for _ in steps:
            train_step(self._state, self._batch, self._objective, self._arm.training, ROWS, eos_id=0)
        return time.perf_counter() - started, flops


def _arm(name: str, block: dict[str, Any], model: Model, study: Study) -> Arm:
    training = study.training.model_copy(update={"steps": 10**6})
    problems: list[Any] = []
    arm = resolve_arm(name, block, model, training, problems)
    if arm is None:
        raise SystemExit("\n".join(map(str, problems)))
    return arm


if __name__ == "__main__":
    main()
