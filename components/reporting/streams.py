"""The report's chapter on Hidden Decoding: gains over the controls, ablations, every (depth, streams) cell, and what streams cost.

Easy to get wrong: a gain over the base alone says nothing, for the base has seen fewer tokens. Gains are quoted against the base
trained further without streams, on as many tokens and with as many FLOPs.
"""

from __future__ import annotations

from collections.abc import Sequence

from components.config.schema import Arm, ControlBlock
from components.reporting import formats
from components.reporting.analysis import Analysis
from components.reporting.layouts import changes_text, stream_settings
from components.reporting.load import ArmResults
from components.reporting.streams_cost import decode_grid_table, decode_share_table, root_of, stream_cost_table
from components.reporting.streams_grid import cells_of, expansions_of, grid_cells, grid_table
from components.reporting.tables import Row, Table, difference_cell

EQUALS = ("tokens", "flops")


def streams_tables(analysis: Analysis) -> tuple[Table, ...]:
    """The chapter's tables; none without an evaluated expansion."""
    expansions = expansions_of(analysis)
    if not expansions:
        return ()
    return (
        *level_tables(analysis, expansions),
        gain_table(analysis, expansions),
        *ablation_tables(analysis, expansions),
        *second_dial_tables(analysis, expansions),
        grid_table(analysis, expansions),
        stream_cost_table(analysis, expansions),
        *decode_share_table(analysis, expansions),
        *decode_grid_table(analysis, [(cell.name, cell.n_streams) for cell in grid_cells(analysis, expansions)]),
    )


def level_tables(analysis: Analysis, expansions: Sequence[ArmResults]) -> tuple[Table, ...]:
    """NLL of the full model at every n, beside its controls; none when no expansion has streams."""
    evaluated = {arm.name: arm for arm in analysis.arms}
    chain = [group[0] for group in _by_base_and_n(expansions).values()]
    roots = dict.fromkeys(root_of(arm.arm, analysis.results.study.models).name for arm in chain)
    rows = [(name, "1", _level(analysis, evaluated[name]), *[formats.MISSING] * 2) for name in roots if name in evaluated]
    for arm in chain:
        own = {equal: evaluated.get(name) for name, equal in _controls_of(analysis, arm)}
        beside = (_level(analysis, control, control.name) if (control := own.get(equal)) else formats.MISSING for equal in EQUALS)
        rows.append((arm.name, str(arm.n_streams), _level(analysis, arm), *beside))
    columns = ("model", "n", "NLL", "on as many tokens without streams", "with as many FLOPs without streams")
    note = (
        "Nats per token of the full model, and the interval of each number alone. What streams gain is in the next table: its "
        "intervals are of paired differences, and much narrower."
    )
    return (Table("NLL at every number of streams", columns, tuple(rows), note, (0, 3, 4)),) if chain else ()


def _level(analysis: Analysis, arm: ArmResults, name: str = "") -> str:
    """`hd-n1: 3.321 [3.290, 3.352]`, of the full model."""
    band = analysis.bands(arm)[-1]
    number, low, high = (formats.number_text(value) for value in (arm.full.nll_nats, band.low, band.high))
    return (f"{name}: " if name else "") + (f"{number} [{low}, {high}]" if band.is_known else number)


def gain_table(analysis: Analysis, expansions: Sequence[ArmResults]) -> Table:
    """NLL of every expansion, with or without streams, minus its controls', at the exits."""
    evaluated = {arm.name: arm for arm in analysis.arms}
    exits = _exits(expansions)
    rows: list[Row] = []
    for arm in expansions:
        for name, equal in _controls_of(analysis, arm):
            known = evaluated.get(name)
            cells = [formats.MISSING if known is None else _difference(analysis, arm, known, depth) for depth in exits]
            rows.append((arm.name, str(arm.n_streams), f"{name}: equal {equal}", *cells))
    columns = ("expansion", "n", "control", *(f"NLL at k = {depth}" for depth in exits))
    note = "Nats per token, expansion minus control: below 0 the expansion won. Intervals as in the differences between arms."
    return Table("Gain of streams over their controls", columns, tuple(rows), note, (0, 2))


def ablation_tables(analysis: Analysis, expansions: Sequence[ArmResults]) -> tuple[Table, ...]:
    """One table for each base and n with several expansions: NLL minus that of the first, at the exits."""
    exits = _exits(expansions)
    tables = []
    for (base, n), (first, *others) in _by_base_and_n(expansions).items():
        rows = tuple(
            (arm.name, changes_text(arm.arm, first.arm), *(_difference(analysis, arm, first, depth) for depth in exits))
            for arm in others
        )
        if rows:
            columns = ("expansion", "what differs", *(f"NLL at k = {depth}" for depth in exits))
            note = f"Nats per token, minus {first.name}; all start from {base}."
            tables.append(Table(f"Ablations at n = {n}: differences to {first.name}", columns, rows, note, (0, 1)))
    return tuple(tables)


def _by_base_and_n(expansions: Sequence[ArmResults]) -> dict[tuple[str | None, int], list[ArmResults]]:
    """The expansions with streams, those that draw them left out; the first of a group is what the others are ablations of."""
    groups: dict[tuple[str | None, int], list[ArmResults]] = {}
    for arm in expansions:
        if arm.arm.model.streams is not None and arm.arm.model.streams.sampled is None:
            groups.setdefault((arm.arm.base, arm.n_streams), []).append(arm)
    return groups


def second_dial_tables(analysis: Analysis, expansions: Sequence[ArmResults]) -> tuple[Table, ...]:
    """What it costs that one set of weights serves several n: its NLL minus that of the model made for that n, at the exits."""
    exits = _exits(expansions)
    rows: list[Row] = []
    for arm in expansions:
        streams = arm.arm.model.streams
        if streams is None or streams.sampled is None:
            continue
        for n in [cell.n_streams for cell in cells_of(arm)]:
            other = _made_for(analysis, arm, n)
            if other is None:
                rows.append((arm.name, str(n), "none", *[formats.MISSING] * (2 + len(exits))))
                continue
            tokens = " and ".join(formats.count_text(_tokens_since_root(analysis, one)) for one in (arm, other))
            area = difference_cell(analysis.area_difference(arm, False, other, n))
            cells = [_difference(analysis, arm, other, depth, n) for depth in exits]
            rows.append((arm.name, str(n), other.name, tokens, area, *cells))
    columns = ("one set of weights", "n", "model for that n", "tokens of both", "AULB", *(f"NLL at k = {depth}" for depth in exits))
    note = (
        "Nats per token, one set of weights minus the model made for that n: above 0 is what the second dial costs. The model for "
        "n = 1 is the control of as many tokens, or the base when there is none. Tokens: since the arm that both come from. AULB: "
        "over all depths at that n."
    )
    return (Table("What one set of weights for every n costs", columns, tuple(rows), note, (0, 2, 3)),) if rows else ()


def _made_for(analysis: Analysis, arm: ArmResults, n_streams: int) -> ArmResults | None:
    """The model that was trained for that n alone, from the same root, the most like the arm in its settings, then in tokens."""
    study = analysis.results.study
    root, settings, tokens = root_of(arm.arm, study.models), stream_settings(arm.arm), _tokens_since_root(analysis, arm)

    def is_made_for(other: ArmResults) -> bool:
        streams, control = other.arm.model.streams, _control(other.arm)
        is_kin = root_of(other.arm, study.models).name == root.name and _minimised(other.arm) == _minimised(arm.arm)
        if not is_kin or (streams is not None and streams.sampled is not None):
            return False
        if n_streams == 1:
            return streams is None and (control is None or control.equal == "tokens")
        return streams is not None and streams.n_streams == n_streams

    def distance(other: ArmResults) -> tuple[int, int]:
        differing = sum(settings[key] != value for key, value in stream_settings(other.arm).items())
        return differing, abs(_tokens_since_root(analysis, other) - tokens)

    return min((other for other in analysis.arms if is_made_for(other)), key=distance, default=None)


def _minimised(arm: Arm) -> object:
    """The objective that an expansion keeps or got; an arm's own."""
    return getattr(arm.objective, "inner", arm.objective)


def _tokens_since_root(analysis: Analysis, arm: ArmResults) -> int:
    """Tokens that it and the expansions before it were trained on."""
    study = analysis.results.study
    steps = arm.arm.next_step - root_of(arm.arm, study.models).next_step
    return steps * arm.arm.training.batch_rows * study.data.seq_len


def _controls_of(analysis: Analysis, arm: ArmResults) -> list[tuple[str, str]]:
    """Names of the expansion's controls, and what they have equal."""
    controls = {name: _control(one) for name, one in analysis.results.study.controls.items()}
    return [(name, control.equal) for name, control in controls.items() if control is not None and control.of == arm.name]


def _control(arm: Arm) -> ControlBlock | None:
    control: ControlBlock | None = getattr(arm.objective, "control", None)
    return control


def _exits(expansions: Sequence[ArmResults]) -> list[int]:
    """All exits of the expansions: one that comes from a backbone or a twin has its own."""
    return sorted({depth for arm in expansions for depth in arm.evaluation.exits})


def _difference(analysis: Analysis, arm: ArmResults, other: ArmResults, depth: int, n_streams: int | None = None) -> str:
    if depth not in arm.evaluation.exits:
        return formats.MISSING
    return difference_cell(analysis.difference_between(arm, other, depth, n_streams, n_streams))
