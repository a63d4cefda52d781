"""A cluster of two machines, played by two raylets on this one: every machine gets an arm, others wait, and the cluster stays."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tasks.ray_head import private_settings
from tests.pipeline.processes import PATIENCE_SECONDS, leftovers
from tests.pipeline.workspace import Workspace

pytestmark = pytest.mark.slow

CLUSTER = """
import sys
import ray
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "resources": {"left": 1}, "include_dashboard": False})
cluster.add_node(num_cpus=1, resources={"right": 1})
ray.init(cluster.address, logging_level="ERROR")
cluster.wait_for_nodes()
print(cluster.address, flush=True)
sys.stdin.read()
print(f"{sum(node['Alive'] for node in ray.nodes())} machines alive at the end", flush=True)
ray.shutdown()
cluster.shutdown()
"""
PLACES = {"tlm-uniform": "left", "twin-full": "right"}
THIRD = "mlms-norm-distill"
MEETING = f"""
    if run.arm.name in {tuple(PLACES)}:
        import ray

        machine = ray.get_runtime_context().get_node_id()
        (run.run_dir.parents[1] / f"{{run.arm.name}}.machine").write_text(machine)
        while len(list(run.run_dir.parents[1].glob("*.machine"))) < {len(PLACES)}:
            time.sleep(0.1)
"""


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
    make_packed: Callable[[str], Workspace], cluster: tuple[subprocess.Popen[str], dict[str, str]]
) -> None:
    process, settings = cluster
    workspace = make_packed("cluster")
    places = ", ".join(f"{arm}: {{ray_resources: {{{place}: 1}}}}" for arm, place in PLACES.items())
    workspace.edit("  experiment: tiny\n", f"  experiment: tiny\n  arms: {{{places}}}\n")
    workspace.insert("tasks/train.py", "torch.set_num_threads(run.runtime.threads_per_worker)", MEETING.lstrip("\n"))
    arms = (*PLACES, THIRD)
    output = workspace.run(
        "flows.full_study", "--arms", ",".join(arms), "--stages", "train", "--max-parallel", "3", settings=settings
    )  # ends only if the first two are at work at the same time
    for arm in arms:
        assert f"Task run 'train@{arm}' - Finished in state Completed()" in output
    assert len({path.read_text() for path in workspace.root.glob("runs/*.machine")}) == len(PLACES)
    assert process.poll() is None, "the cluster is not the study's to end"
    said, _ = process.communicate("", timeout=PATIENCE_SECONDS)
    assert said.strip() == "2 machines alive at the end"
    assert not leftovers("ray")
