"""Stages `train`, `repair`, `expand` and `control`: trains one arm once per seed, on Ray, and writes the models and what they cost.

Stopped at any moment and started again, it goes on from the newest checkpoint of each seed under `runs/`. SIGTERM and Ctrl-C let it
end the step at hand and save.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.command import add_path, command_parser, progress_bar, run_command
from tasks.phases import COMPUTE, MLFLOW, RAY, add_phase, phase

if TYPE_CHECKING:
    from components.config.schema import Arm
    from components.results import SeedCost
    from components.training.run import Progress, TrainingRun
    from tasks.ray_train import RaySession, Report


EXAMPLES = """
python -m tasks.train --arm tlm-uniform              an arm, into artifacts/models; goes on from its newest checkpoint
python -m tasks.train --arm hd-n2                    an expansion, from the trained models of its base
"""


def main() -> None:
    """Reads the arm from the parameter file, trains its seeds one after the other, writes the arm's cost, fills MLflow."""
    arguments = _arguments()
    from components.config.loader import find_arm, load_study

    study = load_study(arguments.params)
    arm = find_arm(study, arguments.arm)
    from components.results import ArmCost, write_record
    from components.training.run import TrainingRun
    from tasks.ray_resources import Resources
    from tasks.ray_train import ray_session

    root, runtime = Path.cwd(), study.runtime.for_arm(arm.name)
    models = root / "artifacts" / "models"
    costs = []
    with contextlib.ExitStack() as stack:
        with phase(RAY):
            session = stack.enter_context(ray_session(Resources.of_runtime(runtime)))
        for seed in arm.training.seeds:
            run = TrainingRun(
                arm=arm,
                seed=seed,
                data_dir=root / "artifacts" / "data",
                run_dir=root / "runs" / arm.name / f"seed-{seed}",
                output_dir=models / arm.name / f"seed-{seed}",
                base_dir=models / arm.base / f"seed-{seed}" if arm.base else None,
                runtime=runtime.model_copy(update={"device": session.device}),
                stream_seed=study.data.stream_seed,
            )
            costs.append(train_seed(run, session))
    write_record(ArmCost(version=1, arm=arm.name, seeds=tuple(costs)), root / "artifacts" / "cost" / f"{arm.name}.json")
    with phase(MLFLOW):
        _fill_mlflow(root, arm, runtime.experiment)


def train_seed(run: TrainingRun, session: RaySession) -> SeedCost:
    """Trains one seed on the Ray session that is open, with a progress bar, and returns what it cost."""
    from components.results import SeedCost
    from tasks.stopping import gentle_stop

    name = f"train {run.arm.name} seed {run.seed}"
    with progress_bar(run.arm.training.steps, name, "step") as bar, gentle_stop(run.run_dir, run.runtime.stop_seconds):
        result = session.run(partial(run_on_worker, run), run.run_dir, partial(_show, bar, time.time()))
    return SeedCost.model_validate_json(json.dumps(result))


def run_on_worker(run: TrainingRun, report: Report) -> dict[str, Any]:
    """What every Ray worker executes: the training loop, with this worker's share of threads."""
    import torch

    from components.config.problems import disk_trouble
    from components.models.devices import keep_freed_memory
    from components.models.onednn import onednn_products
    from components.training.run import run_training

    torch.set_num_threads(run.runtime.threads_per_worker)
    keep_freed_memory()

    def tell(progress: Progress) -> None:
        report(asdict(progress))

    begun = time.time()
    with warnings_told(report), disk_trouble(run.run_dir), onednn_products():
        cost = run_training(run, tell).model_dump(mode="json")
    report({"computed": (begun, time.time())})
    return cost


@contextlib.contextmanager
def warnings_told(report: Report) -> Iterator[None]:
    """Inside the block, what the components warn of is reported too: a worker's own output goes nowhere."""

    class ToDriver(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            report({"warning": record.getMessage()})

    handler, components = ToDriver(logging.WARNING), logging.getLogger("components")
    components.addHandler(handler)
    try:
        yield
    finally:
        components.removeHandler(handler)


def _show(bar: Any, asked_at: float, progress: Mapping[str, Any]) -> None:
    if "computed" in progress:
        begun, ended = progress["computed"]
        add_phase(RAY, asked_at, begun)
        add_phase(COMPUTE, begun, ended)
        return
    if "warning" in progress:
        bar.write(f"{bar.desc}: warning: {progress['warning']}", file=sys.stderr)
        return
    if bar.n == 0 and progress["resumed_from"]:
        bar.initial = bar.n = progress["resumed_from"]
        bar.write(f"{bar.desc}: goes on from step {bar.n}", file=sys.stderr)
    bar.set_postfix_str(f"loss {progress['loss_nats']:.3f}, {progress['tokens_per_second']:,.0f} tok/s", refresh=False)
    bar.update(progress["step"] - bar.n)


def _fill_mlflow(root: Path, arm: Arm, experiment: str) -> None:
    """Best effort: the files are the results, MLflow has a copy, and `tasks.track` can always make it again."""
    try:
        from tasks.recorded import arm_record
        from tasks.tracking import upload_in_time

        upload_in_time(root, experiment, {arm.name: arm_record(root, arm, is_evaluated=False)})
    except Exception as error:  # a store that is down must not cost the trained model
        print(f"warning: MLflow was not filled ({type(error).__name__}: {error}); `python -m tasks.track` does it", file=sys.stderr)


def _arguments() -> argparse.Namespace:
    parser = command_parser("tasks.train", __doc__, EXAMPLES)
    parser.add_argument("--arm", required=True, help="an arm, repair, expansion or control of the parameter file")
    add_path(parser, "--params", "params.yaml", "parameter file")
    return parser.parse_args()


if __name__ == "__main__":
    run_command(main)
