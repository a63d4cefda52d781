"""Section `runtime`: where and how a study runs. No stage's identity has it: changing it re-runs nothing and changes no result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, model_validator

from components.config.problems import Problem
from components.config.section import ArmName, Count, Section, broken_rule
from components.config.validation import suggest

if TYPE_CHECKING:
    from components.config.schema import Arm

Device = Literal["auto", "cpu", "cuda"]
Gpus = Annotated[float, Field(gt=0.0, le=1.0)]
Placement = Literal["pack", "spread"]
Sharding = Literal["none", "fsdp"]
Resources = Mapping[str, Annotated[float, Field(gt=0.0)]]


class ArmRuntime(Section):
    """Keys of `runtime` that differ for one arm, repair, expansion or control; what is left out is as for all."""

    device: Device | None = None
    workers: Count | None = None
    threads_per_worker: Count | None = None
    gpus_per_worker: Gpus | None = None
    ray_resources: Resources | None = None
    placement: Placement | None = None
    sharding: Sharding | None = None
    compile: bool | None = None
    micro_batch_rows: Count | None = None


class Runtime(Section):
    """Where and how the study runs."""

    device: Device = Field(description="auto takes a GPU when there is one")
    workers: Count = Field(description="data-parallel training workers per arm")
    threads_per_worker: Count = Field(description="CPU threads of one worker; 1 unless the machine is otherwise idle")
    gpus_per_worker: Gpus = Field(default=1.0, description="of one worker on GPUs; less than 1: arms of one worker share one")
    ray_resources: Resources = Field(
        default={}, description="resources of the Ray cluster, by its names (`ray start --resources`), that each worker takes"
    )
    sharding: Sharding = Field(
        default="none", description="none: every worker has the whole model; fsdp: its part of weights, gradients and moments"
    )
    placement: Placement = Field(default="pack", description="several workers on as few machines as can be, or on as many")
    compile: bool = Field(
        default=False, description="torch.compile of every block while training: its first steps take a minute, all others less"
    )
    micro_batch_rows: Count = Field(description="rows of one forward-backward pass; more is faster until memory runs out")
    checkpoint_every_steps: Count = Field(description="a killed stage loses at most this many steps")
    keep_checkpoints: Count = Field(description="newest checkpoints kept of each run")
    log_every_steps: Count = Field(description="steps between two lines of the training history")
    parallel_stages: Count = Field(description="stages the Prefect flow runs at once")
    stage_retries: int = Field(ge=0, description="times the flow retries a failed stage")
    retry_delay_seconds: float = Field(ge=0.0, description="pause before the first retry; twice as long before each further one")
    stage_timeout_seconds: float | None = Field(
        default=None, gt=0.0, description="the flow stops a stage that runs longer, and retries it; absent: no limit"
    )
    stop_seconds: float = Field(
        default=15.0, gt=0.0, description="a training asked to stop ends its step and saves within this time, or is ended without"
    )
    experiment: str = Field(min_length=1, description="name of the MLflow experiment")
    arms: Mapping[ArmName, ArmRuntime] = Field(default={}, description="what differs for single models")

    def for_arm(self, name: str) -> Runtime:
        """The section as it holds for one arm, repair, expansion or control."""
        own = self.arms.get(name)
        changes = {} if own is None else {key: value for key in own.model_fields_set if (value := getattr(own, key)) is not None}
        return self.model_copy(update=changes)

    @model_validator(mode="after")
    def _check(self) -> Runtime:
        if not _gpus_fit(self):
            raise broken_rule("gpus_per_worker", self.gpus_per_worker, GPU_RULE, "write 1, or workers: 1")
        return self


GPU_RULE = "several workers need a whole GPU each"


def runtime_problems(runtime: Runtime, models: Mapping[str, Arm], keys: Mapping[str, str]) -> list[Problem]:
    """What does not fit together between the section and the models it runs.

    Args:
        models: those that could be resolved.
        keys: for every model of the file, the key of its batch size.
    """
    problems: list[Problem] = []
    for name in runtime.arms:
        if name not in keys:
            remedy = suggest(name, keys) or f"choose from {', '.join(keys)}"
            problems.append(Problem(f"runtime.arms.{name}", None, "no such arm, repair, expansion or control", remedy))
    for name, arm in models.items():
        own = runtime.for_arm(name)
        rows, per_pass = arm.training.batch_rows, own.workers * own.micro_batch_rows
        if rows % per_pass:
            where = f"runtime.arms.{name}" if name in runtime.arms else "runtime"
            rule = f"must be a multiple of {where}.workers x {where}.micro_batch_rows = {own.workers} x {own.micro_batch_rows}"
            problem = Problem(keys[name], rows, rule, "change one of the three")
            if problem not in problems:
                problems.append(problem)
        if own.sharding == "fsdp" and arm.objective.kind == "repair":
            rule = "does not split repairs: their trunk is frozen"
            problems.append(Problem(f"runtime.arms.{name}.sharding", "fsdp", rule, "write none for this model"))
        if own.compile and (own.sharding == "fsdp" or arm.model.experts is not None):
            rule = "does not work with sharding: fsdp, nor with a mixture of experts"
            problems.append(Problem(f"runtime.arms.{name}.compile", True, rule, "write false for this model"))
        if not _gpus_fit(own) and _gpus_fit(runtime):
            problems.append(
                Problem(f"runtime.arms.{name}.gpus_per_worker", own.gpus_per_worker, GPU_RULE, "write 1, or workers: 1")
            )
    return problems


def _gpus_fit(runtime: Runtime) -> bool:
    return runtime.workers == 1 or runtime.gpus_per_worker == 1
