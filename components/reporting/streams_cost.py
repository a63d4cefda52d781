"""What streams cost: FLOPs, training time, memory of the cache, and decoding speed at every (depth, n).

Easy to get wrong: a decoded token takes one forward pass over n rows, so its speed hangs on batch and context, not on FLOPs alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from components.config.schema import Arm
from components.models.stream_sizes import cache_bytes
from components.reporting import formats
from components.reporting.analysis import Analysis
from components.reporting.latency import timing_text
from components.reporting.layouts import layout_text
from components.reporting.load import ArmResults
from components.reporting.tables import Row, Table

CACHE_BYTES_PER_VALUE = 2  # bfloat16


def stream_cost_table(analysis: Analysis, expansions: Sequence[ArmResults]) -> Table:
    """What a token costs at every n and layout, relative to the arm that the expansions come from, which has the first line."""
    models, results = analysis.results.study.models, {arm.name: arm for arm in analysis.arms}
    roots = dict.fromkeys(root_of(arm.arm, models).name for arm in expansions)
    rows: list[Row] = []
    for arm in [*(results[name] for name in roots if name in results), *expansions]:
        root = root_of(arm.arm, models)
        plain = results.get(root.name)
        seq_len = analysis.results.study.data.seq_len
        served = arm.arm.model.serving(arm.n_streams), root.model
        own, base = (cache_bytes(model, model.n_blocks, seq_len, CACHE_BYTES_PER_VALUE) for model in served)
        seeds = arm.cost.seeds if arm.cost else ()
        rows.append(
            (
                arm.name,
                str(arm.n_streams),
                layout_text(arm.arm.model.streams),
                formats.MISSING if plain is None else f"{arm.full.flops_per_token / plain.full.flops_per_token:.2f}",
                f"{1e3 * sum(seed.seconds / seed.steps for seed in seeds) / len(seeds):,.0f}" if seeds else formats.MISSING,
                _ratio(_seconds_per_token(arm), None if plain is None else _seconds_per_token(plain)),
                formats.bytes_text(max(seed.peak_memory_bytes for seed in seeds)) if seeds else formats.MISSING,
                formats.count_text(arm.full.parameters),
                f"{own / seq_len:,.0f}",
                f"{own / base:.2f}",
            )
        )
    columns = (
        "model", "n", "blocks across streams", "forward FLOPs", "ms per step", "time per token", "peak memory", "parameters",
        "KV bytes per token", "KV",
    )  # fmt: skip
    note = (
        "Forward FLOPs of the full model, training time per token, and KV are multiples of the arm without streams. Times and peak "
        "memory are those of its training (on a CPU, of the whole process); of stages that ran side by side they are rough, and "
        "`python -m bench.stream_cost` takes turns. KV: keys and values in bfloat16, at the study's row length."
    )
    return Table("Cost of streams", columns, tuple(rows), note, (0, 2))


def decode_share_table(analysis: Analysis, expansions: Sequence[ArmResults]) -> tuple[Table, ...]:
    """Decoding throughput with streams as a share of that without, at every load; none without profiles."""
    axis, models = analysis.throughput, analysis.results.study.models
    rows: list[Row] = []
    for arm in expansions:
        root = root_of(arm.arm, models)
        own = [axis.cell(arm.name, arm.full.depth, arm.n_streams, load) for load in axis.loads]
        base = [axis.cell(root.name, root.model.n_blocks, 1, load) for load in axis.loads]
        cells = (
            formats.MISSING if one is None or two is None else f"{one.decode_tokens_per_second / two.decode_tokens_per_second:.0%}"
            for one, two in zip(own, base, strict=True)
        )
        rows.append((arm.name, str(arm.n_streams), *cells))
    if not axis.loads or all(set(row[2:]) == {formats.MISSING} for row in rows):
        return ()
    columns = ("expansion", "n", *(f"batch {load.batch_size} at {load.context_tokens}" for load in axis.loads))
    note = (
        "Decoded tokens per second of the full model, share of the arm without streams. The paper's, for n = 4 on GPUs: 83 to 88% "
        "at batch 1; 60 to 44% at batch 16 and 2,048 to 32,768 tokens."
    )
    return (Table("Decoding speed with streams", columns, tuple(rows), note),)


def decode_grid_table(analysis: Analysis, columns: Sequence[tuple[str, int]]) -> tuple[Table, ...]:
    """Milliseconds per decoding step of every (depth, n), at the smallest batch; none without profiles of streams.

    Args:
        columns: (arm, n) of each column of the grid.
    """
    axis = analysis.throughput
    known = [column for column in columns if axis.loads and axis.cell(column[0], 1, column[1], axis.loads[0])]
    if not any(n > 1 for _, n in known):
        return ()
    rows = []
    for depth in range(1, max(axis.profiles[name].n_blocks for name, _ in known) + 1):
        cells = (axis.cell(name, depth, n, axis.loads[0]) for name, n in known)
        rows.append((str(depth), *(formats.MISSING if cell is None else timing_text(cell.decode) for cell in cells)))
    title = f"Milliseconds per decoding step at every number of streams, {axis.loads[0]}"
    note = "Median, and quartiles in brackets, on the machine that the chapter on latency names."
    header = ("depth k", *(f"{name}, n = {n}" for name, n in known))
    return (Table(title, header, tuple(rows), note, is_folded=len(known) > 4),)


def root_of(arm: Arm, models: dict[str, Arm]) -> Arm:
    """The arm or backbone that a chain of expansions starts from."""
    while arm.base is not None:
        arm = models[arm.base]
    return arm


def _seconds_per_token(arm: ArmResults) -> float | None:
    seeds = arm.cost.seeds if arm.cost else ()
    return sum(seed.seconds / seed.tokens for seed in seeds) / len(seeds) if seeds else None


def _ratio(own: float | None, base: float | None) -> str:
    return formats.MISSING if own is None or not base else f"{own / base:.2f}"
