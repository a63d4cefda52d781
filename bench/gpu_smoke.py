"""Does the study work as it should on this GPU, and how much of it does it use? Under three minutes on one device.

Three things: (1) bfloat16 agrees with float32 on loss and gradients, and the GPU with the CPU, at the paper's model; (2) share of
the device's peak (MFU) that a training step reaches, for `proxy-200m`, also compiled, and for Hidden Decoding layouts on it; (3)
the training step never waits for the device: it runs under torch's sync debug mode. FLOPs are those of the formulas, matrix
products alone. Without a GPU it says so in one line.

    python -m bench.gpu_smoke [--rows 8] [--tflops 989]
"""

from __future__ import annotations

import argparse
import time
from typing import Any, NamedTuple

import numpy as np
import torch

from bench.turns import SCALES, bench_parser
from components.config.loader import load_study
from components.config.schema import Arm, Model
from components.config.streams import Streams
from components.data.stream import Batch
from components.models.cascade import Cascade
from components.objectives.base import Objective, TokenBatch, build_objective
from components.objectives.twin import Settings as Twin
from components.training.compiled import compile_blocks
from components.training.step import TrainState, autocast, train_step

PEAK_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "4090": 165.0}  # bfloat16, dense
WARM_UP, TIMED = 3, 6  # steps
SMALLEST_COSINE = 0.99  # of the two gradients: bfloat16 has 8 bits, and errors of single values cancel
LARGEST_LOSS_GAP = 0.02  # relative
STREAM_COUNTS = (2, 4)


class Agreement(NamedTuple):
    """How two ways of computing the same step compare: relative gap of the losses, cosine of the whole gradients."""

    loss_gap: float
    cosine: float

    @property
    def is_good(self) -> bool:
        return self.loss_gap <= LARGEST_LOSS_GAP and self.cosine >= SMALLEST_COSINE


class Speed(NamedTuple):
    """Of one layout: seconds of a step, FLOP/s by the formulas, and the largest memory of the device."""

    seconds: float
    flops_per_second: float
    peak_bytes: int


def main() -> None:
    arguments = _arguments()
    if not torch.cuda.is_available():
        raise SystemExit("no CUDA device here: nothing was checked; run it on a machine with a GPU")
    device, started = torch.device("cuda"), time.perf_counter()
    name = torch.cuda.get_device_name(device)
    peak = arguments.tflops or next((value for key, value in PEAK_TFLOPS.items() if key in name), None)
    study = load_study(SCALES / "proxy-200m.yaml")
    vocab, arm = study.data.tokenizer.vocab_size, study.arms["tlm-uniform"]
    print(f"{name}, torch {torch.__version__}" + ("" if peak else "; peak not known, give --tflops for MFU"))
    found = [
        _told("bfloat16 against float32", compare(arm, vocab, 512, (device, "bfloat16"), (device, "float32"))),
        _told("GPU against CPU, float32", compare(arm, vocab, 128, (device, "float32"), (torch.device("cpu"), "float32"))),
        _told_sync(syncs(arm, vocab, arguments.seq_len, device)),
    ]
    layouts = {"proxy-200m": arm, "proxy-200m, full depth": twin_of(study.model, arm)}
    layouts |= {f"HD n = {n}": twin_of(with_streams(study.model, n), arm) for n in STREAM_COUNTS}
    cases = [(title, one, False) for title, one in layouts.items()] + [("proxy-200m, compiled", arm, True)]
    for title, one, is_compiled in cases:
        speed = measure(one, vocab, arguments.rows, arguments.seq_len, device, is_compiled)
        share = f"MFU {speed.flops_per_second / (peak * 1e12):6.1%}" if peak else f"{speed.flops_per_second / 1e12:.0f} TFLOP/s"
        tokens = arguments.rows * arguments.seq_len / speed.seconds
        print(f"{title:24}{share}  {tokens:10,.0f} tokens/s  {speed.peak_bytes / 2**30:6.1f} GiB")
    print(f"{time.perf_counter() - started:.0f} s in all")
    if not all(found):
        raise SystemExit("a check failed")


def compare(arm: Arm, vocab: int, seq_len: int, first: tuple[torch.device, str], second: tuple[torch.device, str]) -> Agreement:
    """One step's loss and gradient computed twice, each on (device, precision)."""
    (loss, gradient), (other_loss, other) = (_gradient(arm, vocab, seq_len, *how) for how in (first, second))
    cosine = torch.nn.functional.cosine_similarity(gradient.double(), other.double(), dim=0)
    return Agreement(abs(loss - other_loss) / abs(other_loss), float(cosine))


def syncs(arm: Arm, vocab: int, seq_len: int, device: torch.device) -> str:
    """What a training step waits for, as torch reports it; empty when nothing."""
    state, objective, batch = _ready(arm, vocab, 1, seq_len, device)
    for _ in range(2):
        train_step(state, batch, objective, arm.training, 1, eos_id=0)
    torch.cuda.synchronize(device)
    torch.cuda.set_sync_debug_mode("error")
    try:
        losses = train_step(state, batch, objective, arm.training, 1, eos_id=0)
    except RuntimeError as error:
        return str(error).splitlines()[0]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "" if losses["loss"] > 0 else "the loss is not positive"


def measure(arm: Arm, vocab: int, rows: int, seq_len: int, device: torch.device, is_compiled: bool = False) -> Speed:
    """Seconds of a training step, from an idle device to an idle device over several steps."""
    state, objective, batch = _ready(arm, vocab, rows, seq_len, device)
    if is_compiled:
        compile_blocks(state.model)
    on_gpu = device.type == "cuda"
    for _ in range(WARM_UP):
        train_step(state, batch, objective, arm.training, rows, eos_id=0)
    if on_gpu:
        torch.cuda.reset_peak_memory_stats(device)
        torch.cuda.synchronize(device)
    started, first = time.perf_counter(), state.step
    for _ in range(TIMED):
        train_step(state, batch, objective, arm.training, rows, eos_id=0)
    if on_gpu:
        torch.cuda.synchronize(device)
    seconds = time.perf_counter() - started
    flops = sum(objective.step_flops(step, seq_len) for step in range(first, state.step)) * rows * seq_len
    peak = torch.cuda.max_memory_allocated(device) if on_gpu else 0
    return Speed(seconds / TIMED, flops / seconds, peak)


def with_streams(model: Model, n_streams: int) -> Model:
    """The model with n streams and every fifth block across them, the layout of the study's own expansions."""
    layers = tuple("cross_full" if depth % 5 == 4 else "intra" for depth in range(1, model.n_blocks + 1))
    streams = Streams(
        n_streams=n_streams, layers=layers, rope_rule="by_layer", kv="separate", supervision="last", n_mirrored=0
    )  # fmt: skip
    return model.model_copy(update={"streams": streams})


def twin_of(model: Model, arm: Arm) -> Arm:
    """Training of the full depth alone, with the arm's recipe."""
    return Arm(name="bench", base=None, model=model, training=arm.training, objective=Twin(kind="twin", exit=len(model.segments)))


def _gradient(arm: Arm, vocab: int, seq_len: int, device: torch.device, precision: str) -> tuple[float, torch.Tensor]:
    model, objective = _model(arm, vocab, device)
    tokens_BT, labels_BT = (torch.from_numpy(array).to(device) for array in _tokens(vocab, 1, seq_len))
    with autocast(device, precision):
        sums = objective.backward(model, TokenBatch(tokens_BT, labels_BT, None, 1.0 / seq_len), step=0)
    gradients = [parameter.grad.flatten().cpu() for parameter in model.parameters() if parameter.grad is not None]
    return float(sums["loss"]) / seq_len, torch.cat(gradients)


def _model(arm: Arm, vocab: int, device: torch.device) -> tuple[Cascade, Objective]:
    objective = build_objective(arm, vocab, 0)
    model = objective.new_model()
    model.init_weights(0)
    return model.to(device), objective


def _ready(arm: Arm, vocab: int, rows: int, seq_len: int, device: torch.device) -> tuple[TrainState, Objective, Batch]:
    model, objective = _model(arm, vocab, device)
    return TrainState.fresh(model, arm.training), objective, Batch(*_tokens(vocab, rows, seq_len), rows * seq_len)


def _tokens(vocab: int, rows: int, seq_len: int) -> tuple[Any, Any]:
    random = np.random.default_rng(0)
    return random.integers(0, vocab, (rows, seq_len)), random.integers(0, vocab, (rows, seq_len))


def _told(what: str, found: Agreement) -> bool:
    verdict = "good" if found.is_good else "BAD"
    print(f"{what}: loss {found.loss_gap:.2e} apart, gradients' cosine {found.cosine:.5f}: {verdict}")
    return found.is_good


def _told_sync(reason: str) -> bool:
    print(f"training step never waits for the device: {f'BAD: {reason}' if reason else 'good'}")
    return not reason


def _arguments() -> argparse.Namespace:
    parser = bench_parser(__doc__)
    parser.add_argument("--rows", type=int, default=8, help="rows of a step (default: %(default)s)")
    parser.add_argument("--seq-len", type=int, default=2048, help="tokens of a row (default: %(default)s)")
    parser.add_argument("--tflops", type=float, help="peak of the device in bfloat16 (default: by its name)")
    return parser.parse_args()


if __name__ == "__main__":
    main()
