"""The "differences from the papers" block and the limits of a study, generated from its parameters and results.

Easy to get wrong: a choice that the papers leave open is listed even when nothing differs, because nobody can say that it does not.
"""

from __future__ import annotations

from components.config.schema import Study
from components.evaluation.telescopic_claims import TWIN
from components.reporting import formats
from components.reporting.analysis import Analysis
from components.reporting.layouts import layout_text
from components.reporting.tables import Row, Table

FEW_DOCUMENTS = 30
FEW_SEEDS = 5


def recipe_table(analysis: Analysis) -> Table:
    """The recipe of the TLM paper beside this study's."""
    study, manifest = analysis.results.study, analysis.results.manifest
    training, model = study.training, study.model
    trained = training.steps * training.batch_rows * study.data.seq_len
    pairs: list[tuple[str, str, str]] = [
        ("corpus", "FineWeb-Edu", {"sotu": "State of the Union addresses"}.get(study.data.source.kind, study.data.source.kind)),
        ("training tokens", "20.0B", formats.count_text(trained)),
        ("vocabulary", "49,152 (SmolLM2)", f"{study.data.tokenizer.vocab_size:,} ({study.data.tokenizer.kind})"),
        ("segments (blocks @ width)", "11@320, 5@576, 4@960", segments_text(study)),
        ("exits", "11, 16, 20", ", ".join(map(str, model.exits))),
        ("head_dim", "64", str(model.head_dim)),
        ("seq_len", "2048", str(study.data.seq_len)),
        ("batch", "512 x 2048 tokens", f"{training.batch_rows} x {study.data.seq_len} tokens"),
        ("steps", "19,073", f"{training.steps:,}"),
        ("peak learning rate", "0.0004", f"{training.lr:g}"),
        ("warm-up steps", "1,000", f"{training.warmup_steps:,}"),
        ("cool-down share", "0.0909, linear", f"{training.cooldown_share:g}, linear"),
        ("AdamW beta, eps", "0.9 / 0.95, 1e-08", f"{training.beta1:g} / {training.beta2:g}, {training.adam_eps:g}"),
        ("weight decay", "0.01, not on norms", f"{training.weight_decay:g}, not on norms"),
        ("gradient clip", "1", f"{training.grad_clip_norm:g}"),
        ("compute precision", "bfloat16", training.precision),
        ("seeds", "42, two arms with a second", ", ".join(map(str, training.seeds))),
    ]
    if manifest is not None:
        unique = manifest.train.header.tokens_out
        pairs.insert(2, ("passes over the training text", "at most 1", f"{trained / max(1, unique):.2f}"))
    rows = tuple((what, paper, own, "same" if paper == own else "differs") for what, paper, own in pairs)
    return Table("Recipe", ("what", "TLM paper", "this study", ""), rows, "Settings that all arms share.", (0, 1, 2, 3))


def override_table(analysis: Analysis) -> Table | None:
    """What single arms change against the shared settings; None when no arm does."""
    study = analysis.results.study
    rows: list[Row] = []
    for name, arm in study.models.items():
        is_twin = TWIN.is_played_by(arm.objective.model_dump(mode="json"))
        for section, own, shared in (("model", arm.model, study.model), ("training", arm.training, study.training)):
            for key in type(own).model_fields:
                value = getattr(own, key)
                if value != getattr(shared, key) and not (
                    is_twin and key == "segments" and value == _prefix_segments(study, value)
                ):
                    rows.append((name, f"{section}.{key}", _plain(getattr(shared, key)), _plain(value)))
    return (
        Table("Arms with settings of their own", ("arm", "key", "shared", "arm"), tuple(rows), "", (0, 1, 2, 3)) if rows else None
    )


def open_choices(analysis: Analysis) -> list[str]:
    """What the papers do not state and this study had to choose, with the values in force."""
    study = analysis.results.study
    model, evaluation = study.model, study.evaluation
    inner = " / ".join(f"{shape.d_inner} at {shape.d_model}" for shape in dict.fromkeys(model.blocks))
    choices = [
        f"Initialisation: normal with standard deviation {model.init_std:g}, residual outputs scaled by 1/sqrt(2N).",
        f"RoPE theta {model.rope_theta:g}; RMSNorm epsilon {model.norm_eps:g}; no dropout; rotary angles in float32.",
        f"SwiGLU inner width {inner} and {'tied' if model.tied_embeddings else 'untied'} embeddings (the paper's parameter counts "
        "fit 4 x d_model, untied).",
        f"Junction norm of the shared model: {'on' if model.junction_norm else 'off'}; an arm may differ, see the arms table.",
        f"Attention across packed documents: {model.document_attention}.",
        f"Weight decay on the embedding table: {'yes' if study.training.decay_embeddings else 'no'}.",
        "Twins: the cascade's prefix trained alone, unless an arm gives another shape; the paper's twin shapes are not public.",
        "LODA: the paper's formula is not public. Here: best quality among valid depths with at least the demanded throughput, 0 "
        f"past the fastest valid depth; area over a {evaluation.loda_axis} throughput axis, divided by its length, times 100. "
        f"Quality for ppl: 1 − NLL / ln V; valid: NLL < ln V − {evaluation.loda_margin_nats:g} nats. Quality for acc: mean "
        f"accuracy over benchmarks; valid: above guessing by its standard error. {analysis.throughput.description}",
        "AULB clipped at ln V beside the plain one: an untrained depth can be worse than chance without limit.",
        "Intervals: paired bootstrap over validation documents and, where an arm has several, training seeds; "
        f"{evaluation.bootstrap_resamples:,} resamples, seed {evaluation.bootstrap_seed}, {100 * evaluation.confidence:g}% "
        "expanded percentile intervals.",
    ]
    return choices + training_choices(study) + hidden_decoding_choices(study)


def training_choices(study: Study) -> list[str]:
    """What this study decided about the objectives that it trains."""
    settings = [arm.objective.model_dump(mode="json") for arm in study.models.values()]
    arms = [one.get("inner") or one for one in settings]  # an expansion has the objective of its base, or another
    kinds, samplers = {arm["kind"] for arm in arms}, {arm["sampler"]["kind"] for arm in arms if "sampler" in arm}
    choices = [
        "Schedule: the first step has the peak rate / warm-up steps, the last one the peak rate / cool-down steps; none has 0.",
    ]
    if "telescopic" in kinds:
        choices.append(
            "TLM: one draw of depth per optimizer step, the same for all workers and micro-steps; prefix and anchor are two passes "
            "over one micro-batch."
        )
    if ours := sorted(samplers & {"roundrobin", "sandwich", "explicit"}):
        choices.append(f"Samplers that the paper does not have: {formats.join_names(ours)}.")
    if "fixed_exits" in kinds:
        choices.append(
            "MLMS backward: the setting `backward` of each arm; the paper's cost fits one shared forward, one backward per exit."
        )
    if any(arm["kind"] == "fixed_exits" and arm["distill_weight"] for arm in arms):
        choices.append("MLMS distillation: the full exit keeps plain cross-entropy, for its soft term has no gradient.")
    if "layerdrop" in kinds:
        choices.append("LayerDrop, a control of ours: blocks are dropped, junctions never; read out raw, or by a repair.")
    if parts := sorted({arm["part"] for arm in arms if arm["kind"] == "repair"} - {"head"}):
        choices.append(f"Repairs beside the paper's head: {formats.join_names(parts)}. Each starts as the raw read-out.")
    return choices


def hidden_decoding_choices(study: Study) -> list[str]:
    """What the Hidden Decoding paper leaves open, or has no case of; nothing without expansions."""
    if not study.expansions:
        return []
    streams = [arm.model.streams for arm in study.expansions.values() if arm.model.streams is not None]
    imported = [f"{name} from {arm.objective.model_dump()['path']}" for name, arm in study.backbones.items()]
    choices = [
        "Hidden Decoding on a cascade: every stream has its own slices of the embedding and gets them at every junction, so each "
        "depth is a model at each number of streams. The paper has one width and one depth.",
        "Expansion: goes on from the finished base, whose cool-down is over, with the base's objective, on the batches after; "
        "the rate warms up again and falls to 0 again. The paper's rates and optimizer state are not public (setting `optimizer`).",
    ]
    if imported:
        choices.append(
            f"Imported, trained elsewhere on other text and never here: {formats.join_names(imported)}. Their costs are not known."
        )
    if study.controls:
        choices.append(
            "Controls: the base trained further without streams in one run, with one warm-up and cool-down, even beside a chain of "
            "expansions that has one of each per expansion. Equal FLOPs are analytic, in the mean over the draws of depth and n."
        )
    if streams:
        layouts = formats.join_names(list(dict.fromkeys(f"{layout_text(one)}, positions {one.rope_rule}" for one in streams)))
        choices.append(
            f"Which blocks look across streams, and how positions count there: {layouts}. On a cascade that is our choice."
        )
    if any(one.sampled for one in streams):
        choices.append("Sampled streams: n is drawn uniformly per step; running n of more streams uses the last n tables.")
    if any(one.supervision == "sum" for one in streams):
        choices.append("Supervision `sum`: a token's streams are summed before the exit's norm.")
    if any(one.n_mirrored for one in streams):
        choices.append("KV-Mirror: U-shaped pairs around the last block that is not mirrored, within the last segment.")
    return choices


def limits(analysis: Analysis) -> list[str]:
    """What a reader must not conclude from this report."""
    study, arms = analysis.results.study, analysis.arms
    found = []
    if analysis.results.missing:
        found.append(f"Not evaluated: {formats.join_names(analysis.results.missing)}. Rows without results are holes.")
    single = [arm.name for arm in arms if len(arm.evaluation.seeds) == 1]
    if single:
        found.append(
            f"One seed only: {formats.join_names(single)}. The intervals are over validation documents; what another training seed "
            "would change is not in them."
        )
    several = [len(arm.evaluation.seeds) for arm in arms if len(arm.evaluation.seeds) > 1]
    if several and min(several) < FEW_SEEDS:
        found.append(
            f"{min(several)} seeds are few: an interval says that the seeds at hand agree, not how often another seed would. "
            "Differences smaller than the spread of the seeds may be training noise."
        )
    if analysis.n_documents < FEW_DOCUMENTS:
        found.append(f"{analysis.n_documents} validation documents are few: the intervals are rough.")
    without = [arm.name for arm in arms if arm.documents is None]
    if without:
        found.append(f"No per-document scores, so no intervals: {formats.join_names(without)}.")
    broken = [arm.name for arm in arms if any(depth.nll_nats is None for depth in arm.shown_depths)]
    if broken:
        found.append(f"NLL is not finite at some depth of {formats.join_names(broken)}: those areas exist only clipped at chance.")
    unpriced = [arm.name for arm in arms if arm.cost is None]
    if unpriced:
        found.append(f"No cost recorded: {formats.join_names(unpriced)}.")
    if any(seed.unit == "core-hours" for arm in arms if arm.cost for seed in arm.cost.seeds):
        found.append(
            "Costs in core-hours of a CPU are not GPU-hours: small matrices on a CPU do not have the cost ratios of a GPU."
        )
    trained = study.training.steps * study.training.batch_rows * study.data.seq_len
    found.append(
        f"{formats.count_text(trained)} training tokens and {analysis.reference.full.parameters:,} parameters: perplexities are "
        "not comparable with the paper's, only the shapes of curves and the order of arms are."
    )
    found.append(analysis.throughput.description)
    if not analysis.results.benchmarks:
        found.append("Quality is perplexity alone: no benchmarks were run.")
    return found


def segments_text(study: Study) -> str:
    """`8@48, 4@80, 4@112`."""
    return ", ".join(f"{segment.n_blocks}@{segment.d_model}" for segment in study.model.segments)


def _prefix_segments(study: Study, segments: object) -> object:
    """The segments of the shared cascade's prefix of the same depth."""
    depth = sum(segment.n_blocks for segment in segments)  # type: ignore[attr-defined]
    return study.model.prefix(depth).segments


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(f"{one.n_blocks}@{one.d_model}" if hasattr(one, "d_model") else str(one) for one in value)
    return f"{value:g}" if isinstance(value, float) else str(value)
