"""Which models of a Hidden Decoding study compare: an expansion with its controls, and expansions that differ in one setting.

Easy to get wrong: two models compare only when they saw as many tokens, start from the same base and differ in nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from components.evaluation.findings import ArmEvidence, Role

Arms = tuple[ArmEvidence, ...]
Pair = tuple[ArmEvidence, ArmEvidence]


def _is_expansion(objective: Mapping[str, Any]) -> bool:
    return objective.get("kind") == "hidden_decoding" and objective.get("control") is None


def _is_control(equal: str) -> Callable[[Mapping[str, Any]], bool]:
    def is_played_by(objective: Mapping[str, Any]) -> bool:
        control = objective.get("control")
        return isinstance(control, Mapping) and control.get("equal") == equal

    return is_played_by


EXPANSION = Role("an expansion to several streams", _is_expansion)
EQUAL_TOKENS = Role("its base trained on as many tokens without streams", _is_control("tokens"), has_any_shape=True)
EQUAL_FLOPS = Role("its base trained with as many FLOPs without streams", _is_control("flops"), has_any_shape=True)


def n_streams_of(arm: ArmEvidence) -> int:
    """How many streams it was made for; 0 for one that draws them."""
    return 0 if arm.streams is None or arm.streams["sampled"] is not None else int(arm.streams["n_streams"])


def with_controls(n_streams: int, expansions: Arms, controls: Arms) -> list[Pair]:
    """Expansions to n streams, each with the control that names it; one that also changed the objective has none."""
    return [
        (arm, control)
        for arm in expansions
        if n_streams_of(arm) == n_streams
        for control in controls
        if control.objective["control"]["of"] == arm.name and control.objective["inner"] == arm.objective["inner"]
    ]


def of_one_base(first: ArmEvidence, second: ArmEvidence) -> bool:
    """Whether both start from the same model and minimise the same."""
    return all(first.objective[key] == second.objective[key] for key in ("base", "inner"))


def differing_in(key: str, ours: object, other: object, arms: Arms) -> list[Pair]:
    """Pairs of expansions that differ in one setting alone: the first has the value `ours`, the second `other`."""
    return [
        (first, second)
        for first in arms
        for second in arms
        if _settings(first).get(key) == ours
        and _settings(second).get(key) == other
        and settings_but(first, key) == settings_but(second, key)
    ]


def _settings(arm: ArmEvidence) -> dict[str, Any]:
    streams = dict(arm.streams or {})
    if streams.get("rope_rule") == "physical" and set(streams["layers"]) == {"cross_full"}:
        streams["rope_rule"] = "by_layer"  # the same positions
    return {**streams, **{key: arm.objective[key] for key in ("base", "inner", "replication", "optimizer")}, "tokens": arm.tokens}


def settings_but(arm: ArmEvidence, *keys: str) -> dict[str, Any]:
    return {name: value for name, value in _settings(arm).items() if name not in keys}


def by_cross_layers(expansions: Arms) -> list[ArmEvidence]:
    """The largest group of expansions that differ in their number of cross_full layers alone, fewest first, one of each number."""
    groups: dict[str, dict[int, ArmEvidence]] = {}
    for arm in expansions:
        layers = list((arm.streams or {}).get("layers", ()))
        if n_streams_of(arm) and set(layers) <= {"intra", "cross_full"}:
            group = groups.setdefault(str(sorted(settings_but(arm, "layers").items())), {})
            group.setdefault(layers.count("cross_full"), arm)
    largest = max(groups.values(), key=len, default={})
    return [largest[count] for count in sorted(largest)]


def n_cross_of(arm: ArmEvidence) -> int:
    return list((arm.streams or {})["layers"]).count("cross_full")


def _per_token(arm: ArmEvidence, what: float | None) -> float | None:
    return what / arm.tokens if what is not None and arm.tokens else None


def cost_ratios(arm: ArmEvidence, base: ArmEvidence) -> tuple[float, float] | None:
    """Time and FLOPs per token, as multiples of the base's; None when not known in one unit."""
    hours = _per_token(arm, arm.device_hours), _per_token(base, base.device_hours)
    flops = _per_token(arm, arm.flops), _per_token(base, base.flops)
    if not all((*hours, *flops)) or arm.cost_unit != base.cost_unit:
        return None
    return float(hours[0] or 0.0) / float(hours[1] or 1.0), float(flops[0] or 0.0) / float(flops[1] or 1.0)
