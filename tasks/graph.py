"""The stages of `dvc.yaml` as DVC sees them: what each needs, what is stale, and which of them a flow is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from components.config.problems import ConfigError
from components.config.validation import suggest

BUSY_SECONDS = 5.0  # between two looks whether another DVC has ended


@dataclass(frozen=True)
class StudyGraph:
    """The stages of `dvc.yaml`, upstream before downstream, and what each needs.

    Attributes:
        needs: the stages that each stage depends on directly.
        stale: stages whose outputs are missing or older than what they depend on, without what follows from them.
        has_remote: DVC has a place that others may have pushed results to.
    """

    needs: Mapping[str, frozenset[str]]
    stale: frozenset[str]
    has_remote: bool = False

    def upstream(self, names: Iterable[str]) -> frozenset[str]:
        """The stages and everything they depend on."""
        found: set[str] = set()
        queue = list(names)
        while queue:
            name = queue.pop()
            if name not in found:
                found.add(name)
                queue += self.needs[name]
        return frozenset(found)

    def select(self, arms: Iterable[str] = (), stages: Iterable[str] = ()) -> tuple[str, ...]:
        """The stages to run, in order: those of the arms and kinds asked for, and what they depend on. Nothing asked for: all.

        Args:
            arms: names of arms; their stages only.
            stages: kinds (`train`) or whole names (`train@twin-full`).

        Raises:
            ConfigError: an arm or a stage that does not exist.
        """
        chosen = self.upstream(asked_for(self.needs, arms, stages))
        return tuple(name for name in self.needs if name in chosen)

    def to_run(self, selected: Iterable[str]) -> tuple[str, ...]:
        """Of the selected stages, those that are stale, and those that follow from them."""
        running: list[str] = []
        for name in selected:
            if name in self.stale or self.needs[name] & set(running):
                running.append(name)
        return tuple(running)

    def ready(self, waiting: Iterable[str], unfinished: Iterable[str]) -> list[str]:
        """Of the stages that wait, those that need none of the unfinished ones; what most stages in a row wait for comes first."""
        blocked = set(unfinished)
        free = [name for name in self.needs if name in set(waiting) and not self.needs[name] & blocked]
        return sorted(free, key=self._stages_behind, reverse=True)

    def _stages_behind(self, name: str) -> int:
        """Length of the longest chain of stages that follow from this one."""
        following = [other for other, needs in self.needs.items() if name in needs]
        return 1 + max(map(self._stages_behind, following)) if following else 0


def asked_for(names: Iterable[str], arms: Iterable[str], stages: Iterable[str]) -> list[str]:
    """Of the names of stages, those of the arms and of the kinds, or whole names, asked for; all when nothing is.

    Raises:
        ConfigError: an arm or a stage that does not exist, or arms that have none of the stages.
    """
    names, arms, stages = tuple(names), tuple(arms), tuple(stages)
    _check_names("arms", arms, {arm_of(name) for name in names} - {""})
    _check_names("stages", stages, {kind_of(name) for name in names} | set(names))
    wanted = [
        name for name in names if (not arms or arm_of(name) in arms) and (not stages or name in stages or kind_of(name) in stages)
    ]
    if not wanted:
        raise ConfigError(f"arms {', '.join(arms)}: have none of the stages {', '.join(stages)}; leave one of the two out")
    return wanted


def kind_of(stage: str) -> str:
    """`train` of `train@twin-full`."""
    return stage.split("@", 1)[0]


def arm_of(stage: str) -> str:
    """`twin-full` of `train@twin-full`; empty for a stage of no arm."""
    return stage.partition("@")[2]


def _check_names(what: str, names: Iterable[str], known: set[str]) -> None:
    unknown = sorted(set(names) - known)
    if unknown:
        close = suggest(unknown[0], known)
        there = f"there are {', '.join(sorted(known))}" + (f"; {close}" if close else "")
        raise ConfigError(f"{what}: no {', '.join(unknown)} in dvc.yaml; {there}")


def study_graph(root: Path, say: Callable[[str], None]) -> StudyGraph:
    """The graph and its stale stages as DVC sees them, once no other DVC works on the same files.

    Raises:
        ConfigError: `dvc.yaml` or its parameters cannot be read.
    """
    from dvc.exceptions import DvcException
    from dvc.lock import LockError

    while True:
        try:
            return _read_graph(root)
        except LockError as error:
            say(f"another DVC works on the same files; waiting for it: {error}")
            time.sleep(BUSY_SECONDS)
        except DvcException as error:
            raise ConfigError(f"dvc.yaml: {error}") from error


def _read_graph(root: Path) -> StudyGraph:
    import networkx
    from dvc.repo import Repo

    with Repo(str(root), _wait_for_lock=True) as repo:
        graph = repo.index.graph
        order = list(networkx.lexicographical_topological_sort(graph.reverse(), key=_file_order(repo.index.stages)))
        needs = {stage.addressing: frozenset(needed.addressing for needed in graph.successors(stage)) for stage in order}
        stale = frozenset(repo.status()) & frozenset(needs)
        return StudyGraph(needs, stale, has_remote=bool(repo.config["core"].get("remote")))


def _file_order(stages: Iterable[Any]) -> Callable[[Any], int]:
    """Ties of the topological order go to the stage that `dvc.yaml` names first."""
    positions = {stage.addressing: i for i, stage in enumerate(stages)}
    return lambda stage: positions[stage.addressing]
