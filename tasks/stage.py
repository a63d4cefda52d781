"""Runs one stage of `dvc.yaml`, watched and told about: the bridge between the graph (DVC) and the schedule (Prefect).

`study_graph` says what is stale before anything runs; `run_stage` runs one stage through `dvc repro --single-item` under the
supervisor; `run_dvc_stage` is the Prefect task around it. Reader beware: DVC hides a command's exit code, so the command leaves it
in a file (`tasks/command.py`), from which a user's mistake (no use retrying) is told apart from a crash, and a result that DVC lost
from a command that failed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task

from components.config.problems import ConfigError
from components.config.validation import suggest
from tasks import supervisor
from tasks.command import EXIT_INTERRUPTED, EXIT_MISTAKE, STATUS_FILE
from tasks.phases import StageTime, read_phases

DVC = (sys.executable, "-m", "dvc", "--wait-for-lock")
DVC_IS_BUSY = "is busy, it is being blocked by"
BUSY_SECONDS = 5.0  # between two looks whether the other DVC has ended
NO_STATUS: Mapping[str, Any] = {"code": None, "message": "", "phases": []}
DVC_ADVICE = ("To track the changes", "git add", "To enable auto staging", "dvc config core.autostage", "Use `dvc push`")


class StageFailedError(RuntimeError):
    """A stage did not end well.

    Attributes:
        is_final: the same will happen again: the user's input is wrong, or the user stopped it.
    """

    def __init__(self, message: str, is_final: bool) -> None:
        super().__init__(message)
        self.is_final = is_final


@dataclass(frozen=True)
class StudyGraph:
    """The stages of `dvc.yaml`, upstream before downstream, and what each needs.

    Attributes:
        needs: the stages that each stage depends on directly.
        stale: stages whose outputs are missing or older than what they depend on, without what follows from them.
        has_remote: DVC has a place that others may have pushed results to.
    """

    needs: Mapping[str, frozenset[str]]
    stale: frozenset[str]
    has_remote: bool = False

    def upstream(self, names: Iterable[str]) -> frozenset[str]:
        """The stages and everything they depend on."""
        found: set[str] = set()
        queue = list(names)
        while queue:
            name = queue.pop()
            if name not in found:
                found.add(name)
                queue += self.needs[name]
        return frozenset(found)

    def select(self, arms: Iterable[str] = (), stages: Iterable[str] = ()) -> tuple[str, ...]:
        """The stages to run, in order: those of the arms and kinds asked for, and what they depend on. Nothing asked for: all.

        Args:
            arms: names of arms; their stages only.
            stages: kinds (`train`) or whole names (`train@twin-full`).

        Raises:
            ConfigError: an arm or a stage that does not exist.
        """
        chosen = self.upstream(asked_for(self.needs, arms, stages))
        return tuple(name for name in self.needs if name in chosen)

    def to_run(self, selected: Iterable[str]) -> tuple[str, ...]:
        """Of the selected stages, those that are stale, and those that follow from them."""
        running: list[str] = []
        for name in selected:
            if name in self.stale or self.needs[name] & set(running):
                running.append(name)
        return tuple(running)

    def ready(self, waiting: Iterable[str], unfinished: Iterable[str]) -> list[str]:
        """Of the stages that wait, those that need none of the unfinished ones; what most stages in a row wait for comes first."""
        blocked = set(unfinished)
        free = [name for name in self.needs if name in set(waiting) and not self.needs[name] & blocked]
        return sorted(free, key=self._stages_behind, reverse=True)

    def _stages_behind(self, name: str) -> int:
        """Length of the longest chain of stages that follow from this one."""
        following = [other for other, needs in self.needs.items() if name in needs]
        return 1 + max(map(self._stages_behind, following)) if following else 0


def asked_for(names: Iterable[str], arms: Iterable[str], stages: Iterable[str]) -> list[str]:
    """Of the names of stages, those of the arms and of the kinds, or whole names, asked for; all when nothing is.

    Raises:
        ConfigError: an arm or a stage that does not exist, or arms that have none of the stages.
    """
    names, arms, stages = tuple(names), tuple(arms), tuple(stages)
    _check_names("arms", arms, {arm_of(name) for name in names} - {""})
    _check_names("stages", stages, {kind_of(name) for name in names} | set(names))
    wanted = [
        name for name in names if (not arms or arm_of(name) in arms) and (not stages or name in stages or kind_of(name) in stages)
    ]
    if not wanted:
        raise ConfigError(f"arms {', '.join(arms)}: have none of the stages {', '.join(stages)}; leave one of the two out")
    return wanted


def kind_of(stage: str) -> str:
    """`train` of `train@twin-full`."""
    return stage.split("@", 1)[0]


def arm_of(stage: str) -> str:
    """`twin-full` of `train@twin-full`; empty for a stage of no arm."""
    return stage.partition("@")[2]


def _check_names(what: str, names: Iterable[str], known: set[str]) -> None:
    unknown = sorted(set(names) - known)
    if unknown:
        close = suggest(unknown[0], known)
        there = f"there are {', '.join(sorted(known))}" + (f"; {close}" if close else "")
        raise ConfigError(f"{what}: no {', '.join(unknown)} in dvc.yaml; {there}")


def study_graph(root: Path, say: Callable[[str], None]) -> StudyGraph:
    """The graph and its stale stages as DVC sees them, once no other DVC works on the same files.

    Raises:
        ConfigError: `dvc.yaml` or its parameters cannot be read.
    """
    from dvc.exceptions import DvcException
    from dvc.lock import LockError

    while True:
        try:
            return _read_graph(root)
        except LockError as error:
            say(f"another DVC works on the same files; waiting for it: {error}")
            time.sleep(BUSY_SECONDS)
        except DvcException as error:
            raise ConfigError(f"dvc.yaml: {error}") from error


def _read_graph(root: Path) -> StudyGraph:
    import networkx
    from dvc.repo import Repo

    with Repo(str(root), _wait_for_lock=True) as repo:
        graph = repo.index.graph
        order = list(networkx.lexicographical_topological_sort(graph.reverse(), key=_file_order(repo.index.stages)))
        needs = {stage.addressing: frozenset(needed.addressing for needed in graph.successors(stage)) for stage in order}
        stale = frozenset(repo.status()) & frozenset(needs)
        return StudyGraph(needs, stale, has_remote=bool(repo.config["core"].get("remote")))


def run_stage(
    name: str,
    root: Path,
    say: Callable[[str], None],
    timeout_seconds: float | None = None,
    may_pull: bool = False,
    grace_seconds: float = supervisor.GRACE_SECONDS,
) -> StageTime:
    """Runs the stage if it is stale; every line it prints goes to `say` as it comes.

    While another DVC works on the same files, it waits and says so.

    Args:
        timeout_seconds: of one attempt; the stage is stopped then. None: no limit.
        may_pull: results that others have pushed to DVC's remote are fetched instead of computed.
        grace_seconds: what it has to end by itself once it is stopped.

    Returns:
        When it ran, and what became of the time.

    Raises:
        StageFailedError: the stage failed; its message is the command's own when it left one.
    """
    begun, command = time.time(), (*DVC, "repro", *(("--pull",) if may_pull else ()), "--single-item", name)
    with tempfile.TemporaryDirectory(prefix="stage-") as folder:
        status_file = Path(folder) / "status.json"
        settings = {STATUS_FILE: str(status_file)}
        while (end := _run(command, root, settings, say, timeout_seconds, grace_seconds)).is_busy:
            say(f"{name}: another DVC works on the same files (see above); waiting for it")
            time.sleep(BUSY_SECONDS)
        status = json.loads(status_file.read_text(encoding="utf-8")) if status_file.exists() else NO_STATUS
    code = end.code
    if code and status["code"] == 0:
        say(f"{name} ended well but DVC did not record it; committing its outputs")
        code = _run((*DVC, "commit", "--force", name), root, {}, say).code
    if code == 0:
        return StageTime(name, begun, time.time(), read_phases(status["phases"]))
    if end.is_late:
        raise StageFailedError(f"{name}: stopped after {timeout_seconds:g} s (runtime.stage_timeout_seconds)", is_final=False)
    message = status["message"] or f"dvc repro ended with exit code {code}; see its lines above"
    raise StageFailedError(f"{name}: {message}", is_final=status["code"] in (EXIT_MISTAKE, EXIT_INTERRUPTED))


def may_retry(task: Any, task_run: Any, state: Any) -> bool:
    """Prefect's question after a failure: is there any use in trying again?"""
    error = state.result(raise_on_failure=False)
    return not (isinstance(error, StageFailedError) and error.is_final)


@task(task_run_name="{name}", persist_result=False, cache_policy=None, retry_condition_fn=may_retry)
def run_dvc_stage(name: str, root: Path, timeout_seconds: float | None, may_pull: bool, grace_seconds: float) -> StageTime:
    """Runs one stage of `dvc.yaml`; its lines are the log of the task."""
    return run_stage(name, root, get_run_logger().info, timeout_seconds, may_pull, grace_seconds)


def stage_environment() -> dict[str, str]:
    """The environment of stages: this Python first in PATH, output unbuffered, nobody phoned."""
    return {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)]),
        "PYTHONUNBUFFERED": "1",
        "DVC_NO_ANALYTICS": "1",
        "DO_NOT_TRACK": "true",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }


@dataclass(frozen=True)
class _End:
    """How a command ended: its exit code, whether DVC refused to wait for another DVC, whether it was stopped for its time."""

    code: int
    is_busy: bool
    is_late: bool


def _run(
    command: tuple[str, ...],
    root: Path,
    settings: Mapping[str, str],
    say: Callable[[str], None],
    timeout_seconds: float | None = None,
    grace_seconds: float = supervisor.GRACE_SECONDS,
) -> _End:
    environment = {**stage_environment(), **settings}
    try:
        process = supervisor.start_supervised(command, env=environment, cwd=root, grace_seconds=grace_seconds)
    except supervisor.StoppingError as error:
        raise StageFailedError(str(error), is_final=True) from error
    is_late = threading.Event()

    def stop() -> None:
        is_late.set()
        process.terminate()

    timer = threading.Timer(timeout_seconds or threading.TIMEOUT_MAX, stop)
    timer.daemon = True
    timer.start()
    is_busy = False
    for line in process.stdout or ():
        is_busy = is_busy or DVC_IS_BUSY in line
        if line.strip() and not line.lstrip().startswith(DVC_ADVICE):
            say(line.rstrip())
    code = process.wait()
    timer.cancel()
    supervisor.forget(process)
    return _End(code, is_busy and code != 0 and not is_late.is_set(), is_late.is_set())


def _file_order(stages: Iterable[Any]) -> Callable[[Any], int]:
    """Ties of the topological order go to the stage that `dvc.yaml` names first."""
    positions = {stage.addressing: i for i, stage in enumerate(stages)}
    return lambda stage: positions[stage.addressing]
