"""Step time of every arm against its FLOPs, relative to `twin-full`: is each arm as cheap as the theory says?

Every arm and repair takes whole optimizer steps of the same shape on the same batch; they take turns, round by round, so that a
busy machine slows all of them alike. Printed per arm: the FLOP ratio to the twin, the time ratio (median and spread over rounds),
and their quotient, which should be at most 1.05. One thread.

    python -m bench.arm_cost [--rounds 7] [--width 256]
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.turns import Row, Size, Spread, at_most, bench_parser, quick_study
from components.config.loader import read_yaml, resolve_arm
from components.config.schema import Arm, Model, Segment, Study
from components.data.stream import Batch
from components.models.onednn import onednn_products
from components.objectives.base import build_objective
from components.objectives.repair import repair_settings
from components.training.step import TrainState, train_step

VOCAB, SEQ_LEN, ROWS = 4096, 256, 2
ALL_ARMS = Path(__file__).parents[1] / "scales" / "all-arms.yaml"
FEW_ARMS = ("tlm-uniform", "tlm-exitgrid", "mlms", "mlms-distill", "twin-full")  # of the short run
SCHEDULES = {  # same gradients as the suite, another walk
    f"mlms {backward}": {"objective": {"kind": "fixed_exits", "distill_weight": 0.0, "backward": backward}}
    for backward in ("joint", "separate")
}


def main() -> None:
    parser = bench_parser(__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="turns that every arm takes (default: %(default)s)")
    parser.add_argument("--width", type=int, default=256, help="width of the first segment (default: %(default)s)")
    arguments = parser.parse_args()
    model = _model(arguments.width, 64)
    costs = measure(model, arguments.rounds, tuple(_blocks()), VOCAB, SEQ_LEN)
    widths = [segment.d_model for segment in model.segments]
    print(f"{model.n_blocks} blocks, widths {widths}, vocabulary {VOCAB}, {ROWS} x {SEQ_LEN} tokens a step")
    print(f"{'arm':24}{'FLOP ratio':>12}{'time / FLOP ratio':>20}{'spread':>16}")
    for name, cost in costs.items():
        spread = cost.quotient
        print(f"{name:24}{cost.flop_ratio:12.3f}{spread.median:20.3f}{spread.low:9.3f}-{spread.high:.3f}")


def rows(size: Size) -> list[Row]:
    """The dearest arm for its FLOPs, and the three schedules of the suites in time."""
    names = FEW_ARMS if size != "full" else tuple(_blocks())
    rounds, width, head_dim, seq_len = {"smoke": (1, 32, 16, 16), "short": (3, 256, 64, 256), "full": (7, 256, 64, 256)}[size]
    costs = measure(_model(width, head_dim), rounds, names, 64 if size == "smoke" else VOCAB, seq_len)
    worst = max(costs, key=lambda name: costs[name].quotient.median)
    uniform = costs["tlm-uniform"]
    told = [f"{name.removeprefix('mlms ')} {costs[name].time_ratio / uniform.time_ratio:.2f}" for name in SCHEDULES]
    per_exit = costs["mlms"].time_ratio / uniform.time_ratio
    note = f"{worst}; time of MLMS over tlm-uniform: per_exit {per_exit:.2f}, {', '.join(told)}"
    measured = f"step time / FLOPs, dearest of {len(costs)} arms"
    return [Row(2, measured, "twin-full", at_most(1.05), costs[worst].quotient, note)]


class Cost(NamedTuple):
    """One arm's FLOPs and time relative to `twin-full`."""

    flop_ratio: float
    quotient: Spread

    @property
    def time_ratio(self) -> float:
        return self.flop_ratio * self.quotient.median


def measure(model: Model, rounds: int, names: Sequence[str], vocab: int, seq_len: int) -> dict[str, Cost]:
    """All the arms, and the suite's other schedules, by turns. Arms draw depths: seconds and FLOPs are those of the same steps."""
    torch.set_num_threads(1)
    study, blocks = quick_study(), {**_blocks(), **SCHEDULES}
    chosen = {name: blocks[name] for name in (*names, *SCHEDULES)}
    runners = {name: _Runner(_arm(name, block, model, study), vocab, seq_len) for name, block in chosen.items()}
    for runner in runners.values():
        runner.turn()
    ratios: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        costs = {name: runner.turn() for name, runner in runners.items()}
        for name, (seconds, flops) in costs.items():
            twin_seconds, twin_flops = costs["twin-full"]
            ratios[name].append((seconds / flops) / (twin_seconds / twin_flops))
    unit = runners["twin-full"].expected_flops
    return {name: Cost(runner.expected_flops / unit, Spread.of(ratios[name])) for name, runner in runners.items()}


class _Runner:
    """One arm with its own model, taking turns of as many steps as the model has blocks (a whole round robin)."""

    def __init__(self, arm: Arm, vocab: int, seq_len: int) -> None:
        self._arm, self._seq_len = arm, seq_len
        self._objective = build_objective(arm, vocab, 0)
        network = self._objective.new_model()
        network.init_weights(0)
        self._state = TrainState.fresh(network, arm.training)
        random = np.random.default_rng(0)
        inputs, labels = (random.integers(0, vocab, (ROWS, seq_len)) for _ in range(2))
        self._batch = Batch(inputs, labels, labels.size)
        self.expected_flops = self._objective.expected_flops(seq_len)

    def turn(self) -> tuple[float, int]:
        """Seconds and FLOPs per token of one turn."""
        steps = range(self._state.step, self._state.step + self._arm.model.n_blocks)
        flops = sum(self._objective.step_flops(step, self._seq_len) for step in steps)
        started = time.process_time()
        with onednn_products():  # as a training worker does
            for _ in steps:
                train_step(self._state, self._batch, self._objective, self._arm.training, ROWS, eos_id=0)
        return time.process_time() - started, flops


def _model(width: int, head_dim: int) -> Model:
    """Eight blocks in three segments of widths 1, 1.5 and 2 times the first."""
    segments = tuple(Segment(n_blocks=n, d_model=width * m // 2) for n, m in ((4, 2), (2, 3), (2, 4)))
    return quick_study().model.model_copy(update={"segments": segments, "head_dim": head_dim})


def _blocks() -> dict[str, Any]:
    """Every arm and repair, as written."""
    raw = read_yaml(ALL_ARMS)
    return {**raw["arms"], **raw["repairs"]}


def _arm(name: str, block: dict[str, Any], model: Model, study: Study) -> Arm:
    training = study.training.model_copy(update={"steps": 10**6})
    if "part" in block:
        base = _arm(block["base"], _blocks()[block["base"]], model, study)
        settings = repair_settings(base, base.name, block["part"])
        return Arm(name=name, base=base.name, model=base.model, training=training, objective=settings)
    problems: list[Any] = []
    arm = resolve_arm(name, block, model, training, problems)
    if arm is None:
        raise SystemExit("\n".join(map(str, problems)))
    return arm


if __name__ == "__main__":
    main()
