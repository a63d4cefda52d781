"""The whole study as one Prefect flow, no server needed: `python -m flows.full_study`.

Less of it, or another one: `python -m flows.full_study --arms tlm-uniform,twin-full --stages evaluate` or
`python -m flows.full_study --scale quick --seeds 42,43 --max-parallel 4`.

With a server and `python -m flows.serve`: `prefect deployment run full-study/local`. Runs the same stages as `dvc repro`, leaves
the same files and the same `dvc.lock`; independent stages run side by side.
"""

from __future__ import annotations

from flows.launch import launch, study_flow
from flows.parameters import PARAMS, check_parameters
from tasks.scale import put_in_place


def _run_name() -> str:
    from prefect import runtime

    scale = runtime.flow_run.parameters.get("scale")
    return f"full-study {scale}" if scale else "full-study"


@study_flow(name="full-study", flow_run_name=_run_name)
def full_study(
    scale: str | None = None,
    arms: list[str] | None = None,
    seeds: list[int] | None = None,
    stages: list[str] | None = None,
    max_parallel: int | None = None,
) -> None:
    """Runs every stale stage of the study and ends with the table of arms and a link to the report.

    Args:
        scale: a file of scales/, first put in the place of params.yaml; empty leaves params.yaml as it is.
        arms: run these arms only, and what they need; all when empty.
        seeds: written to params.yaml as training.seeds, so that DVC knows them; arms with seeds of their own keep those.
        stages: run these stages only (`train`, `evaluate@twin-full`), and what they need; all when empty.
        max_parallel: stages that run at once; `runtime.parallel_stages` when empty.
    """
    from flows.results import publish_results
    from flows.running import run_stages

    put_in_place(check_parameters(scale, arms, seeds, stages, max_parallel), PARAMS, seeds or ())
    try:
        run_stages(arms or (), stages or (), max_parallel)
    finally:
        publish_results()


if __name__ == "__main__":
    launch(full_study)
