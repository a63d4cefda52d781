"""Reads how fast the arms' models are, and refuses what does not belong to `params.yaml`.

Easy to get wrong: clock readings of two machines, numbers of threads or dtypes have no common axis; the profiles that most arms
have in common are kept, the others are named with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from components.config.problems import ResultsError
from components.config.schema import Arm, Study
from components.results import ArmProfile, read_record


@dataclass(frozen=True)
class Profiles:
    """Profiles of one machine.

    Attributes:
        by_arm: in the order of `params.yaml`.
        left_out: evaluated arms without a profile that compares, and why.
    """

    by_arm: Mapping[str, ArmProfile] = field(default_factory=dict)
    left_out: Mapping[str, str] = field(default_factory=dict)


def read_profiles(study: Study, arms: Iterable[str], folder: Path) -> Profiles:
    """The profiles of the evaluated arms.

    Raises:
        ResultsError: a file is of another version or does not belong to the parameters.
    """
    found: dict[str, ArmProfile] = {}
    left_out: dict[str, str] = {}
    for name in arms:
        path = folder / f"{name}.json"
        if not path.exists():
            left_out[name] = "not profiled"
            continue
        found[name] = read_record(ArmProfile, path)
        _check_belongs(found[name], study, study.models[name], path)
    machines = {name: machine_text(profile) for name, profile in found.items()}
    most = Counter(machines.values()).most_common(1)[0][0] if machines else ""
    left_out |= {name: f"profiled on {machine}" for name, machine in machines.items() if machine != most}
    return Profiles({name: profile for name, profile in found.items() if name not in left_out}, left_out)


def machine_text(profile: ArmProfile) -> str:
    """`Example CPU, threads: 1, float32`: what has to be equal for clock readings to compare."""
    threads = f", threads: {profile.threads}" if profile.device_kind == "cpu" else ""
    return f"{profile.device}{threads}, {profile.dtype}"


def _check_belongs(profile: ArmProfile, study: Study, arm: Arm, path: Path) -> None:
    loads = {(cell.batch_size, cell.context_tokens) for cell in profile.cells}
    wanted = {(batch, context) for batch in study.profile.batch_sizes for context in study.profile.context_tokens}
    pairs = {
        "arm": (profile.arm, arm.name),
        "blocks": (profile.n_blocks, arm.model.n_blocks),
        "dtype": (profile.dtype, study.profile.dtype),
        "batch sizes and contexts": (sorted(loads), sorted(wanted)),
    }
    for what, (got, expected) in pairs.items():
        if got != expected:
            raise ResultsError(f"{path}: {what} {got}, but params.yaml says {expected}; run `dvc repro` to bring it up to date")
    if profile.seed not in arm.training.seeds:
        raise ResultsError(f"{path}: seed {profile.seed}, but params.yaml has {list(arm.training.seeds)}; run `dvc repro`")
