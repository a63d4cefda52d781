"""The README of an exported model: what it is, how to load it, and what was measured for its depth."""

from __future__ import annotations

from components.models.files import ModelCard
from components.results import ArmEvaluation, ArmProfile


def export_readme(
    card: ModelCard, place: tuple[int, int], evaluation: ArmEvaluation | None, profile: ArmProfile | None, tokenizer_eos: str
) -> str:
    """Markdown with the numbers that there are; a results file that is missing is said to be.

    Args:
        place: depth and number of streams.
    """
    (depth, n_streams), n_blocks = place, card.model.n_blocks
    streams = "" if card.model.streams is None else f", with {n_streams} Hidden Decoding streams per token"
    trained = "is one of the depths that training gave a loss" if depth in card.trained_depths else "never got a loss in training"
    lines = [
        f"# {card.arm}, depth {depth} of {n_blocks}",
        "",
        f"The first {depth} blocks of a telescopic cascade (arm `{card.arm}`, seed {card.seed}), read out by the exit of their "
        f"segment, as a language model of its own{streams}. Depth {depth} {trained}.",
        "",
        "```python",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        'tokenizer = AutoTokenizer.from_pretrained("FOLDER", trust_remote_code=True)',
        'model = AutoModelForCausalLM.from_pretrained("FOLDER", trust_remote_code=True)',
        "```",
        "",
        f"Training texts begin and end with `{tokenizer_eos}` (id {card.eos_id}): put it in front of a prompt. The context is "
        f"{card.seq_len} tokens.",
        "",
        "| measured | value |",
        "|---|---|",
        *(f"| {name} | {value} |" for name, value in [*_quality(card, place, evaluation), *_speed(place, profile)]),
        "",
        "| made by | value |",
        "|---|---|",
        f"| objective | `{card.objective.get('kind', 'unknown')}` |",
        f"| training | {card.steps:,} steps, {card.steps * card.tokens_per_step:,} tokens |",
        f"| batches | `{card.stream_fingerprint}` |",
        f"| tokenizer | `{card.tokenizer_hash}` |",
        "",
    ]
    return "\n".join(lines)


def _quality(card: ModelCard, place: tuple[int, int], evaluation: ArmEvaluation | None) -> list[tuple[str, str]]:
    if evaluation is None:
        return [("quality", "not evaluated yet")]
    scores = [
        score
        for seed in evaluation.seeds
        if seed.seed == card.seed
        for score in seed.depths
        if (score.depth, score.n_streams) == place
    ]
    if not scores or scores[0].nll_nats is None:
        return [("quality", "no finite score at this depth")]
    score = scores[0]
    return [
        ("NLL, nats per token", f"{score.nll_nats:.4f}"),
        ("perplexity", "too large" if score.ppl is None else f"{score.ppl:,.2f}"),
        ("bits per byte", "-" if score.bits_per_byte is None else f"{score.bits_per_byte:.4f}"),
        ("parameters", f"{score.parameters:,}"),
        ("forward FLOPs per token", f"{score.flops_per_token:,}"),
    ]


def _speed(place: tuple[int, int], profile: ArmProfile | None) -> list[tuple[str, str]]:
    if profile is None:
        return [("latency", "not profiled yet")]
    where = f"{profile.device}, threads: {profile.threads}" if profile.device_kind == "cpu" else profile.device
    return [
        (
            f"decode step, batch {cell.batch_size}, {cell.context_tokens} tokens of context",
            f"{cell.decode.median_seconds * 1e3:.2f} ms ({where}, {profile.dtype}, this project's engine)",
        )
        for cell in profile.cells
        if (cell.depth, cell.n_streams) == place
    ]
