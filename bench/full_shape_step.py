"""One telescopic optimizer step at the paper's full shape (50M / 100M / 200M exits, vocabulary 49,152), one row of 2,048 tokens.

Shows that the loss never holds all logits and that the shape fits a 24 GiB machine without a GPU. Prints seconds, FLOP/s and the
peak memory beside the planned one.

    python -m bench.full_shape_step [--steps 2] [--threads 1]
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch

from bench.turns import bench_parser
from components.config.loader import load_study
from components.data.stream import Batch
from components.models.devices import peak_memory_bytes
from components.models.onednn import onednn_products
from components.objectives.base import build_objective
from components.profiling.plan import plan_study
from components.training.step import TrainState, train_step


def main() -> None:
    parser = bench_parser(__doc__)
    parser.add_argument("--steps", type=int, default=2, help="optimizer steps (default: %(default)s)")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads (default: %(default)s)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    study = load_study(Path(__file__).parents[1] / "scales" / "proxy-200m.yaml")
    arm = study.arms["tlm-uniform"]
    training = arm.training.model_copy(update={"precision": "float32"})
    vocab, seq_len = study.data.tokenizer.vocab_size, study.data.seq_len
    objective = build_objective(arm, vocab, seed=42)
    model = objective.new_model()
    model.init_weights(42)
    state = TrainState.fresh(model, training)
    inputs, labels = (np.random.default_rng(i).integers(0, vocab, (1, seq_len)) for i in range(2))
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f}M parameters stored, 1 x {seq_len} tokens a step, float32")
    for step in range(arguments.steps):
        started = time.perf_counter()
        with onednn_products():  # as a training worker does
            losses = train_step(state, Batch(inputs, labels, seq_len), objective, training, 1, eos_id=0)
        seconds = time.perf_counter() - started
        flops = objective.step_flops(step, seq_len) * seq_len
        named = ", ".join(f"{name} {value:.3f}" for name, value in losses.items())
        print(f"step {step}, depth {objective.depths_at(step)}: {seconds:.1f} s, {flops / seconds / 1e9:.0f} GFLOP/s; {named}")
    small = study.model_copy(update={"runtime": study.runtime.model_copy(update={"micro_batch_rows": 1})})
    plan = next(plan for plan in plan_study(small) if plan.name == arm.name)
    planned = (plan.state_bytes + plan.activation_bytes) / 2**30
    peak = peak_memory_bytes(torch.device("cpu")) / 2**30
    print(f"peak memory of the process {peak:.1f} GiB; planned for bfloat16 {planned:.1f} GiB")


if __name__ == "__main__":
    main()
