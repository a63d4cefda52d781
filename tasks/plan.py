"""What a study will cost: FLOPs, memory and device-hours of every arm, from the parameters alone."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from components.config.loader import PARAMS_FILE, find_arm, load_study
from tasks.command import command_parser, print_columns, run_command
from tasks.scale import preset

if TYPE_CHECKING:
    from components.config.schema import Arm
    from components.profiling.plan import ArmPlan

EXAMPLES = """
python -m tasks.plan                                       the study of params.yaml
python -m tasks.plan --scale proxy-200m                    the paper's recipe
python -m tasks.plan --scale proxy-200m --tflops 312 --mfu 0.35
python -m tasks.plan --parameters tlm-uniform              every weight of an arm, and whether it decays
python -m tasks.plan --check                               only say whether params.yaml is valid
"""

GROUPS = {"decay": "values decay", "no_decay": "do not", "frozen": "are frozen"}


def main() -> None:
    """Validates the parameters and prints a table of what each arm needs."""
    arguments = _arguments()
    path = preset(arguments.scale) if arguments.scale else arguments.params
    study = load_study(path)
    if arguments.check:
        counts = ", ".join(
            f"{len(getattr(study, name))} {name}" for name in ("arms", "backbones", "repairs", "expansions", "controls")
        )
        print(f"{path}: valid; {counts}")
        return
    if arguments.parameters:
        _print_parameters(find_arm(study, arguments.parameters), study.data.tokenizer.vocab_size)
        return
    from components.config.paper_arms import TWIN_ARMS
    from components.profiling.plan import plan_study, schedule_costs, twins_cost

    plans, twins = plan_study(study), twins_cost(study)
    print(f"{path}: {study.data.seq_len} tokens a row, vocabulary {study.data.tokenizer.vocab_size:,}\n")
    sums = [] if twins is None else [("all twins", f"{twins:.3f}", f"{TWIN_ARMS.relative_cost:.3f}")]
    _print_table(plans, sums, arguments.tflops * 1e12, arguments.mfu)
    schedules = ", ".join(f"{name} {cost:.3f}" for name, cost in schedule_costs(study).items())
    if schedules:
        print(f"\nbackward schedules of MLMS without distillation, same gradients, cost in FLOPs: {schedules}.")


def _print_table(plans: list[ArmPlan], sums: list[tuple[str, str, str]], peak_flops: float, utilisation: float) -> None:
    """The plans, then sums of several arms that the paper has a cost of: (name, cost, the paper's)."""
    header = ("arm", "seeds", "stored", "active", "tokens", "FLOPs", "cost", "paper's", "device-hours", "state", "activations")
    rows = [
        (
            plan.name,
            str(plan.n_seeds),
            f"{plan.parameters / 1e6:,.1f}M",
            f"{plan.active / 1e6:,.1f}M",
            f"{plan.tokens / 1e6:,.1f}M",
            f"{plan.flops:.2e}",
            f"{plan.relative_cost:.3f}",
            "-" if plan.paper_cost is None else f"{plan.paper_cost:.3f}",
            f"{plan.device_hours(peak_flops, utilisation) * plan.n_seeds:,.3g}",
            f"{plan.state_bytes / 2**30:,.2f} GiB",
            f"{plan.activation_bytes / 2**30:,.2f} GiB",
        )
        for plan in plans
    ]
    rows += [(name, *[""] * 5, cost, paper, *[""] * 3) for name, cost, paper in sums]
    print_columns([header, *rows])
    total = sum(plan.device_hours(peak_flops, utilisation) * plan.n_seeds for plan in plans)
    print(
        f"\n{total:,.3g} device-hours in all, at {utilisation:.0%} of {peak_flops / 1e12:g} TFLOP/s.\n"
        "cost: FLOPs per token, attention included, relative to the first telescopic arm; paper's: GPU-hours, over uniform.\n"
        "active: parameters that a token meets. state (weights, gradients, AdamW) and activations (one micro-batch) are per worker."
    )


def _print_parameters(arm: Arm, vocab_size: int) -> None:
    """Every parameter of an arm: AdamW's decay acts on some, others are frozen."""
    from components.profiling.parameters import list_parameters

    lines = list_parameters(arm, vocab_size)
    decay = {"decay": f"{arm.training.weight_decay:g}", "no_decay": "none", "frozen": "frozen"}
    rows = [(line.name, " x ".join(map(str, line.shape)), f"{line.size:,}", decay[line.group]) for line in lines]
    print_columns([("parameter", "shape", "values", "weight decay"), *rows])
    sums = {group: sum(line.size for line in lines if line.group == group) for group in decay}
    print(f"\n{arm.name}: " + ", ".join(f"{sums[group]:,} {said}" for group, said in GROUPS.items() if sums[group]))


def _arguments() -> argparse.Namespace:
    parser = command_parser("tasks.plan", __doc__, EXAMPLES)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--scale", help="a file of scales/, e.g. proxy-200m")
    which.add_argument("--params", type=Path, default=PARAMS_FILE, help="parameter file (default: %(default)s)")
    parser.add_argument(
        "--tflops", type=float, default=989.0, help="peak of one device in TFLOP/s (default: %(default)s, H100 bf16)"
    )
    parser.add_argument("--mfu", type=float, default=0.4, help="share of the peak that training reaches (default: %(default)s)")
    parser.add_argument("--parameters", metavar="ARM", help="list every parameter of an arm, and whether weight decay acts on it")
    parser.add_argument("--check", action="store_true", help="only validate the parameters")
    arguments = parser.parse_args()
    if not 0 < arguments.mfu <= 1 or not 0 < arguments.tflops < float("inf"):
        parser.error("--mfu must be in (0, 1] and --tflops positive")
    return arguments


if __name__ == "__main__":
    run_command(main)
