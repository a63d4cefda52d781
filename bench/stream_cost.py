"""Step time and memory of Hidden Decoding for n = 1, 2, 4, 8 streams per token, relative to the model without streams.

One optimizer step of the full-depth loss on a dense model of one width, per layout: `default` (every seventh block looks across
streams, the middle one of each seven, as in the studies of `scales/`), `last` (the last one of each seven: all streams then run to
the end), `mirror` (that with KV-Mirror), `local` (the middle blocks see a window of 256 rows), `all-cross` (as in the public 8B
checkpoints). All variants take turns, round by round, so that a busy machine slows all alike. Printed per variant: time ratio to n
= 1 (median and spread over rounds), FLOP ratio by the formulas, the ratio of bytes that autograd keeps for the backward pass (on a
GPU: of peak memory), and bytes of the key-value cache per token (bfloat16).

    python -m bench.stream_cost [--length 512] [--rounds 5] [--device cuda]
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bench.turns import Row, Size, at_most, bench_parser, quotients
from components.config.loader import load_study
from components.config.schema import Arm, Model, Segment, Training
from components.config.streams import Streams
from components.data.stream import Batch
from components.models.devices import keep_freed_memory
from components.models.onednn import onednn_products
from components.models.stream_sizes import cache_bytes
from components.objectives.base import build_objective
from components.objectives.twin import Settings as Twin
from components.training.step import TrainState, train_step

VOCAB, N_BLOCKS = 4096, 14
THREE, SIX = ("intra",) * 3, ("intra",) * 6
GOALS = {2: 2.1, 4: 4.2, 8: 8.5}
Case = tuple[str, int, Streams | None]
LAYOUTS: dict[str, dict[str, Any]] = {
    "default": {"layers": (*THREE, "cross_full", *THREE) * 2},
    "last": {"layers": (*SIX, "cross_full") * 2},
    "mirror": {"layers": (*SIX, "cross_full") * 2, "n_mirrored": 4},
    "local": {"layers": (*THREE, "cross_local", *THREE) * 2, "local": {"size": 256, "unit": "rows"}},
    "all-cross": {"layers": ("cross_full",) * N_BLOCKS, "rope_rule": "physical"},
}


def main() -> None:
    parser = bench_parser(__doc__)
    parser.add_argument("--length", type=int, default=512, help="tokens of a row (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=1, help="rows of a step (default: %(default)s)")
    parser.add_argument("--width", type=int, default=256, help="width of the model (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns that every variant takes (default: %(default)s)")
    parser.add_argument("--streams", type=int, nargs="+", default=[2, 4, 8], help="numbers of streams (default: 2 4 8)")
    parser.add_argument("--layouts", nargs="+", choices=tuple(LAYOUTS), default=list(LAYOUTS), help="layouts (default: all)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    arguments = parser.parse_args()
    cases, runners, seconds = measure(arguments)
    memory = [runner.memory_bytes() for runner in runners]
    unit = runners[0]
    print(
        f"{N_BLOCKS} blocks of width {arguments.width}, vocabulary {VOCAB}, {arguments.rows} x {arguments.length} tokens a step, "
        f"{arguments.precision} on {unit.device_name}; without streams {statistics.median(seconds[0]) * 1e3:.0f} ms a step"
    )
    print(f"{'layout':12}{'n':>3}{'time ratio':>12}{'spread':>16}{'FLOP ratio':>12}{'memory ratio':>14}{'KV bytes/token':>16}")
    for (layout, n, _), times, runner, bytes_kept in zip(cases, seconds, runners, memory, strict=True):
        ratio = quotients(times, seconds[0])
        print(
            f"{layout:12}{n:3}{ratio.median:12.2f}{ratio.low:9.2f}-{ratio.high:.2f}"
            f"{runner.flops / unit.flops:14.2f}{bytes_kept / memory[0]:14.2f}{runner.cache_bytes:16,.0f}"
        )


def rows(size: Size) -> list[Row]:
    """Step time of n streams over that of none, default layout; the goals are for rows of 2,048 tokens, the full size."""
    length, width, rounds, counts = {
        "smoke": (32, 32, 1, [2]), "short": (1024, 128, 2, [2, 4]), "full": (2048, 256, 3, [2, 4, 8]),
    }[size]  # fmt: skip
    settings = {"rows": 1, "layouts": ["default"], "device": "cpu", "precision": "float32"}
    arguments = argparse.Namespace(length=length, width=width, rounds=rounds, streams=counts, **settings)
    cases, runners, seconds = measure(arguments)
    return [
        Row(
            4, f"HD step, n = {n}, L = {length}", "n = 1", at_most(GOALS[n]), quotients(times, seconds[0]),
            f"{runner.flops / runners[0].flops:.2f} in FLOPs",
        )
        for (_, n, _), times, runner in zip(cases[1:], seconds[1:], runners[1:], strict=True)
    ]  # fmt: skip


def measure(arguments: argparse.Namespace) -> tuple[list[Case], list[_Runner], list[list[float]]]:
    """The variants, the first without streams, and the seconds of each by turns."""
    torch.set_num_threads(1)
    keep_freed_memory()  # as a training worker does, too
    cases: list[Case] = [("no streams", 1, None)]
    cases += [(layout, n, _streams(layout, n)) for layout in arguments.layouts for n in arguments.streams]
    runners = [_Runner(_model(streams, arguments.width), arguments) for _, _, streams in cases]
    for runner in runners:
        runner.turn()
    seconds: list[list[float]] = [[] for _ in runners]
    for _ in range(arguments.rounds):
        for times, runner in zip(seconds, runners, strict=True):
            times.append(runner.turn())
    return cases, runners, seconds


class _Runner:
    """One variant with its own model and optimizer."""

    def __init__(self, model: Model, arguments: argparse.Namespace) -> None:
        self._device, length = torch.device(arguments.device), arguments.length
        self._clock = time.perf_counter if self._device.type == "cuda" else time.process_time
        arm = Arm(
            name="bench", base=None, model=model, training=_training(arguments.precision), objective=Twin(kind="twin", exit=1)
        )
        self._arm, self._objective = arm, build_objective(arm, VOCAB, 0)
        network = self._objective.new_model()
        network.init_weights(0)
        self._state = TrainState.fresh(network.to(self._device), arm.training)
        random = np.random.default_rng(0)
        inputs, labels = (random.integers(0, VOCAB, (arguments.rows, length)) for _ in range(2))
        self._batch = Batch(inputs, labels, labels.size)
        self.flops = self._objective.expected_flops(length)
        self.cache_bytes = cache_bytes(model, model.n_blocks, length, 2) / length

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name(self._device) if self._device.type == "cuda" else "one CPU thread"

    def turn(self) -> float:
        """Seconds of one step."""
        self._wait()
        started = self._clock()
        with onednn_products():  # as a training worker does
            train_step(self._state, self._batch, self._objective, self._arm.training, len(self._batch.inputs), eos_id=0)
        self._wait()
        return self._clock() - started

    def memory_bytes(self) -> int:
        """What one step takes beyond weights and optimizer: the peak on a GPU, what is kept for the backward on a CPU."""
        if self._device.type == "cuda":
            self._state.optimizer.zero_grad(set_to_none=True)
            held = torch.cuda.memory_allocated(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            self.turn()
            return torch.cuda.max_memory_allocated(self._device) - held
        kept: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self.turn()
        weights = {parameter.untyped_storage().data_ptr() for parameter in self._state.model.parameters()}
        return sum(nbytes for pointer, nbytes in kept.items() if pointer not in weights)

    def _wait(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def _streams(layout: str, n_streams: int) -> Streams:
    defaults = {"n_streams": n_streams, "rope_rule": "by_layer", "kv": "separate", "supervision": "last", "n_mirrored": 0}
    return Streams.model_validate({**defaults, **LAYOUTS[layout]})


def _model(streams: Streams | None, width: int) -> Model:
    shape = {"segments": (Segment(n_blocks=N_BLOCKS, d_model=width),), "head_dim": min(64, width), "streams": streams}
    return load_study().model.model_copy(update=shape)


def _training(precision: str) -> Training:
    return load_study().training.model_copy(update={"steps": 10**6, "precision": precision})


if __name__ == "__main__":
    main()
