"""Quality of every depth on the validation set."""

from __future__ import annotations

from typing import Literal

from components.results.record import Record, State


class ValidationSet(Record):
    """What was scored; equal fingerprints mean comparable numbers."""

    fingerprint: str
    n_documents: int
    n_tokens: int
    n_bytes: int


class DepthScore(Record):
    """Quality and size of one (depth, streams) cell on the validation set.

    Attributes:
        depth: k, blocks of the prefix.
        n_streams: n of Hidden Decoding; 1 without.
        state: ok, or what the mean NLL was instead of a finite number.
        nll_nats: mean NLL per token; null unless `state` is ok.
        ppl: exp(nll_nats); null when that overflows or `state` is not ok.
        bits_per_byte: total NLL / (ln 2 x UTF-8 bytes scored).
        parameters: of the prefix as a stand-alone model (embedding slice, blocks, its segment's norm and head).
        flops_per_token: forward pass of the prefix, at the evaluation's sequence length.
        blocks_run: blocks that were really executed for this score, counted while running.
    """

    depth: int
    n_streams: int
    state: State
    nll_nats: float | None
    ppl: float | None
    bits_per_byte: float | None
    parameters: int
    flops_per_token: int
    blocks_run: int


class SeedEvaluation(Record):
    """All cells of the model of one seed.

    Attributes:
        depths: every depth, at every number of streams that the model is trained with.
        aulb_nats: at the most streams, area under NLL over k = 1..N divided by N - 1; null when a depth is not finite or N is 1.
        aulb_clipped_nats: the same with every NLL clipped at ln V (not finite counts as ln V).
    """

    seed: int
    depths: tuple[DepthScore, ...]
    aulb_nats: float | None
    aulb_clipped_nats: float | None


class ArmEvaluation(Record):
    """`artifacts/evaluation/<arm>.json`. Beside it, `<arm>.documents.parquet` has NLL sums per document, for the intervals.

    Attributes:
        objective: kind of the objective.
        exits: depths of the segments' last blocks.
        trained_depths: depths that the objective ever trains; the others are read out all the same.
        vocab_size: columns of the head, a tokenizer's padding among them: perplexity of a model that knows nothing, chance.
    """

    version: Literal[1]
    arm: str
    objective: str
    n_blocks: int
    exits: tuple[int, ...]
    trained_depths: tuple[int, ...]
    vocab_size: int
    validation: ValidationSet
    seeds: tuple[SeedEvaluation, ...]
