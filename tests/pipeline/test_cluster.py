"""A cluster of two machines, played by two raylets on this one: every machine gets an arm, others wait, and the cluster stays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tasks.ray_head import private_settings
from tests.pipeline.processes import leftovers
from tests.pipeline.workspace import Workspace

pytestmark = pytest.mark.slow

CLUSTER = """
import sys, threading, time
import ray
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"left": 1}, "include_dashboard": False})
cluster.add_node(num_cpus=1, resources={"right": 1})
ray.init(cluster.address, logging_level="ERROR")
cluster.wait_for_nodes()
print(cluster.address, flush=True)
asked_to_end = threading.Event()
threading.Thread(target=lambda: (sys.stdin.read(), asked_to_end.set()), daemon=True).start()
most = 0
while not asked_to_end.wait(0.05):
    free = ray.available_resources()
    most = max(most, ("left" not in free) + ("right" not in free))
print(f"{most} machines at work at once, {sum(node['Alive'] for node in ray.nodes())} alive at the end", flush=True)
ray.shutdown()
cluster.shutdown()
"""
ARMS = ("tlm-uniform", "twin-full", "mlms-norm-distill")
PLACES = "{tlm-uniform: {ray_resources: {left: 1}}, twin-full: {ray_resources: {right: 1}}}"


@pytest.fixture
def cluster() -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    """The process that holds the cluster, and the settings that lead to it."""
    settings = private_settings()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")} | settings
    address = ""
    for _ in range(3):  # Ray gives a machine 30 s to start, which a busy one may miss
        process = subprocess.Popen(
            [sys.executable, "-c", CLUSTER], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        if address := process.stdout.readline().strip():
            break
        process.wait()
    assert address
    try:
        yield process, {**settings, "RAY_ADDRESS": address}
    finally:
        process.kill()
        process.wait()


def test_two_machines_train_an_arm_each_and_a_third_arm_waits(
    make_workspace: Callable[[str], Workspace], cluster: tuple[subprocess.Popen[str], dict[str, str]]
) -> None:
    process, settings = cluster
    workspace = make_workspace("cluster")
    workspace.edit("  experiment: tiny\n", f"  experiment: tiny\n  arms: {PLACES}\n")
    workspace.edit("steps: 24", "steps: 3000")  # longer than the arms' starts are apart
    output = workspace.run(
        "flows.full_study", "--arms", ",".join(ARMS), "--stages", "train", "--max-parallel", "3", settings=settings
    )
    for arm in ARMS:
        assert f"Task run 'train@{arm}' - Finished in state Completed()" in output
    assert process.poll() is None, "the cluster is not the study's to end"
    said, _ = process.communicate("", timeout=60)
    assert said.strip() == "2 machines at work at once, 2 alive at the end"
    assert not leftovers("ray")


def test_a_place_that_no_machine_has_is_said_at_once(
    make_workspace: Callable[[str], Workspace], cluster: tuple[subprocess.Popen[str], dict[str, str]]
) -> None:
    _, settings = cluster
    workspace = make_workspace("nowhere")
    workspace.edit("  experiment: tiny\n", "  experiment: tiny\n  arms: {twin-full: {ray_resources: {middle: 1}}}\n")
    output = workspace.run("tasks.train", "--arm", "twin-full", settings=settings, expected=2)
    assert "1 workers x 1 threads + 1 middle do not fit on the Ray cluster" in output
