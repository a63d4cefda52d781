"""Stage `evaluate`: scores every depth of an arm's models on the validation set."""

from __future__ import annotations

import argparse

from tasks.choice import add_arm_arguments, load_seeds
from tasks.command import add_path, command_parser, progress_bar, run_command
from tasks.phases import COMPUTE, phase

EXAMPLES = """
python -m tasks.evaluate --arm tlm-uniform           every seed at every depth, into artifacts/evaluation
"""


def main() -> None:
    """Reads the arm's models and the validation rows, writes `<arm>.json` and `<arm>.documents.parquet`, prints the curve."""
    arguments = _arguments()
    from components.config.loader import find_arm, load_study

    study = load_study(arguments.params)
    arm = find_arm(study, arguments.arm)
    from components.data.documents import read_documents
    from components.data.stream import PackedRows
    from components.evaluation.sweep import score_cells, sweep_cells, write_document_scores
    from components.models.onednn import onednn_products
    from components.results import ArmEvaluation, ValidationSet, write_record

    runtime = study.runtime.for_arm(arm.name)
    rows = PackedRows.open(arguments.data / "validation")
    documents = read_documents(arguments.data / "validation")
    sweeps, evaluations = [], []
    for seed, model, card in load_seeds(arm, arguments.models, runtime):  # noqa: B007  # the last ones are used below
        title = f"evaluate {arm.name} seed {seed}"
        n_rows = len(rows) * len(model.stream_counts)
        with phase(COMPUTE), onednn_products(), progress_bar(n_rows, title, "row") as bar:
            cells = sweep_cells(model, rows, documents, runtime.micro_batch_rows, bar.update)
        sweeps += [(seed, sweep) for sweep in cells]
        evaluations.append(score_cells(model, cells, documents, seed, rows.seq_len))
    write_document_scores(arguments.out / f"{arm.name}.documents.parquet", sweeps, documents)
    result = ArmEvaluation(
        version=1,
        arm=arm.name,
        objective=arm.objective.kind,
        n_blocks=model.n_blocks,
        exits=model.settings.exits,
        trained_depths=card.trained_depths,
        vocab_size=card.vocab_size,
        validation=ValidationSet(
            fingerprint=rows.fingerprint,
            n_documents=len(documents.n_tokens),
            n_tokens=int(documents.n_tokens.sum()),
            n_bytes=int(documents.n_bytes.sum()),
        ),
        seeds=tuple(evaluations),
    )
    write_record(result, arguments.out / f"{arm.name}.json")
    for evaluation in evaluations:
        for n in model.stream_counts:
            scores = [score for score in evaluation.depths if score.n_streams == n]
            curve = "  ".join(f"{score.depth}:{score.ppl:.4g}" if score.ppl is not None else f"{score.depth}:-" for score in scores)
            streams = "" if n == 1 else f", {n} streams"
            print(f"{arm.name} seed {evaluation.seed}{streams}: perplexity by depth  {curve}")


def _arguments() -> argparse.Namespace:
    parser = command_parser("tasks.evaluate", __doc__, EXAMPLES)
    add_arm_arguments(parser)
    add_path(parser, "--data", "artifacts/data", "folder of the packed rows")
    add_path(parser, "--out", "artifacts/evaluation", "folder of the results")
    return parser.parse_args()


if __name__ == "__main__":
    run_command(main)
