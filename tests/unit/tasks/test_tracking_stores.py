"""MLflow's stores when they are busy, slow, locked or down: a training stage goes on, and a later upload fills them."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tasks.recorded import recorded_arms
from tasks.tracking import TrackingError, pages_of, upload_in_time, upload_study, without_password
from tests.unit.tasks.recorded_study import make_study, write_lock

ARMS = ("fixed", "hd-n2", "hd-n1")
WRITER = """
import sys
from pathlib import Path
from tasks.recorded import recorded_arms
from tasks.tracking import upload_study
root, arm = Path(sys.argv[1]), sys.argv[2]
upload_study(root, "study", {arm: recorded_arms(root)[arm]})
"""


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with results of three arms, and no MLflow yet."""
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    write_lock(tmp_path, make_study(tmp_path))
    return tmp_path


@contextlib.contextmanager
def silent_server() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_a_store_that_is_down_is_one_clean_error_and_is_filled_later(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://user:secret@127.0.0.1:1")
    with pytest.raises(TrackingError, match=r"MLflow \(http://\*\*\*@127\.0\.0\.1:1\): .*nothing is lost") as caught:
        upload_study(recorded, "study")
    assert "secret" not in str(caught.value)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    upload = upload_study(recorded, "study")
    assert (upload.written, sorted(upload.links)) == (len(ARMS), sorted(f"{arm}/seed-42" for arm in ARMS))


def test_a_stage_does_not_wait_for_a_store_that_is_slow(recorded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arm = {"fixed": recorded_arms(recorded)["fixed"]}
    with silent_server() as address:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
        with pytest.raises(TrackingError, match=r"MLflow took more than 0\.5 s"):
            upload_in_time(recorded, "study", arm, seconds=0.5)
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert upload_study(recorded, "study").written == len(ARMS)


def test_a_locked_database_is_one_clean_error_and_is_filled_later(recorded: Path) -> None:
    upload_study(recorded, "study", {"fixed": recorded_arms(recorded)["fixed"]})
    with contextlib.closing(sqlite3.connect(recorded / "mlruns" / "mlflow.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(TrackingError, match="locked"):
            upload_study(recorded, "study")
        other.execute("ROLLBACK")
    assert upload_study(recorded, "study").written == len(ARMS) - 1


@pytest.mark.slow
def test_stages_that_write_a_new_store_at_once_lose_nothing(recorded: Path) -> None:
    write_at_once(recorded)


@pytest.mark.slow
def test_postgresql_holds_the_runs(recorded: Path, postgresql: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgresql)
    first = upload_study(
        recorded, "study", {"fixed": recorded_arms(recorded)["fixed"]}
    )  # makes the tables, as on SQLite under a lock
    assert first.written == 1
    write_at_once(recorded)


def write_at_once(recorded: Path) -> None:
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(recorded), arm], stderr=subprocess.PIPE) for arm in ARMS]
    ends = [(writer.communicate()[1].decode(), writer.returncode) for writer in writers]
    assert [code for _, code in ends] == [0, 0, 0], ends
    again = upload_study(recorded, "study")
    assert (again.written, again.unchanged) == (0, len(ARMS)), "each arm's run is there, whole"


@pytest.fixture
def postgresql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a database on a PostgreSQL of its own; skips without the server's programs or Python's driver."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    found = shutil.which("initdb")
    folder = Path(found).resolve().parent if found else programs[-1] if programs else None
    if folder is None or find_spec("psycopg") is None:
        pytest.skip("needs PostgreSQL's initdb and postgres, and `pip install psycopg[binary]`")
    user = "nobody" if os.geteuid() == 0 else None  # PostgreSQL refuses to run as root
    data = Path(subprocess.run(["mktemp", "-d"], user=user, capture_output=True, text=True, check=True, cwd="/").stdout.strip())
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    command = [folder / "initdb", "--pgdata", data / "db", "--auth", "trust", "--username", "study"]
    subprocess.run(command, user=user, cwd=data, check=True, capture_output=True)
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={data}"
    control = [folder / "pg_ctl", "--pgdata", data / "db", "--wait", "-l", data / "log"]
    subprocess.run([*control, "-o", options, "start"], user=user, cwd=data, check=True, capture_output=True)
    try:
        yield f"postgresql://study@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "immediate", "stop"], user=user, cwd=data, check=False, capture_output=True)
        shutil.rmtree(data)


def test_a_password_is_never_shown() -> None:
    assert without_password("postgresql://me:secret@db.example/mlflow") == "postgresql://***@db.example/mlflow"
    assert without_password("sqlite:////tmp/a@b/mlflow.db") == "sqlite:////tmp/a@b/mlflow.db"
    assert pages_of("https://me:secret@mlflow.example/") == "https://mlflow.example"
    assert pages_of("sqlite:////tmp/a@b/mlflow.db") == "http://127.0.0.1:5000"
