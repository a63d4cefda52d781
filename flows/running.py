"""What all flows share: asks DVC for the graph, then runs the stale stages in order, side by side where they are independent."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any

from prefect import get_run_logger, task
from prefect.futures import PrefectConcurrentFuture
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import exponential_backoff

from components.config.loader import load_study
from components.config.schema import Runtime
from flows.parameters import EVALUATION_STAGES, PARAMS, PROFILE_STAGES, ROOT, TRAINING_STAGES
from flows.results import publish_times
from tasks import supervisor
from tasks.graph import StudyGraph, arm_of, kind_of, study_graph
from tasks.phases import StageTime
from tasks.ray_head import ray_head
from tasks.stage import StageFailedError, run_dvc_stage, stage_environment

MOST_TAGS = 2  # of a stage: its kind and its arm
HELD_BACK = "not run: a stage it needs failed"


def run_stages(arms: Iterable[str] = (), stages: Iterable[str] = (), max_parallel: int | None = None) -> None:
    """Runs the stages asked for (see `StudyGraph.select`) as far as they are stale, inside a flow run.

    One stage's failure stops only what depends on it.

    Args:
        max_parallel: stages that run at once; `runtime.parallel_stages` when None.

    Raises:
        ConfigError: `params.yaml` is wrong, or an arm or a stage does not exist.
        StageFailedError: at the end, when any stage failed; names them all.
    """
    log, begun = get_run_logger(), time.time()
    study = load_study(PARAMS)
    graph = study_graph(ROOT, log.info)
    kinds = {kind_of(name) for name in graph.needs}
    known = {*TRAINING_STAGES, *EVALUATION_STAGES, *PROFILE_STAGES}
    present = [stage for stage in stages if stage in kinds or stage not in known]  # a study may have no repairs
    selected = graph.select(arms, present)
    names = graph.to_run(selected)
    log.info("%d of %d stages to run: %s", len(names), len(selected), ", ".join(names) or "nothing changed")
    with contextlib.ExitStack() as stack:
        if any(kind_of(name) in TRAINING_STAGES for name in names):
            stack.enter_context(ray_head())
        at_once = max_parallel or study.runtime.parallel_stages
        failures, times = dict[str, str](), list[StageTime]()
        for part, n_at_once in zip(_before_during_after_timing(graph, names), (at_once, 1, at_once), strict=True):
            more_failures, more_times = _run_in_order(graph, part, study.runtime, n_at_once, failures)
            failures |= more_failures
            times += more_times
    fill_mlflow()
    publish_times(times, time.time() - begun)
    if failures:
        lines = [f"{name}: {reason}" for name, reason in failures.items()]
        raise StageFailedError(f"{len(failures)} of {len(names)} stages failed\n" + "\n".join(lines), is_final=True)


def _before_during_after_timing(graph: StudyGraph, names: Iterable[str]) -> tuple[list[str], list[str], list[str]]:
    """The stages that time something run alone: all that can come before them does, and what needs them comes after."""
    names = list(names)
    timed = [name for name in names if kind_of(name) in PROFILE_STAGES]
    after = [name for name in names if name not in timed and graph.upstream([name]) & set(timed)]
    return [name for name in names if name not in timed and name not in after], timed, after


@task(task_run_name="fill-mlflow", persist_result=False, cache_policy=None)
def fill_mlflow() -> None:
    """Copies the results files to MLflow; a store that is down costs nothing but the copy."""
    log = get_run_logger()
    process = supervisor.start_supervised((sys.executable, "-m", "tasks.track"), env=stage_environment(), cwd=ROOT)
    for line in process.stdout or ():
        log.info(line.rstrip())
    if process.wait():
        log.warning("MLflow was not filled; `python -m tasks.track` does it later")
    supervisor.forget(process)


def _run_in_order(
    graph: StudyGraph, names: Iterable[str], runtime: Runtime, max_parallel: int, failed: Mapping[str, str]
) -> tuple[dict[str, str], list[StageTime]]:
    """Runs the stages, but for those that need one that `failed`; the reason of each that did not end well, times of the others."""
    held_back = {name: HELD_BACK for name in names if graph.upstream([name]) & set(failed)}
    names = [name for name in names if name not in held_back]
    backoff = exponential_backoff(runtime.retry_delay_seconds)
    stage_task = run_dvc_stage.with_options(retries=runtime.stage_retries, retry_delay_seconds=backoff)
    futures: dict[str, PrefectConcurrentFuture[StageTime]] = {}
    # The loop bounds what runs. Prefect warns of dead-locks unless it has more threads than a stage has tags.
    with ThreadPoolTaskRunner(max_workers=max_parallel + MOST_TAGS) as runner:
        try:
            running: dict[Future[Any], str] = {}
            while len(futures) < len(names) or running:
                # A stage is submitted once all it needs has ended: one that waited inside the runner would hold a place.
                unfinished = {name for name in names if name not in futures} | set(running.values())
                for name in graph.ready(unfinished - set(running.values()), unfinished)[: max_parallel - len(running)]:
                    needs = [futures[needed] for needed in graph.needs[name] if needed in futures]
                    tagged = stage_task.with_options(tags=[kind_of(name), *filter(None, [arm_of(name)])])
                    arguments = {
                        "name": name,
                        "root": ROOT,
                        "timeout_seconds": runtime.stage_timeout_seconds,
                        "may_pull": graph.has_remote,
                        "grace_seconds": runtime.stop_seconds + supervisor.HELPER_SECONDS,
                    }
                    futures[name] = runner.submit(tagged, arguments, wait_for=needs)
                    running[futures[name].wrapped_future] = name
                for ended in wait(running, return_when=FIRST_COMPLETED).done:
                    futures[running.pop(ended)].wait()  # takes the final state from the run itself, not from the server
        except BaseException:  # cancelled or interrupted: threads cannot be, their processes can
            supervisor.stop_supervised()
            raise
    states = {name: future.state for name, future in futures.items()}
    reasons = {name: _reason(state.message, state.is_pending()) for name, state in states.items() if not state.is_completed()}
    times = [futures[name].result() for name, state in states.items() if state.is_completed()]
    return held_back | reasons, times


def _reason(message: str | None, was_held_back: bool) -> str:
    if was_held_back:
        return HELD_BACK
    return (message or "failed").removeprefix("Task run encountered an exception ").removeprefix("StageFailedError: ")
