"""Copies the results files to MLflow. The only file that uses MLflow; nothing ever reads a number back from it.

One run for each (arm, seed), its stages nested one level below; metrics `depth/...` have step = depth k, so that MLflow's
compare page shows the depth curves. Reader beware: an upload is a pure function of the files. Hashes of what a run was written
from are kept as tags: the same files change nothing, other files replace the run (to the numbers of an MLflow run one can only
add). Which settings a model was really trained with comes from `dvc.lock`, never from a `params.yaml` edited since.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.config.problems import StudyError
from tasks.recorded import ArmRecord, recorded_arms

UNIT = "study.unit"  # <arm>/seed-<seed>
# Tags with hashes of what was written.
TRAINED, EVALUATED, BENCHMARKED, REPORTED = "study.training", "study.evaluation", "study.benchmarks", "study.report"
PENDING = "being written"
STORE = Path("mlruns")
LINKS = "links.json"  # in its folder: pages of the runs, for the Prefect run
LOCAL_PAGES = "http://127.0.0.1:5000"  # of `make ui`
UPLOAD_SECONDS = 120.0  # that a stage waits for its upload
PATIENCE = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3", "MLFLOW_HTTP_REQUEST_TIMEOUT": "30"}  # MLflow's own: many minutes
CREDENTIALS = re.compile(r"//[^/@]*@")  # in an address
BATCH = 900  # metrics in one request; MLflow takes up to 1,000

Points = list[tuple[str, float, int]]


class TrackingError(StudyError):
    """MLflow's store cannot be used; the results files are complete without it."""


@dataclass(frozen=True)
class Upload:
    """What an upload did.

    Attributes:
        written, unchanged: runs written anew, and runs that were up to date.
        address: of the store, without a password.
        links: page of each arm's run, `<arm>/seed-<seed>`, in MLflow's own pages (of `make ui` for a store without a server).
    """

    written: int
    unchanged: int
    address: str
    links: Mapping[str, str]


def upload_study(root: Path, experiment: str, records: Mapping[str, ArmRecord] | None = None) -> Upload:
    """Brings MLflow up to date with the files under `root`/artifacts.

    Args:
        experiment: name of the MLflow experiment.
        records: the arms to upload; None takes those of `dvc.lock`.

    Raises:
        TrackingError: MLflow cannot be reached, or refuses; the files have lost nothing.
    """
    records = recorded_arms(root) if records is None else records
    units = [(f"{arm}/seed-{seed}", record, seed) for arm, record in records.items() for seed in record.seeds]
    with open_client(root) as (client, address):
        experiment_id = _experiment(client, experiment, root, address)
        done = {unit[0]: _bring_up_to_date(client, experiment_id, root, *unit) for unit in units}
    written = sum(changed for _, changed in done.values())
    pages = f"{pages_of(address)}/#/experiments/{experiment_id}/runs"
    links = {unit: f"{pages}/{run_id}" for unit, (run_id, _) in done.items()}
    return Upload(written, len(units) - written, without_password(address), links)


def upload_in_time(root: Path, experiment: str, records: Mapping[str, ArmRecord], seconds: float = UPLOAD_SECONDS) -> None:
    """The same within a limit, for a stage that must not wait for a slow store.

    Raises:
        TrackingError: also when it takes longer; what is half written is written anew by the next upload.
    """
    failures: list[BaseException] = []

    def upload() -> None:
        try:
            upload_study(root, experiment, records)
        except BaseException as error:  # told by the caller's thread
            failures.append(error)

    thread = threading.Thread(target=upload, daemon=True)  # ends with the process, wherever it hangs
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TrackingError(f"MLflow took more than {seconds:g} s")
    if failures:
        raise failures[0]


@contextlib.contextmanager
def open_client(root: Path) -> Iterator[tuple[Any, str]]:
    """A client of the store, which this process alone on the machine writes to, and the store's address.

    Raises:
        TrackingError: what MLflow says to anything done within.
    """
    os.environ.update(MLFLOW_DISABLE_TELEMETRY="true", DO_NOT_TRACK="true")
    for name, value in PATIENCE.items():
        os.environ.setdefault(name, value)
    with _store(root) as address, _clean_errors(address):
        from mlflow import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        yield MlflowClient(address), address


def without_password(address: str) -> str:
    """The address of a store as it may be shown."""
    return CREDENTIALS.sub("//***@", address)


def pages_of(address: str) -> str:
    """Where a browser finds the store, as it may be shown; a store without a server has the pages of `make ui`."""
    return CREDENTIALS.sub("//", address.rstrip("/")) if address.startswith("http") else LOCAL_PAGES


@contextlib.contextmanager
def _clean_errors(address: str) -> Iterator[None]:
    from mlflow.exceptions import MlflowException
    from requests.exceptions import RequestException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, RequestException, SQLAlchemyError, ImportError) as error:
        said = f"{type(error).__name__}: {without_password(' '.join(str(error).replace(address, '').split())[:300])}"
        raise TrackingError(
            f"MLflow ({without_password(address)}): {said}; check MLFLOW_TRACKING_URI and "
            "its server; nothing is lost, `python -m tasks.track` fills it later"
        ) from None


@contextlib.contextmanager
def _store(root: Path) -> Iterator[str]:
    """The store's address, while this process alone on the machine writes to it; the default store is created on first use.

    Several processes that meet an empty SQLite file break each other's table creation, hence the lock.
    """
    folder = root / STORE
    folder.mkdir(exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        address = os.environ.get("MLFLOW_TRACKING_URI")
        if not address:
            address = f"sqlite:///{_prepared((folder / 'mlflow.db').resolve())}"
        yield address


def _prepared(database: Path) -> Path:
    """The database file, made if it is new: write-ahead, so that who reads it (the pages) blocks no one who writes."""
    try:
        with contextlib.closing(sqlite3.connect(database)) as connection:
            connection.execute("PRAGMA journal_mode=WAL")
    except sqlite3.Error as error:
        raise TrackingError(f"{database}: {error}; end what holds it, or move it away, and run `python -m tasks.track`") from None
    return database


def _experiment(client: Any, name: str, root: Path, address: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is not None:
        return str(found.experiment_id)
    is_server = address.startswith("http")  # has a place for files of its own; a database has none
    location = None if is_server else (root / STORE / "artifacts").resolve().as_uri()
    from mlflow.exceptions import MlflowException

    try:
        return str(client.create_experiment(name, artifact_location=location))
    except MlflowException:
        found = client.get_experiment_by_name(name)  # another machine was faster
        if found is None:
            raise
        return str(found.experiment_id)


def _bring_up_to_date(client: Any, experiment: str, root: Path, unit: str, record: ArmRecord, seed: int) -> tuple[str, bool]:
    """Makes the run of one (arm, seed) say what the files say; returns the run, and whether its numbers changed."""
    trained = record.training_content(seed)
    later = {
        EVALUATED: (record.evaluation_content(seed), _write_evaluation),
        BENCHMARKED: (record.benchmark_content(seed), _write_benchmarks),
    }
    found = client.search_runs([experiment], f"tags.`{UNIT}` = '{unit}'")
    usable = [
        run
        for run in found
        if run.data.tags.get(TRAINED) == trained
        and all(not content or run.data.tags.get(tag, "") in ("", content) for tag, (content, _) in later.items())
    ]
    for run in [one for one in found if one not in usable[:1]]:
        _delete(client, experiment, run.info.run_id)
    if usable:
        run_id, tags = usable[0].info.run_id, usable[0].data.tags
    else:
        run_id, tags = _write_arm(client, experiment, unit, record, seed), {}
        client.set_tag(run_id, TRAINED, trained)  # last: a run without it is a broken upload, and replaced
    new = {tag: content for tag, (content, _) in later.items() if content and tags.get(tag) != content}
    for tag, content in new.items():
        client.set_tag(run_id, tag, PENDING)
        later[tag][1](client, experiment, run_id, record, seed)
        client.set_tag(run_id, tag, content)
    _attach_report(client, run_id, root, tags.get(REPORTED))
    return run_id, bool(new) or not usable


def _delete(client: Any, experiment: str, run_id: str) -> None:
    for child in client.search_runs([experiment], f"tags.`mlflow.parentRunId` = '{run_id}'"):
        client.delete_run(child.info.run_id)
    client.delete_run(run_id)


def _write_arm(client: Any, experiment: str, unit: str, record: ArmRecord, seed: int) -> str:
    """A new run of the arm, with a run of its training below; returns its id."""
    tags = {UNIT: unit, "seed": str(seed), **record.tags(seed)}
    run_id = _create(client, experiment, _run_name(record, seed), {"arm": record.name, **tags})
    _log_params(client, run_id, record.params(seed))
    _log_points(client, run_id, record.cost_points(seed))
    _log_data(client, run_id, "training rows", "training", record.data_fingerprint)
    child = _create_below(client, experiment, run_id, record, seed, "train")
    _log_points(client, child, record.history_points(seed) + record.cost_points(seed))
    for file in record.training_files(seed):
        client.log_artifact(child, str(file))
    client.set_terminated(child, "FINISHED")
    client.set_terminated(run_id, "FINISHED")
    return run_id


def _write_evaluation(client: Any, experiment: str, run_id: str, record: ArmRecord, seed: int) -> None:
    """Adds the depth curves to the arm's run, and a run of its evaluation below."""
    points = record.depth_points(seed)
    _log_points(client, run_id, points)
    _log_data(client, run_id, "validation set", "validation", record.validation_fingerprint)
    child = _create_below(client, experiment, run_id, record, seed, "evaluate")
    _log_points(client, child, points)
    client.log_artifact(child, str(record.evaluation_file))
    client.set_terminated(child, "FINISHED")


def _write_benchmarks(client: Any, experiment: str, run_id: str, record: ArmRecord, seed: int) -> None:
    """Adds benchmarks and corpora over depth to the arm's run, and a run of the stage below."""
    points = record.benchmark_points(seed)
    _log_points(client, run_id, points)
    child = _create_below(client, experiment, run_id, record, seed, "benchmark")
    _log_points(client, child, points)
    client.log_artifact(child, str(record.benchmarks_file))
    if record.contamination_file.exists():
        client.log_artifact(run_id, str(record.contamination_file))
    client.set_terminated(child, "FINISHED")


def _attach_report(client: Any, run_id: str, root: Path, attached: str | None) -> None:
    """The report and its figures with every run; a changed one takes the place of the older."""
    folder = root / "artifacts" / "report"
    if not (folder / "index.html").exists():
        return
    digest = hashlib.sha256()
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        digest.update(str(file.relative_to(folder)).encode() + file.read_bytes())
    if digest.hexdigest() != attached:
        client.log_artifacts(run_id, str(folder), "report")
        client.set_tag(run_id, REPORTED, digest.hexdigest())


def _create(client: Any, experiment: str, name: str, tags: Mapping[str, str]) -> str:
    return str(client.create_run(experiment, run_name=name, tags=dict(tags)).info.run_id)


def _create_below(client: Any, experiment: str, run_id: str, record: ArmRecord, seed: int, stage: str) -> str:
    tags = {"mlflow.parentRunId": run_id, "arm": record.name, "seed": str(seed), "stage": stage}
    return _create(client, experiment, f"{_run_name(record, seed)} {stage}", tags)


def _run_name(record: ArmRecord, seed: int) -> str:
    return record.name if len(record.seeds) == 1 else f"{record.name} seed {seed}"


def _log_params(client: Any, run_id: str, params: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    client.log_batch(run_id, params=[Param(key, value) for key, value in params.items()])


def _log_points(client: Any, run_id: str, points: Points) -> None:
    from mlflow.entities import Metric

    now = int(time.time() * 1000)
    metrics = [Metric(key, value, now, step) for key, value, step in points]
    for start in range(0, len(metrics), BATCH):
        client.log_batch(run_id, metrics=metrics[start : start + BATCH])


def _log_data(client: Any, run_id: str, name: str, context: str, fingerprint: str) -> None:
    from mlflow.entities import Dataset, DatasetInput, InputTag

    source = json.dumps({"path": "artifacts/data", "fingerprint": fingerprint})
    dataset = Dataset(name, fingerprint[:36], source_type="local", source=source)
    client.log_inputs(run_id, datasets=[DatasetInput(dataset, [InputTag("mlflow.data.context", context)])])
