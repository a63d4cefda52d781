"""The whole study as one Prefect flow: `python -m flows.full_study` (no server needed).

With a server and `python -m flows.serve`: `prefect deployment run full-study/local`. Runs the same stages as `dvc repro`, leaves
the same files and the same `dvc.lock`; independent stages run side by side.
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow

from flows.launch import launch
from flows.running import PARAMS, ROOT, publish_results, run_stages


@flow(name="full-study")
def full_study(
    params: str = "params.yaml",
    arms: list[str] | None = None,
    stages: list[str] | None = None,
    max_parallel: int | None = None,
) -> None:
    """Runs every stale stage of the study and ends with the table of arms and a link to the report.

    Args:
        params: a parameter file, relative to the repository; another than params.yaml is first put in its place.
        arms: run these arms only, and what they need; all when empty.
        stages: run these stages only (`train`, `evaluate@twin-full`), and what they need; all when empty.
        max_parallel: stages that run at once; `runtime.parallel_stages` when empty.
    """
    from tasks.scale import put_in_place

    put_in_place(ROOT / Path(params), PARAMS)
    try:
        run_stages(arms or (), stages or (), max_parallel)
    finally:
        publish_results()


if __name__ == "__main__":
    launch(full_study)
