"""The parameters that flows share, checked before anything starts: a mistake is one clean line, not a failed run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from components.config.loader import find_arm, read_yaml
from components.config.problems import ConfigError
from components.config.schema import Study
from tasks.graph import asked_for, kind_of
from tasks.scale import check_file, preset

ROOT = Path(__file__).resolve().parents[1]
PARAMS = ROOT / "params.yaml"
TRAINING_STAGES = ("train", "repair", "expand", "control")
EVALUATION_STAGES = ("evaluate", "evaluate-backbone", "evaluate-repair", "evaluate-expansion", "evaluate-control")
PROFILE_STAGES = ("profile", "profile-backbone", "profile-repair", "profile-expansion", "profile-control")  # run alone: they time


def check_parameters(
    scale: str | None = None,
    arms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    stages: Sequence[str] | None = None,
    max_parallel: int | None = None,
    arm: str | None = None,
    rule: Callable[[Study, str], object] | None = None,
) -> Path:
    """The parameter file that the run would use, after everything about it and about the other parameters was checked.

    Args:
        rule: what a flow asks of its `arm`, a ConfigError where that is not so.

    Raises:
        ConfigError: the first that is wrong, of the file, the names of arms and stages, the seeds and the number.
    """
    source = PARAMS if scale is None else preset(scale, ROOT)
    study = check_file(source, seeds or ())
    if arm is not None:
        find_arm(study, arm)
        if rule is not None:
            rule(study, arm)
    if max_parallel is not None and max_parallel < 1:
        raise ConfigError(f"max_parallel {max_parallel}: must be at least 1; leave it out for runtime.parallel_stages")
    asked_for(stage_names(study), arms or (), stages or ())
    return source


def check_trained(study: Study, arm: str) -> None:
    """Raises ConfigError when the arm is none that is trained."""
    names = stage_names(study)
    asked_for(names, [arm], sorted({kind_of(name) for name in names}.intersection(TRAINING_STAGES)))


def stage_names(study: Study) -> list[str]:
    """The stages of `dvc.yaml` as they would be for this study."""
    stages: dict[str, Any] = read_yaml(ROOT / "dvc.yaml")["stages"]
    names: list[str] = []
    for kind, stage in stages.items():
        section = str(stage["foreach"]).strip("${}") if "foreach" in stage else None
        names += [kind] if section is None else [f"{kind}@{name}" for name in getattr(study, section)]
    return names
