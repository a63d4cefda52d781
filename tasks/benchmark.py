"""Stage `benchmark`: scores every depth of an arm's models on zero-shot benchmarks and out-of-domain corpora, if any are named."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tasks.choice import add_arm_arguments, load_seeds
from tasks.command import add_path, command_parser, progress_bar, run_command

if TYPE_CHECKING:
    from components.config.schema import Arm, Study
    from components.data.tokenizer import Tokenizer
    from components.models.cascade import Cascade
    from components.results import ArmBenchmarks, BenchmarkScores, CorpusScores, SeedBenchmarks


EXAMPLES = """
python -m tasks.benchmark --arm tlm-uniform          what `benchmarks` of params.yaml names, into artifacts/benchmarks
"""


def main() -> None:
    """Reads the arm's models, the benchmarks and the corpora, writes `<arm>.json`, prints accuracy and bits per byte by depth."""
    arguments = _arguments()
    from components.config.loader import find_arm, load_study
    from components.results import ArmBenchmarks, write_record

    study = load_study(arguments.params)
    arm = find_arm(study, arguments.arm)
    if study.benchmarks.tasks or study.benchmarks.corpora:
        result = _score_arm(study, arm, arguments)
    else:
        result = ArmBenchmarks(
            version=1,
            arm=arm.name,
            status="not_run",
            harness=None,
            limit=study.benchmarks.limit,
            window_tokens=None,
            n_blocks=arm.model.n_blocks,
            exits=arm.model.exits,
            seeds=(),
        )
        print(f"{arm.name}: benchmarks.tasks and benchmarks.corpora are empty in {arguments.params}: nothing to score")
    write_record(result, arguments.out / f"{arm.name}.json")
    for seed in result.seeds:
        _print_curves(arm.name, seed)


def _score_arm(study: Study, arm: Arm, arguments: argparse.Namespace) -> ArmBenchmarks:
    from components.config.problems import CheckpointError
    from components.data.tokenizer import Tokenizer
    from components.models.onednn import onednn_products
    from components.results import ArmBenchmarks, SeedBenchmarks

    tokenizer = Tokenizer.open(arguments.tokenizer)
    models: dict[int, Cascade] = {}
    for seed, model, card in load_seeds(arm, arguments.models, study.runtime.for_arm(arm.name)):
        models[seed] = model
        if card.tokenizer_hash != tokenizer.hash:
            folder = arguments.models / arm.name / f"seed-{seed}"
            raise CheckpointError(f"{folder}: trained with another tokenizer than {arguments.tokenizer}; run `dvc repro`")
    window_tokens = min(card.seq_len, study.data.seq_len)  # a backbone may see further; the arms share one context
    with onednn_products():
        harness, benchmarks = _score_benchmarks(study, arm.name, models, tokenizer, window_tokens)
        corpora = _score_corpora(study, arm.name, models, tokenizer, window_tokens)
    return ArmBenchmarks(
        version=1,
        arm=arm.name,
        status="run",
        harness=harness,
        limit=study.benchmarks.limit,
        window_tokens=window_tokens,
        n_blocks=arm.model.n_blocks,
        exits=arm.model.exits,
        seeds=tuple(SeedBenchmarks(seed=seed, benchmarks=tuple(benchmarks[seed]), corpora=tuple(corpora[seed])) for seed in models),
    )


def _score_benchmarks(
    study: Study, arm: str, models: Mapping[int, Cascade], tokenizer: Tokenizer, window_tokens: int
) -> tuple[str | None, dict[int, list[BenchmarkScores]]]:
    """The version of the harness, None when no benchmark is named, and the scores of each seed."""
    scored: dict[int, list[BenchmarkScores]] = {seed: [] for seed in models}
    if not study.benchmarks.tasks:
        return None, scored
    from components.evaluation.benchmarks import benchmark_scores, prepare_benchmark, score_cells
    from components.evaluation.harness import harness_version, load_benchmark

    for name in study.benchmarks.tasks:
        prepared = prepare_benchmark(
            load_benchmark(name, study.benchmarks.source, study.benchmarks.limit), tokenizer, window_tokens
        )
        for seed, model in models.items():
            total = len(prepared.windows) * len(model.stream_counts)
            with progress_bar(total, f"benchmark {arm} seed {seed} {name}", "request") as bar:
                cells = score_cells(model, prepared, study.runtime.for_arm(arm).micro_batch_rows, bar.update)
            scored[seed].append(benchmark_scores(prepared, cells))
    return harness_version(), scored


def _score_corpora(
    study: Study, arm: str, models: Mapping[int, Cascade], tokenizer: Tokenizer, seq_len: int
) -> dict[int, list[CorpusScores]]:
    from components.evaluation.corpora import pack_corpus, score_corpus

    scored: dict[int, list[CorpusScores]] = {seed: [] for seed in models}
    batch_rows = study.runtime.for_arm(arm).micro_batch_rows
    for name, settings in study.benchmarks.corpora.items():
        corpus = pack_corpus(name, settings, tokenizer, seq_len)
        for seed, model in models.items():
            total = len(corpus.rows) * len(model.stream_counts)
            with progress_bar(total, f"corpus {arm} seed {seed} {name}", "row") as bar:
                scored[seed].append(score_corpus(model, corpus, tokenizer.eos_id, batch_rows, bar.update))
    return scored


def _print_curves(arm: str, seed: SeedBenchmarks) -> None:
    for benchmark in seed.benchmarks:
        accuracy = {
            (one.n_streams, one.depth): next(metric.value for metric in one.metrics if metric.metric == "acc")
            for one in benchmark.depths
        }
        _print_curve(f"{arm} seed {seed.seed}: {benchmark.benchmark} accuracy (chance {benchmark.chance:.3f})", accuracy)
    for corpus in seed.corpora:
        bits = {(one.n_streams, one.depth): one.bits_per_byte for one in corpus.depths}
        _print_curve(f"{arm} seed {seed.seed}: {corpus.corpus} bits per byte", bits)


def _print_curve(title: str, values: Mapping[tuple[int, int], float | None]) -> None:
    for n in sorted({n_streams for n_streams, _ in values}):
        curve = (f"{k}:{'-' if value is None else f'{value:.3f}'}" for (n_streams, k), value in values.items() if n_streams == n)
        print(title if n == 1 else f"{title}, {n} streams", *curve, sep="  ")


def _arguments() -> argparse.Namespace:
    parser = command_parser("tasks.benchmark", __doc__, EXAMPLES)
    add_arm_arguments(parser)
    add_path(parser, "--tokenizer", "artifacts/tokenizer", "folder of the tokenizer")
    add_path(parser, "--out", "artifacts/benchmarks", "folder of the results")
    return parser.parse_args()


if __name__ == "__main__":
    run_command(main)
