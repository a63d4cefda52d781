"""Training time that KV-Mirror saves, on a dense model and on a mixture of experts of the same FLOPs.

One optimizer step of the full-depth loss with and without mirrored blocks, turn by turn, in CPU seconds (on a GPU: of the clock).
Printed per model: the step with n streams and KV-Mirror over the same without, its FLOPs over the same, and the paper's ratio.

    python -m bench.mirror_cost [--streams 2 4] [--mirrored 4] [--rounds 5] [--device cuda]
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch

from bench.turns import bench_parser, quotients
from components.config.experts import Experts
from components.config.loader import load_study
from components.config.schema import Arm, Model, Segment
from components.config.streams import Streams
from components.data.stream import Batch
from components.models.onednn import onednn_products
from components.objectives.base import build_objective
from components.objectives.twin import Settings as Twin
from components.training.step import TrainState, train_step

VOCAB, N_BLOCKS = 1024, 12
LAYERS = ("intra", "intra", "intra", "cross_full") * (N_BLOCKS // 4)
PAPER_RATIO = 0.8


def main() -> None:
    parser = bench_parser(__doc__)
    parser.add_argument("--length", type=int, default=256, help="tokens of a row (default: %(default)s)")
    parser.add_argument("--width", type=int, default=128, help="width of the models (default: %(default)s)")
    parser.add_argument("--streams", type=int, nargs="+", default=[2, 4], help="streams per token (default: 2 4)")
    parser.add_argument("--mirrored", type=int, default=4, help=f"of {N_BLOCKS} blocks, those that are mirrored (default: 4)")
    parser.add_argument("--rounds", type=int, default=5, help="turns that every variant takes (default: %(default)s)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=("float32", "bfloat16"), default="float32")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'model':8}{'n':>3}{'time ratio':>12}{'spread':>16}{'FLOP ratio':>12}{'paper':>8}")
    for name, experts in (("dense", None), ("experts", _experts(arguments.width))):
        for n in arguments.streams:
            plain, mirrored = (_Steps(_model(n, count, experts, arguments.width), arguments) for count in (0, arguments.mirrored))
            turns = [(mirrored.seconds(), plain.seconds()) for _ in range(arguments.rounds + 1)][1:]
            ratio = quotients(*zip(*turns, strict=True))
            flops = mirrored.flops / plain.flops
            print(f"{name:8}{n:3}{ratio.median:12.3f}{ratio.low:9.3f}-{ratio.high:.3f}{flops:12.3f}{PAPER_RATIO:8.2f}", flush=True)


class _Steps:
    """One variant with its own model and optimizer."""

    def __init__(self, model: Model, arguments: argparse.Namespace) -> None:
        self._device = torch.device(arguments.device)
        training = load_study().training.model_copy(update={"steps": 10**6, "precision": arguments.precision})
        self._arm = Arm(name="bench", base=None, model=model, training=training, objective=Twin(kind="twin", exit=1))
        self._objective = build_objective(self._arm, VOCAB, 0)
        network = self._objective.new_model()
        network.init_weights(0)
        self._state = TrainState.fresh(network.to(self._device), training)
        inputs, labels = (np.random.default_rng(seed).integers(0, VOCAB, (1, arguments.length)) for seed in (0, 1))
        self._batch = Batch(inputs, labels, labels.size)
        self.flops = self._objective.expected_flops(arguments.length)

    def seconds(self) -> float:
        """What one step takes."""
        clock = time.perf_counter if self._device.type == "cuda" else time.process_time
        started = clock()
        with onednn_products():  # as a training worker does
            train_step(self._state, self._batch, self._objective, self._arm.training, 1, eos_id=0)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return clock() - started


def _experts(width: int) -> Experts:
    """16 experts of a quarter of the dense inner width, three chosen and one shared."""
    return Experts(
        n_experts=16, top_k=3, d_inner=width, n_shared=1, gate="sigmoid", balance="bias", balance_weight=0.001
    )  # fmt: skip


def _model(n_streams: int, n_mirrored: int, experts: Experts | None, width: int) -> Model:
    streams = Streams(
        n_streams=n_streams, layers=LAYERS, rope_rule="by_layer", kv="separate", supervision="last", n_mirrored=n_mirrored
    )
    shape = {"segments": (Segment(n_blocks=N_BLOCKS, d_model=width),), "head_dim": 32, "streams": streams, "experts": experts}
    return load_study().model.model_copy(update=shape)


if __name__ == "__main__":
    main()
