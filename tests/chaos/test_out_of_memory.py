"""Want of memory, as an allocation that fails and as a worker that the system kills: what was it, what to do, nothing lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from components.training.run import Progress, run_training
from tests.toys import ROOT, telescopic, toy_run

pytestmark = pytest.mark.slow

LIMITED = """
import resource, sys
from pathlib import Path
import torch
import components.training.run as run_module
from tasks.command import run_command
from tests.toys import telescopic, toy_run

original = run_module.train_step
def train_step(state, *args):
    if state.step == 5:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (32 << 20),) * 2)
        torch.empty(256 << 20)  # as a step does that needs too much
    return original(state, *args)
run_module.train_step = train_step
run_command(lambda: run_module.run_training(toy_run(Path(sys.argv[1]), telescopic("uniform")), lambda _: None))
"""

KILLED = """
import os, signal, sys
from pathlib import Path
from tasks.command import run_command
from tasks.ray_train import Resources, ray_session

def main():
    with ray_session(Resources(workers=1, threads=1, device="cpu")) as session:
        session.run(lambda report: os.kill(os.getpid(), signal.SIGKILL), Path(sys.argv[1]), print)
run_command(main)
"""


def run_script(script: str, folder: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-c", script, str(folder)], cwd=ROOT, env={**environment, "OMP_NUM_THREADS": "1", **settings},
        stderr=subprocess.PIPE, text=True, check=False, timeout=1200,
    )  # fmt: skip


def test_a_step_without_memory_ends_in_one_line_and_the_next_run_goes_on(tmp_path: Path) -> None:
    straight, run, seen = (
        toy_run(tmp_path / "straight", telescopic()),
        toy_run(tmp_path / "limited", telescopic()),
        list[Progress](),
    )
    run_training(straight, lambda _: None)
    done = run_script(LIMITED, tmp_path / "limited")
    assert done.returncode == 2, done.stderr
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("error: step 5: out of memory with runtime.micro_batch_rows 4 (")
    assert "lower runtime.micro_batch_rows" in line
    run_training(run, seen.append)
    assert seen[0].resumed_from == 3
    assert [p.read_bytes() for p in sorted(run.output_dir.iterdir())] == [
        p.read_bytes() for p in sorted(straight.output_dir.iterdir())
    ]


def test_a_worker_that_is_killed_every_time_says_what_to_do(tmp_path: Path) -> None:
    status = tmp_path / "status.json"
    done = run_script(KILLED, tmp_path, STUDY_STATUS_FILE=str(status))
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("starting again from the newest checkpoint") == 2
    assert "Traceback" not in done.stderr
    found = json.loads(status.read_text())
    assert found["code"] == 1  # not final: a retry may find a machine with more memory
    assert "was lost (WorkerCrashedError), 3 times; something outside ended it, most often the system for want" in found["message"]
    assert "runtime.micro_batch_rows" in found["message"]
