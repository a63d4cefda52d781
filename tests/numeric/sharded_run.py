"""One worker of a sharded run, as `test_sharding.py` starts it; and the run itself."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import components.training.run as run_module
from components.config.schema import Model
from components.training.run import TrainingRun, run_training
from tests.toys import toy_model, toy_run
from tests.unit.models.test_expert_models import MIRRORED, SEGMENTS
from tests.unit.models.test_experts import toy_experts
from tests.unit.models.test_streams import toy_streams


def sharded_run(root: Path, objective: dict[str, Any], workers: int = 2) -> TrainingRun:
    return toy_run(root, objective, micro_batch_rows=1, workers=workers, sharding="fsdp")


def expert_streams(run: TrainingRun) -> TrainingRun:
    """The run with a mixture of experts, two streams and mirrored blocks."""
    streams = toy_streams(n_streams=2, **MIRRORED)
    model = Model.model_validate({**dict(toy_model(segments=SEGMENTS)), "experts": toy_experts(), "streams": streams})
    return replace(run, arm=run.arm.model_copy(update={"model": model}))


def in_bfloat16(run: TrainingRun) -> TrainingRun:
    training = run.arm.training.model_copy(update={"precision": "bfloat16"})
    return replace(run, arm=run.arm.model_copy(update={"training": training}))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("rank", type=int)
    parser.add_argument("port")
    parser.add_argument("objective", type=json.loads)
    parser.add_argument("--experts", action="store_true")
    parser.add_argument("--bfloat16", action="store_true")
    parser.add_argument("--killed-at", type=int, default=0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{arguments.port}"
    dist.init_process_group("gloo", init_method=address, rank=arguments.rank, world_size=2)
    if arguments.rank:
        dist.barrier()  # the first worker writes the toy rows
    run = sharded_run(arguments.root, arguments.objective)
    if not arguments.rank:
        dist.barrier()
    states, fresh = [], run_module.TrainState.fresh
    run_module.TrainState.fresh = lambda *args: states.append(fresh(*args)) or states[-1]

    def on_progress(progress: Any) -> None:
        if progress.step == arguments.killed_at:
            os._exit(1)

    run = expert_streams(run) if arguments.experts else run
    run_training(in_bfloat16(run) if arguments.bfloat16 else run, on_progress)
    held = sum(parameter.to_local().numel() for parameter in states[0].model.parameters())
    (arguments.root / f"parts-{arguments.rank}.json").write_text(json.dumps(held))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
