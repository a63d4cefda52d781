"""Where training runs: a Ray task for one worker, a TorchTrainer around the same function for several. Only this file imports Ray.

Ray gives the workers their place and their resources; it knows nothing of arms, and its own checkpoints and retries stay unused:
a job resumes by itself from its own files, so a lost worker is answered by starting the job again. Reader beware: results travel as
plain data and progress goes through a file in the run's folder (Ray's log forwarding is lossy): on several machines it must
lie on storage they share, as the checkpoints must.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import signal
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from components.config.problems import StudyError
from tasks.command import MachineError
from tasks.ray_head import OBJECT_STORE_BYTES, private_settings, probe_address, until_started
from tasks.ray_resources import Resources, choose_device

Report = Callable[[Mapping[str, Any]], None]
Job = Callable[[Report], Mapping[str, Any]]

WAIT_SECONDS = "1e7"  # what a group waits for its CPUs while other arms hold them; that it can ever get them is checked first
LOST_REMEDY = (
    "something outside ended it, most often the system for want of memory (`dmesg` tells); lower runtime.micro_batch_rows or "
    "runtime.parallel_stages, or use more memory; the next run goes on from the newest checkpoint"
)
START_UP = ("timed out during startup", "Failed to start GCS")
WORKER_RESTARTS = 2  # times a job is started again after a worker was lost (killed, out of memory, machine gone)


class WorkerLostError(MachineError):
    """A worker process died, or lost its peers; the job itself did not fail."""


class RaySession:
    """A connection to a Ray, for jobs of one size, one after the other.

    Attributes:
        device: `cpu` or `cuda`: what every worker gets.
    """

    def __init__(self, resources: Resources) -> None:
        """Connects to `RAY_ADDRESS`, or starts a Ray of this process's own on loopback; `ray_session` also ends it.

        Raises:
            ConfigError: nothing answers at `RAY_ADDRESS`, or the cluster cannot hold the workers.
        """
        self.resources = resources
        self.device = ""
        self._folder: str | None = None
        self._connect()

    def run(self, job: Job, folder: Path, on_progress: Report) -> dict[str, Any]:
        """The job's result, once all workers have run it.

        Args:
            job: called in every worker with a function that reports progress; rank 0's reports and result count. Picklable.
            folder: for the progress file; one job at a time.
            on_progress: called here, in order, with what rank 0 reported.

        Raises:
            StudyError: as raised by the job.
            WorkerLostError: workers were lost more than `WORKER_RESTARTS` times.
        """
        folder.mkdir(parents=True, exist_ok=True)
        launch = _run_task if self.resources.workers == 1 else _run_group
        restarts = 0
        while True:
            try:
                with _followed(folder / "progress.jsonl", on_progress) as progress:
                    return launch(job, self.resources, self.device, progress)
            except WorkerLostError as error:
                if restarts == WORKER_RESTARTS:
                    raise WorkerLostError(f"{error}, {restarts + 1} times; {LOST_REMEDY}") from None
                restarts += 1
                print(f"{error}; starting again from the newest checkpoint ({restarts} of {WORKER_RESTARTS})", file=sys.stderr)
            self.close()  # survivors of a broken group would keep their CPUs
            self._connect()

    def close(self) -> None:
        """Disconnects; a Ray that was started here ends, and its files with it."""
        import ray

        ray.shutdown()
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _connect(self) -> None:
        """What a start that failed has left ends with this process."""
        until_started(self._connect_once)

    def _connect_once(self) -> None:
        address = os.environ.get("RAY_ADDRESS")
        if address:
            probe_address(address)
            options: dict[str, Any] = {"address": address}
        else:
            for name, value in private_settings().items():
                os.environ.setdefault(name, value)  # a process keeps its first token: Ray reads it once
            self._folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # socket paths hold 107 bytes: never a deep folder
            options = {"address": "local", "include_dashboard": False, "_temp_dir": self._folder}
            options["object_store_memory"] = OBJECT_STORE_BYTES
        import ray

        settings = _worker_environment(self.resources.threads)
        try:
            with _sigterm_kept():
                ray.init(**options, log_to_driver=False, logging_level="ERROR", runtime_env=settings)
            self.device = choose_device(self.resources, ray.nodes())
        except BaseException as error:
            self.close()
            if any(words in str(error) for words in START_UP):
                said = str(error).partition("\n")[0]
                raise MachineError(f"Ray did not start ({said}); the machine is very busy, run it again") from None
            raise


@contextlib.contextmanager
def ray_session(resources: Resources) -> Iterator[RaySession]:
    """A session that is closed at the end of the block, however it ends."""
    session = RaySession(resources)
    try:
        yield session
    finally:
        session.close()


@contextlib.contextmanager
def _sigterm_kept() -> Iterator[None]:
    """`ray.init` puts a handler of its own in place."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _run_task(job: Job, resources: Resources, device: str, progress: Path) -> dict[str, Any]:
    import ray

    takes = resources.of_a_worker(device)
    cpus, gpus = takes.pop("CPU"), takes.pop("GPU", 0)
    place = ray.remote(num_cpus=cpus, num_gpus=gpus, resources=takes, max_retries=0, max_calls=1)
    reference = place(_job_in_task).remote(job, progress)
    try:
        result: dict[str, Any] = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, StudyError):
            raise error.cause from None
        raise
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError, ray.exceptions.OutOfMemoryError) as error:
        raise WorkerLostError(f"the training worker was lost ({type(error).__name__})") from None
    except BaseException:
        ray.cancel(reference, force=True)
        raise
    return result


def _job_in_task(job: Job, progress: Path) -> dict[str, Any]:
    return dict(job(_writer(progress)))


def _run_group(job: Job, resources: Resources, device: str, progress: Path) -> dict[str, Any]:
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer
    from ray.train.v2.api.exceptions import ControllerError, WorkerGroupError

    result = progress.with_name("result.json")
    result.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="ray-train-") as storage:
        trainer = TorchTrainer(
            _job_in_group,
            train_loop_config={"job": job, "progress": progress, "result": result},
            torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if device == "cuda" else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=resources.workers,
                use_gpu=device == "cuda",
                resources_per_worker=resources.of_a_worker(device),
                placement_strategy=resources.placement.upper(),
            ),
            # a unique name: Ray Train resumes a run of the same name, whatever its settings
            run_config=RunConfig(
                name=uuid.uuid4().hex,
                storage_path=storage,
                failure_config=FailureConfig(max_failures=0, controller_failure_limit=0),
                worker_runtime_env=_worker_environment(resources.threads),
            ),
        )
        try:
            trainer.fit()
        except WorkerGroupError as error:
            raise _group_failure(error.worker_failures) from None
        except ControllerError as error:  # a worker that dies while its group starts
            raise _group_failure({0: error.controller_failure}) from None
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    result.unlink()
    return found


def _job_in_group(config: dict[str, Any]) -> None:
    from ray.train import get_context

    first = get_context().get_world_rank() == 0
    result = config["job"](_writer(config["progress"]) if first else _no_report)
    if first:
        config["result"].write_text(json.dumps(result), encoding="utf-8")


def _group_failure(failures: Mapping[int, BaseException]) -> BaseException:
    """What stopped a group: a mistake of the user before all else, then a lost worker, then any error of the job."""
    import ray

    causes = {rank: _cause(error) for rank, error in sorted(failures.items())}
    for cause in causes.values():
        if isinstance(cause, StudyError):
            return cause
    for rank, cause in causes.items():
        # survivors of a lost peer fail in the collective: gloo and nccl say so only in their text
        if isinstance(cause, ray.exceptions.RayError) or "gloo" in str(cause) or "NCCL" in str(cause):
            return WorkerLostError(f"training worker {rank} or a peer was lost ({type(cause).__name__})")
    return next(iter(causes.values()))


def _cause(error: BaseException) -> BaseException:
    """The exception of the job inside Ray's wrappers."""
    wrapped = (getattr(error, name, None) for name in ("_base_exc", "health_check_failure", "cause"))
    inner = next((one for one in wrapped if one is not None), None)
    return _cause(inner) if isinstance(inner, BaseException) and inner is not error else error


def _writer(path: Path) -> Report:
    def write(progress: Mapping[str, Any]) -> None:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dict(progress)) + "\n")

    return write


def _no_report(progress: Mapping[str, Any]) -> None:
    """Ranks past the first have nothing to say."""


@contextlib.contextmanager
def _followed(path: Path, on_progress: Report) -> Iterator[Path]:
    """A fresh progress file whose lines reach `on_progress` while the block runs, all of them by its end."""
    path = path.resolve()
    path.write_text("", encoding="utf-8")
    done = threading.Event()

    def follow() -> None:
        rest, last = "", False
        with path.open(encoding="utf-8") as file:
            while True:
                rest += file.read()
                *lines, rest = rest.split("\n")
                for line in lines:
                    on_progress(json.loads(line))
                if last:
                    return
                last = done.wait(timeout=0.3)

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    try:
        yield path
    finally:
        done.set()
        thread.join(timeout=10)
        path.unlink(missing_ok=True)


def _worker_environment(threads: int) -> dict[str, Any]:
    """What Ray sets up for every worker process."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    variables = {
        **dict.fromkeys(names, str(threads)),
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": WAIT_SECONDS,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
    }
    environment: dict[str, Any] = {"env_vars": variables}
    is_here = os.environ.get("RAY_ADDRESS", "127.0.0.1").startswith("127.0.0.1")
    python = os.path.abspath(sys.executable)
    if is_here and " " in python:
        environment["py_executable"] = shlex.quote(python)  # Ray puts the path into a shell command as it is
    return environment
