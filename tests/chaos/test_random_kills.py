"""SIGKILL at random moments, inside steps and inside saves: the finished run is bit for bit an undisturbed one."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from components.data.stream import PackedRows
from tests.chaos.victim import STEPS, n_batches, train, victim_run

pytestmark = pytest.mark.slow

KILLS = 8
LATE = 5  # steps that a run does at most before it is killed after all, on a machine that is busy


@pytest.fixture(scope="module")
def server() -> multiprocessing.context.BaseContext:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.chaos.victim"])
    return context


def run_and_kill(server: multiprocessing.context.BaseContext, root: Path, moments: random.Random) -> None:
    """Kills the run some steps from now, anywhere within a step or a save; all kills together leave steps to do."""
    wanted = n_batches(root) + moments.randrange(1, STEPS // KILLS - LATE)
    process = server.Process(target=train, args=(root, wanted + LATE))
    process.start()
    deadline = time.monotonic() + 300
    while n_batches(root) < wanted and process.is_alive() and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(moments.random() * 0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert process.exitcode == -signal.SIGKILL


def files(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(victim_run(root).output_dir.iterdir())}


def test_killed_again_and_again_a_run_ends_with_the_same_files_and_rows(
    tmp_path: Path, server: multiprocessing.context.BaseContext, moments: random.Random
) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    for root in (straight, killed):
        root.mkdir()
        victim_run(root)  # packs the rows
    for _ in range(KILLS):
        run_and_kill(server, killed, moments)
    for root in (straight, killed):
        process = server.Process(target=train, args=(root,))
        process.start()
        process.join()
        assert process.exitcode == 0
    assert files(killed) == files(straight)

    lines = [json.loads(line) for line in (killed / "batches.jsonl").read_text().splitlines()]
    assert len(lines) > STEPS  # steps since the last checkpoint were done again
    rows_of = {line["step"]: line["rows"] for line in lines}
    assert all(line["rows"] == rows_of[line["step"]] for line in lines)
    n_rows = len(PackedRows.open(killed / "data" / "train"))
    order = [row for step in range(STEPS) for row in rows_of[step]]
    n_epochs = len(order) // n_rows
    assert n_epochs >= 5
    for epoch in range(n_epochs):
        assert set(Counter(order[epoch * n_rows : (epoch + 1) * n_rows]).values()) == {1}
