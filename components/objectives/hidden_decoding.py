"""Hidden Decoding: goes on training a finished model with more streams per token, its own objective kept unless another is given.

A telescopic base keeps its random prefix and its anchor, so every depth stays a language model at the new number of streams. The
model starts from the base's weights with its embedding tables replicated; a head that was the table becomes a copy of it. With
`sampled`, each step also draws how many streams run, so that one set of weights serves every (depth, streams) pair.

Also the objective of what goes on without streams: a pretrained model that is made telescopic, and the controls, which get more
data or compute alone.

Source:
    Hidden Decoding at Scale (arXiv 2607.08186); drawing the number of streams per step is ours.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from pydantic import SerializeAsAny, field_validator

from components.config.schema import ControlBlock, Model, ObjectiveSettings
from components.objectives import base

if TYPE_CHECKING:
    from torch import Tensor

    from components.models.cascade import Cascade

STREAMS_KEY = 0x57EA5  # separates this generator from every other that is keyed by (seed, step)
KEPT_KINDS = ("telescopic", "fixed_exits", "twin", "pretrained")
log = logging.getLogger(__name__)


class Settings(ObjectiveSettings):
    """Not written in the file as such: the loader makes it of an entry of `expansions` or `controls`.

    Attributes:
        inner: the base's objective, or the one given instead.
        optimizer: keep goes on from the base's moments (zero for new tables), fresh from none.
        control: for a control, the expansion it stands beside and what they have equal; None for an expansion.
    """

    from_scratch: ClassVar[bool] = False
    kind: Literal["hidden_decoding"]
    base: str
    inner: SerializeAsAny[ObjectiveSettings]
    replication: Literal["cyclic", "block"]
    optimizer: Literal["keep", "fresh"]
    control: ControlBlock | None

    @field_validator("inner", mode="before")
    @classmethod
    def _typed(cls, value: object) -> object:
        return base.settings_of(value) if isinstance(value, Mapping) else value

    def trained_depths(self, model: Model) -> tuple[int, ...]:
        return self.inner.trained_depths(model)

    def problems(self, model: Model) -> list[tuple[str, object, str, str]]:
        if self.inner.kind not in KEPT_KINDS:
            rule = f"must be trained with one of {', '.join(KEPT_KINDS)}, not {self.inner.kind}"
            return [("base", self.base, rule, "choose another base")]
        streams = model.streams
        if streams is not None and streams.n_streams > 1 and set(streams.layers) == {"intra"}:
            rule = "all intra: no block looks across streams, so that more of them gain nothing"
            return [("streams.layers", "intra", rule, "make at least one block cross_full or cross_local")]
        return []


def never_separate(model: Model) -> bool:
    """Whether equal tables of the streams before the last get equal gradients for ever.

    They do when positions are logical and only one block, a `cross_full` one, looks across streams: rows of one token then differ
    by nothing but their table, and what they differ by afterwards reaches no prediction.
    """
    streams = model.streams
    if streams is None or streams.n_streams < 3 or streams.supervision != "last":
        return False
    across = [kind for kind in streams.layers if kind != "intra"]
    return streams.rope_rule == "logical" and across == ["cross_full"]


class Objective(base.Objective):
    def __init__(self, settings: Settings, model: Model, vocab_size: int, seed: int) -> None:
        super().__init__(model, vocab_size, seed)
        self._settings = settings
        self._counts = (1,) if model.streams is None else model.streams.counts
        kept = importlib.import_module(f"components.objectives.{settings.inner.kind}").Objective
        self._inner: dict[int, base.Objective] = {n: kept(settings.inner, model.running(n), vocab_size, seed) for n in self._counts}

    def start(self, model: Cascade, base_dir: Path | None) -> None:
        from components.config.problems import CheckpointError
        from components.models.expansion import expand_weights, untied
        from components.models.files import load_model
        from components.models.parts import put_all

        if base_dir is None:
            raise CheckpointError("an expansion needs the trained model of its base")
        trained, card = load_model(base_dir)
        weights = trained.state_dict()
        if card.model.tied_embeddings and not self.model.tied_embeddings:
            weights = untied(weights)
        put_all(model, expand_weights(weights, self._sources(card.model)))
        if never_separate(self.model):
            log.warning(
                "one cross_full block and logical positions: streams before the last that start from one table stay equal; use "
                "rope_rule by_layer or a second cross block"
            )

    def moments(self, base_dir: Path | None) -> dict[str, Tensor]:
        from components.models.expansion import expand_moments
        from components.models.files import OPTIMIZER, load_tensors, read_card

        if base_dir is None or self._settings.optimizer == "fresh":
            return {}
        return expand_moments(load_tensors(base_dir / OPTIMIZER), self._sources(read_card(base_dir).model))

    def streams_at(self, step: int) -> int:
        if len(self._counts) == 1:
            return self._counts[0]
        u = np.random.default_rng((STREAMS_KEY, self.seed, step)).random()
        return self._counts[int(u * len(self._counts))]

    def depths_at(self, step: int) -> tuple[int, ...]:
        return tuple(self._inner[self.streams_at(step)].depths_at(step))

    def backward(self, model: Cascade, batch: base.TokenBatch, step: int) -> dict[str, Tensor]:
        n = self.streams_at(step)
        inner = self._inner[n]
        if self.model.streams is None or self.model.streams.supervision != "all":
            with model.running(n):
                return inner.backward(model, batch, step)
        labels_BR = batch.labels_BT.repeat_interleave(n, dim=1)  # every stream of a token predicts the token's successor
        with model.running(n, reads_all=True):
            sums = inner.backward(model, replace(batch, labels_BT=labels_BR, scale=batch.scale / n), step)
        return {name: value / n for name, value in sums.items()}

    def step_flops(self, step: int, seq_len: int) -> int:
        return self._inner[self.streams_at(step)].step_flops(step, seq_len)

    def expected_flops(self, seq_len: int) -> float:
        return sum(inner.expected_flops(seq_len) for inner in self._inner.values()) / len(self._inner)

    def _sources(self, smaller: Model) -> tuple[int, ...]:
        from components.models.expansion import table_sources

        n_from, n_to = (1 if model.streams is None else model.streams.n_streams for model in (smaller, self.model))
        return table_sources(n_from, n_to, self._settings.replication)
