"""Stage `profile`: how fast an arm's model is at every depth and number of streams, and whether self-speculative decoding pays."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from tasks.choice import add_model_arguments, choose_model
from tasks.command import add_path, command_parser, progress_bar, run_command, whole_number
from tasks.phases import COMPUTE, phase

if TYPE_CHECKING:
    from components.results import ArmProfile

EXAMPLES = """
python -m tasks.profile --arm tlm-uniform                            the grid of params.yaml, into artifacts/profile
OMP_NUM_THREADS=4 python -m tasks.profile --arm mlms --threads 4     with four threads instead of runtime.threads_per_worker
"""


def main() -> None:
    """Times the model of the arm's first seed (or --seed) and writes `<arm>.json`."""
    arguments = _arguments()
    chosen = choose_model(arguments)
    grid, runtime = chosen.study.profile, chosen.study.runtime
    import torch

    from components.data.stream import PackedRows
    from components.models.devices import device_name, pick_device
    from components.models.files import load_model
    from components.profiling.latency import Stopwatch, latency_violations, n_turns, profile_latency
    from components.profiling.speculation import n_cells, profile_speculation, recommend
    from components.results import ArmProfile, write_record

    torch.set_num_threads(arguments.threads or runtime.threads_per_worker)
    device = pick_device(runtime.device)
    rows = PackedRows.open(arguments.data / "validation")
    model, _ = load_model(chosen.folder, device)
    model.to(getattr(torch, grid.dtype))
    starts, _ = rows.rows(range(min(grid.speculation.prompts, len(rows))))
    prompts = starts[:, : grid.speculation.prompt_tokens].tolist()
    watch = Stopwatch.of(device)
    with phase(COMPUTE), progress_bar(n_turns(model, grid), f"latency {chosen.arm.name}", "turn") as bar:
        cells = profile_latency(model, grid, watch, bar.update)
    with phase(COMPUTE), progress_bar(n_cells(model, grid.speculation), f"speculation {chosen.arm.name}", "cell") as bar:
        speculation = profile_speculation(model, grid.speculation, prompts, watch, bar.update)
    profile = ArmProfile(
        version=1,
        arm=chosen.arm.name,
        seed=chosen.seed,
        n_blocks=model.n_blocks,
        device=device_name(device),
        device_kind="cuda" if device.type == "cuda" else "cpu",
        threads=torch.get_num_threads(),
        dtype=str(next(model.parameters()).dtype).removeprefix("torch."),
        torch_version=torch.__version__,
        decode_steps=grid.decode_steps,
        repeats=grid.repeats,
        cells=cells,
        violations=latency_violations(cells),
        speculation=speculation,
        recommended=recommend(speculation),
    )
    write_record(profile, arguments.out / f"{chosen.arm.name}.json")
    _print(profile)


def _print(profile: ArmProfile) -> None:
    print(f"{profile.arm} on {profile.device}, threads: {profile.threads}, {profile.dtype}")
    most = max(cell.n_streams for cell in profile.cells)
    for load in dict.fromkeys((cell.n_streams, cell.batch_size, cell.context_tokens) for cell in profile.cells):
        cells = [cell for cell in profile.cells if (cell.n_streams, cell.batch_size, cell.context_tokens) == load]
        steps = "  ".join(f"{cell.depth}:{cell.decode.median_seconds * 1e3:.2f}" for cell in cells)
        streams = f"streams: {load[0]}, " if most > 1 else ""
        print(f"{streams}batch {load[1]}, {load[2]} tokens of context: ms per decoding step by depth  {steps}")
    for odd in profile.violations:
        print(
            f"not non-decreasing: {odd.operation} at depth {odd.depth} was faster than at depth {odd.shallower_depth} "
            f"(batch {odd.batch_size}, context {odd.context_tokens}, streams {odd.n_streams}); the machine was busy, or the step "
            "is bound by something else"
        )
    best = profile.recommended
    if best is not None:
        print(
            f"self-speculative decoding: draft {best.draft_tokens} tokens with depth {best.draft_depth}, "
            f"{best.measured_speedup:.2f}x measured, acceptance {best.acceptance:.2f}"
        )
    elif profile.speculation:
        top = max(profile.speculation, key=lambda cell: cell.measured_speedup)
        print(
            f"self-speculative decoding: none recommended; the best, depth {top.draft_depth} drafting {top.draft_tokens}, is "
            f"{top.measured_speedup:.2f}x ({top.measured_low:.2f}-{top.measured_high:.2f})"
        )


def _arguments() -> argparse.Namespace:
    parser = command_parser("tasks.profile", __doc__, EXAMPLES)
    add_model_arguments(parser)
    add_path(parser, "--data", "artifacts/data", "packed rows; prompts come from here")
    add_path(parser, "--out", "artifacts/profile", "folder of the results")
    parser.add_argument("--threads", type=whole_number, help="CPU threads (default: runtime.threads_per_worker)")
    return parser.parse_args()


if __name__ == "__main__":
    run_command(main)
