"""The best operating point under a budget: which arm, depth and number of streams, by measured quality, latency and memory.

Joins artifacts/evaluation with artifacts/profile, writes the joined table to artifacts/operating_points.json, and prints the point
of the best quality that fits, and the next ones; or says that none fits, and what comes closest.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from components.config.loader import load_study
from components.config.problems import ResultsError
from components.profiling.operating_points import Budget, Choice, at_load, choose, join_points, place_text
from components.results import ArmEvaluation, ArmProfile, OperatingPoint, read_record, write_record
from components.results.files import RecordT
from tasks.command import add_path, command_parser, positive_number, print_columns, run_command, whole_number

EXAMPLES = """
python -m tasks.select --latency-ms 8 --batch 1              the best quality within 8 ms per decoding step
python -m tasks.select --throughput 2000 --batch 8           at least 2,000 tokens/s with eight sequences
python -m tasks.select --memory-mb 4 --arm tlm-uniform       the best depth of one arm in 4 MB of weights and cache
python -m tasks.select --latency-ms 8 --metric bits_per_byte --context 96
"""


def main() -> None:
    """Writes the table and prints the choice."""
    arguments = _arguments()
    models = tuple(load_study(arguments.params).models)
    table = join_points(
        _records(ArmEvaluation, arguments.artifacts / "evaluation", models),
        _records(ArmProfile, arguments.artifacts / "profile", models),
    )
    path = arguments.artifacts / "operating_points.json"
    write_record(table, path)
    points = at_load(table, arguments.batch, arguments.context, arguments.arm)
    budget = Budget(
        latency_seconds=None if arguments.latency_ms is None else arguments.latency_ms / 1e3,
        tokens_per_second=arguments.throughput,
        memory_bytes=None if arguments.memory_mb is None else arguments.memory_mb * 1e6,
    )
    choice = choose(points, budget, arguments.metric)
    if choice.closest is not None:
        raise ResultsError(_nothing_fits(choice.closest, budget, len(points)))
    _print(choice, budget, arguments.metric, arguments.show)
    for line in table.left_out:
        print(f"left out: {line}")
    print(
        f"\nmeasured on {table.device}, threads: {table.threads}, {points[0].context_tokens} tokens of context; all points: {path}"
    )


def _print(choice: Choice, budget: Budget, metric: str, n_shown: int) -> None:
    best = choice.fitting[0]
    print(f"best: {best.arm} at {place_text(best)}\n")
    header = ("arm", "depth", "streams", "NLL", "bits/byte", "ms/step", "tokens/s", "MB", "parameters")
    rows = [_row(point) for point in choice.fitting[:n_shown]]
    print_columns([header, *rows])
    hidden = len(choice.fitting) - len(rows)
    print(f"{len(choice.fitting)} points fit{f', {hidden} not shown' if hidden else ''}; the best {metric} first")
    if choice.n_tied > 1:
        print(f"{choice.n_tied} points tie for the best {metric}; the fastest of them comes first")
    if budget.latency_seconds is not None and best.decode_high_seconds > budget.latency_seconds:
        print(f"the median step fits, its upper quartile of {best.decode_high_seconds * 1e3:.2f} ms does not: leave some room")
    streams = f" --streams {best.n_streams}" if best.n_streams > 1 else ""
    print(f'\npython -m tasks.generate --arm {best.arm} --depth {best.depth}{streams} "The state of the union"')
    print(f"python -m tasks.export --arm {best.arm} --depth {best.depth}{streams} --out exports/{best.arm}-{best.depth}")


def _row(point: OperatingPoint) -> tuple[str, ...]:
    return (
        point.arm,
        str(point.depth),
        str(point.n_streams),
        f"{point.nll_nats:.4f}",
        f"{point.bits_per_byte:.4f}",
        f"{point.decode_seconds * 1e3:.2f}",
        f"{point.decode_tokens_per_second:,.0f}",
        f"{point.memory_bytes / 1e6:,.2f}",
        f"{point.parameters:,}",
    )


def _nothing_fits(closest: OperatingPoint, budget: Budget, n_points: int) -> str:
    over = ", ".join(f"{name} {ratio:.2f}x its limit" for name, ratio in budget.excess(closest).items())
    return (
        f"none of {n_points} operating points fits; the closest is {closest.arm} at {place_text(closest)}: "
        f"{closest.decode_seconds * 1e3:.3f} ms per step, {closest.decode_tokens_per_second:,.0f} tokens/s, "
        f"{closest.memory_bytes / 1e6:,.2f} MB ({over}); widen the budget, or train a smaller first segment"
    )


def _records(kind: type[RecordT], folder: Path, models: Sequence[str]) -> dict[str, RecordT]:
    """The results of the study's models; what an earlier study left behind is not among them."""
    paths = {name: folder / f"{name}.json" for name in models}
    return {name: read_record(kind, path) for name, path in paths.items() if path.exists()}


def _arguments() -> argparse.Namespace:
    parser = command_parser("tasks.select", __doc__, EXAMPLES)
    add_path(parser, "--params", "params.yaml", "parameter file")
    parser.add_argument("--latency-ms", type=positive_number, help="longest decoding step, milliseconds")
    parser.add_argument("--throughput", type=positive_number, help="least decoding throughput of the batch, tokens/s")
    parser.add_argument("--memory-mb", type=positive_number, help="most memory of weights and cache, 10^6 bytes")
    parser.add_argument("--batch", type=int, default=1, help="sequences decoded at once (default: %(default)s)")
    parser.add_argument("--context", type=int, help="tokens in the cache (default: the longest that was profiled)")
    parser.add_argument("--arm", help="only this arm (default: all)")
    parser.add_argument(
        "--metric",
        choices=("nll_nats", "bits_per_byte"),
        default="nll_nats",
        help="quality, lower is better (default: %(default)s)",
    )
    parser.add_argument("--show", type=whole_number, default=5, help="points to print (default: %(default)s)")
    add_path(parser, "--artifacts", "artifacts", "folder of the results")
    arguments = parser.parse_args()
    if arguments.latency_ms is None and arguments.throughput is None and arguments.memory_mb is None:
        parser.error("give a budget: --latency-ms, --throughput or --memory-mb")
    return arguments


if __name__ == "__main__":
    run_command(main)
