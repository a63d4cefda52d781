"""What one arm asks of a Ray cluster, and whether the cluster can ever give it. Knows no Ray."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from components.config.problems import ConfigError
from components.config.schema import Runtime


@dataclass(frozen=True)
class Resources:
    """What one job asks of Ray.

    Attributes:
        workers: processes that run the job together.
        threads: CPUs, and OpenMP threads, of each.
        device: `auto` takes GPUs when the cluster has them for every worker.
        gpus: of each worker, where it runs on GPUs.
        custom: resources of each by the cluster's own names; they decide on which machines it may run.
        placement: `pack` the workers onto few machines, or `spread` them.
    """

    workers: int
    threads: int
    device: str
    gpus: float = 1.0
    custom: Mapping[str, float] = field(default_factory=dict)
    placement: str = "pack"

    @classmethod
    def of_runtime(cls, runtime: Runtime) -> Resources:
        """Those of one arm; `runtime` is the section as it holds for the arm."""
        return cls(
            workers=runtime.workers,
            threads=runtime.threads_per_worker,
            device=runtime.device,
            gpus=runtime.gpus_per_worker,
            custom=runtime.ray_resources,
            placement=runtime.placement,
        )

    def of_a_worker(self, device: str) -> dict[str, float]:
        """What one worker takes on `cpu` or `cuda`, by Ray's names."""
        return {"CPU": self.threads, **({"GPU": self.gpus} if device == "cuda" else {}), **self.custom}


def choose_device(resources: Resources, nodes: list[dict[str, Any]]) -> str:
    """The device the workers get, checked against what the cluster's machines have (an impossible request would wait for ever).

    Raises:
        ConfigError: the machines do not have what the workers take.
    """
    machines = [node["Resources"] for node in nodes if node.get("Alive", True)]
    wanted, gpus = resources.workers, sum(machine.get("GPU", 0) for machine in machines)
    if resources.device != "cpu" and _places(resources.of_a_worker("cuda"), machines) >= wanted:
        return "cuda"
    if resources.device == "cuda" and gpus < wanted * resources.gpus:
        raise ConfigError(
            f"params.yaml: runtime.workers: {wanted} workers need as many GPUs (the Ray cluster has {gpus:g}); "
            "lower it, set runtime.device to cpu, or point RAY_ADDRESS at a larger cluster"
        )
    if resources.device == "cuda" or _places(resources.of_a_worker("cpu"), machines) < wanted:
        takes = " + ".join(f"{amount:g} {name}" for name, amount in resources.custom.items())
        takes = f"{resources.threads} threads" + (f" + {takes}" if takes else "")
        cpus = sum(int(machine.get("CPU", 0)) for machine in machines)
        raise ConfigError(
            f"params.yaml: runtime.workers: {wanted} workers x {takes} do not fit on the Ray cluster ({cpus} CPUs on "
            f"{len(machines)} machines); lower workers or threads_per_worker, or change ray_resources, in runtime or runtime.arms"
        )
    return "cpu"


def _places(takes: Mapping[str, float], machines: list[dict[str, float]]) -> int:
    """Workers that the empty cluster could hold at once."""
    return sum(min(int(machine.get(name, 0) / amount + 1e-9) for name, amount in takes.items()) for machine in machines)
