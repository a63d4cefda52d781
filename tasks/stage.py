"""Runs one stage of `dvc.yaml`, watched and told about: `graph.py` says which, a flow when.

`run_stage` runs it through `dvc repro --single-item` under the supervisor; `run_dvc_stage` is the Prefect task around it. Reader
beware: DVC hides a command's exit code, so the command leaves it in a file (`tasks/command.py`), from which a user's mistake (no
use retrying) is told apart from a crash, and a result that DVC lost from a command that failed.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect import get_run_logger, task

from tasks import supervisor
from tasks.command import EXIT_INTERRUPTED, EXIT_MISTAKE, STATUS_FILE
from tasks.graph import BUSY_SECONDS
from tasks.phases import StageTime, read_phases

DVC = (sys.executable, "-m", "dvc", "--wait-for-lock")
DVC_IS_BUSY = "is busy, it is being blocked by"
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
