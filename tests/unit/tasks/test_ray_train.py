"""What the Ray adapter decides without Ray running: devices and capacity, dead addresses, failures of a group, progress."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path

import pytest

from components.config.problems import ConfigError, DataError
from tasks import ray_train, supervisor
from tasks.command import MachineError
from tasks.ray_head import START_ATTEMPTS, probe_address, ray_head
from tasks.ray_resources import Resources, choose_device
from tasks.ray_train import RaySession, WorkerLostError


def machine(cpus: int, gpus: int = 0, alive: bool = True) -> dict:
    return {"Alive": alive, "Resources": {"CPU": float(cpus), **({"GPU": float(gpus)} if gpus else {})}}


@pytest.mark.parametrize(
    ("device", "workers", "nodes", "expected"),
    [
        ("auto", 1, [machine(2)], "cpu"),
        ("auto", 1, [machine(2, gpus=1)], "cuda"),
        ("auto", 2, [machine(2, gpus=1)], "cpu"),
        ("auto", 2, [machine(2, gpus=1), machine(2, gpus=1)], "cuda"),
        ("cpu", 1, [machine(2, gpus=1)], "cpu"),
        ("cuda", 1, [machine(2, gpus=1)], "cuda"),
    ],
)
def test_device_follows_setting_and_cluster(device: str, workers: int, nodes: list, expected: str) -> None:
    assert choose_device(Resources(workers, threads=1, device=device), nodes) == expected


def test_gpus_that_are_not_there_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"runtime\.workers: 2 workers need as many GPUs \(the Ray cluster has 0\)"):
        choose_device(Resources(2, threads=1, device="cuda"), [machine(8)])


def test_worker_must_fit_on_one_machine() -> None:
    with pytest.raises(ConfigError, match="1 workers x 3 threads do not fit"):
        choose_device(Resources(1, threads=3, device="cpu"), [machine(2), machine(2)])


def test_half_a_gpu_is_enough_for_an_arm_that_shares_one() -> None:
    half = Resources(1, threads=1, device="auto", gpus=0.5)
    assert choose_device(half, [machine(2, gpus=1)]) == "cuda"
    assert half.of_a_worker("cuda") == {"CPU": 1, "GPU": 0.5}


def test_resources_that_only_one_machine_has_decide_what_fits() -> None:
    big = {"Alive": True, "Resources": {"CPU": 4.0, "big": 2.0}}
    assert choose_device(Resources(2, threads=1, device="cpu", custom={"big": 1.0}), [big, machine(64)]) == "cpu"
    with pytest.raises(ConfigError, match=r"3 workers x 1 threads \+ 1 big do not fit .*68 CPUs on 2 machines.*ray_resources"):
        choose_device(Resources(3, threads=1, device="cpu", custom={"big": 1.0}), [big, machine(64)])


def test_dead_machines_do_not_count() -> None:
    with pytest.raises(ConfigError, match="2 CPUs on 1 machines"):
        choose_device(Resources(4, threads=1, device="cpu"), [machine(2), machine(8, alive=False)])


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "nonsense", "127.0.0.1:port", "127.0.0.1:99999999"])
def test_dead_address_is_a_config_error(address: str) -> None:
    with pytest.raises(ConfigError, match="RAY_ADDRESS: no Ray answers"):
        probe_address(address)


def test_live_address_passes() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        probe_address(f"ray://127.0.0.1:{server.getsockname()[1]}")


def test_mistake_of_the_user_comes_before_a_lost_worker() -> None:
    failures = {0: RuntimeError("[gloo/transport] Connection closed by peer"), 1: DataError("rows.arrow: truncated")}
    assert ray_train._group_failure(failures) is failures[1]


def test_survivors_of_a_lost_worker_are_not_blamed() -> None:
    failure = ray_train._group_failure({1: RuntimeError("[gloo/transport/tcp/pair.cc] Connection closed by peer")})
    assert isinstance(failure, WorkerLostError)


def test_error_of_the_job_stays_what_it_is() -> None:
    error = ValueError("shapes differ")
    assert ray_train._group_failure({0: error}) is error


def test_every_line_of_progress_arrives_in_order(tmp_path: Path) -> None:
    seen: list[int] = []
    with ray_train._followed(tmp_path / "progress.jsonl", lambda line: seen.append(line["step"])) as path:
        write = ray_train._writer(path)
        for step in range(500):
            write({"step": step})
    assert seen == list(range(500))
    assert not path.exists()


@pytest.mark.parametrize("missed", [START_ATTEMPTS - 1, START_ATTEMPTS])
def test_ray_of_a_stage_that_misses_its_start_is_started_again_and_in_the_end_said(
    monkeypatch: pytest.MonkeyPatch, missed: int
) -> None:
    attempts = []

    def connect(session: RaySession) -> None:
        attempts.append(session)
        if len(attempts) <= missed:
            raise MachineError("Ray did not start")

    monkeypatch.setattr(RaySession, "_connect_once", connect)
    says = pytest.raises(MachineError, match="Ray did not start") if missed == START_ATTEMPTS else contextlib.nullcontext()
    with says:
        RaySession(Resources(workers=1, threads=1, device="cpu"))
    assert len(attempts) == START_ATTEMPTS


def test_head_that_misses_its_start_on_a_busy_machine_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (
        "import sys, time; from pathlib import Path\n"
        f"mark = Path({str(tmp_path / 'mark')!r})\n"
        "if not mark.exists(): mark.touch(); sys.exit('The current node timed out during startup')\n"
        "print('Ray runtime started', flush=True); time.sleep(3600)\n"
    )
    start = supervisor.start_supervised
    monkeypatch.setattr(supervisor, "start_supervised", lambda command, **rest: start([sys.executable, "-c", script], **rest))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with ray_head():
        assert os.environ["RAY_ADDRESS"].startswith("127.0.0.1:")
    assert "RAY_ADDRESS" not in os.environ
