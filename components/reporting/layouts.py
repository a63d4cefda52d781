"""What an expansion is called by in tables: how its streams look across each other, and what it sets otherwise than another."""

from __future__ import annotations

from components.config.schema import Arm
from components.config.streams import Streams


def layout_text(streams: Streams | None) -> str:
    """`3 of 16 cross_full at 4/9/14, 2 mirrored`; `no streams` without."""
    if streams is None:
        return "no streams"
    parts = [layers_text(streams)]
    if streams.kv == "shared":
        parts.append("shared K and V")
    if streams.n_mirrored:
        parts.append(f"{streams.n_mirrored} mirrored")
    return ", ".join(parts)


def layers_text(streams: Streams) -> str:
    """`3 of 16 cross_full at 4/9/14`, `16 of 16 cross_full`, `2 of 16 cross_local (32 tokens) at 8/16`."""
    window = "" if streams.local is None else f" ({streams.local.size} {streams.local.unit})"
    named = []
    for kind in dict.fromkeys(kind for kind in streams.layers if kind != "intra"):
        depths = [depth for depth, other in enumerate(streams.layers, start=1) if other == kind]
        where = "" if len(depths) == len(streams.layers) else f" at {'/'.join(map(str, depths))}"
        named.append(f"{len(depths)} of {len(streams.layers)} {kind}{window if kind == 'cross_local' else ''}{where}")
    return ", ".join(named) or "all intra"


def stream_settings(arm: Arm) -> dict[str, str]:
    """All that an expansion says of its streams but how many they are, as text."""
    streams, objective = arm.model.streams, arm.objective.model_dump(mode="json")
    if streams is None:
        return {}
    return {
        "layers": layers_text(streams),
        "rope_rule": streams.rope_rule,
        "kv": streams.kv,
        "supervision": streams.supervision,
        "n_mirrored": str(streams.n_mirrored),
        "replication": objective["replication"],
        "optimizer": objective["optimizer"],
        "objective": objective["inner"]["kind"],
    }


def changes_text(arm: Arm, other: Arm) -> str:
    """What an expansion sets otherwise than another of the same base and n: `supervision all`."""
    own, others = ({**stream_settings(one), **_recipe(one)} for one in (arm, other))
    return ", ".join(f"{key} {value}" for key, value in own.items() if value != others[key]) or "nothing"


def _recipe(arm: Arm) -> dict[str, str]:
    return {key: f"{value:g}" if isinstance(value, float) else str(value) for key, value in arm.training.model_dump().items()}
