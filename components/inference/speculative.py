"""Self-speculative decoding: the prefix F_k drafts a few tokens, the deeper F_d checks them all in one pass.

The drafter is the verifier's own first k blocks, so nothing is computed twice: drafted tokens rest after block k, and the check
carries them on from there (`Engine.advance`). What is rejected is cropped from the cache. The text is the one that F_d alone would
give: token for token when greedy, in distribution when sampled.

One text at a time: how many drafted tokens are kept differs from text to text.

Source:
    Leviathan et al., "Fast Inference from Transformers via Speculative Decoding" (arXiv 2211.17192): the rejection rule and the
    expected speed-up (theorem 3.8).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from components.inference.engine import Arrival, Engine, Feed
from components.inference.generate import Completion, Request
from components.inference.sampling import Sampler, probabilities
from components.models.cascade import Cascade

PRIOR_TESTS = 4.0  # the adaptive length starts as if it had seen this many tests, half of them passed
MEMORY = 0.9  # weight that a past test keeps at each new round of the adaptive length


@dataclass(frozen=True)
class Speculation:
    """How to draft.

    Attributes:
        depth: k of the drafting prefix, below the request's depth.
        draft_tokens: g, tokens drafted per round; with `is_adaptive` the most.
        is_adaptive: chooses each round's length, from 1 up, by the best expected speed-up at the acceptance seen so far.
        cost_ratio: c, time of one step at `depth` relative to the request's depth; only the adaptive length uses it.
    """

    depth: int
    draft_tokens: int
    is_adaptive: bool = False
    cost_ratio: float = 0.5

    def __post_init__(self) -> None:
        """Raises ValueError on a value out of range."""
        if self.draft_tokens < 1:
            raise ValueError(f"draft_tokens: must be at least 1 (got {self.draft_tokens})")
        if not self.cost_ratio > 0.0:
            raise ValueError(f"cost_ratio: must be positive (got {self.cost_ratio})")


@dataclass
class SpeculationCounts:
    """What happened.

    Attributes:
        rounds: passes of the verifier.
        drafted: tokens the drafter proposed.
        tested: of these, tokens that were compared: up to the first rejection of a round.
        accepted: of these, tokens that were kept.
    """

    rounds: int = 0
    drafted: int = 0
    tested: int = 0
    accepted: int = 0

    @property
    def acceptance(self) -> float | None:
        """Share of tested tokens that were kept, the `a` of `expected_speedup`; None before any test."""
        return self.accepted / self.tested if self.tested else None


def expected_speedup(acceptance: float, draft_tokens: int, cost_ratio: float) -> float:
    """(1 - a^(g+1)) / ((1 - a)(g c + 1)): tokens per round over its time, when checking g + 1 tokens takes as long as one step.

    Source:
        arXiv 2211.17192, theorem 3.8. It charges the check the verifier's first k blocks again, which here it need not run.
    """
    expected_tokens = sum(acceptance**i for i in range(draft_tokens + 1))
    return expected_tokens / (draft_tokens * cost_ratio + 1)


def speculate(
    model: Cascade, request: Request, speculation: Speculation, completion: Completion, counts: SpeculationCounts
) -> Iterator[int]:
    """The new tokens of one request, in bursts; `completion` and `counts` are kept up to date.

    Raises:
        ValueError: the draft is not shallower than the request, or a depth that the model does not have.
    """
    model.segment_at(request.depth)
    model.segment_at(speculation.depth)
    if speculation.depth >= request.depth:
        raise ValueError(f"draft depth {speculation.depth}: must be below the depth of the text, {request.depth}")
    decoder = _Speculator(model, request, speculation, counts)
    while completion.ending is None:
        left = request.max_tokens - len(completion.tokens)
        for token in decoder.round(left):
            if token in request.stop_tokens:
                completion.ending = "stop"
                return
            completion.tokens.append(token)
            if len(completion.tokens) == request.max_tokens:
                completion.ending = "length"
            yield token


class _Speculator:
    """One text: its cache, its newest token (not fed yet), and its draws."""

    def __init__(self, model: Cascade, request: Request, speculation: Speculation, counts: SpeculationCounts) -> None:
        self.request, self.speculation, self.counts = request, speculation, counts
        self.sampler = Sampler(request.sampling)
        capacity = len(request.prompt) + request.max_tokens
        self.engine = Engine(model, 1, capacity, request.depth)
        self.newest = request.prompt[-1]
        if len(request.prompt) > 1:
            self.engine.advance([Feed(0, request.prompt[:-1], request.depth)])
        self._tests, self._passed = PRIOR_TESTS, PRIOR_TESTS / 2

    def round(self, most_tokens: int) -> list[int]:
        """Drafts, checks, and returns the tokens that are now part of the text: at least one, at most `most_tokens`."""
        start = self.engine.cache.length(0)
        drafts, drafted_from = self._draft(min(self._draft_length(), most_tokens - 1))
        (checked,) = self.engine.advance([Feed(0, [drafts[-1] if drafts else self.newest], self.request.depth)])
        kept, self.newest = self._check(drafts, drafted_from, checked)
        self.engine.cache.crop(0, start + 1 + kept)
        self._note(len(drafts), kept)
        return [*drafts[:kept], self.newest]

    def _draft(self, n_tokens: int) -> tuple[list[int], list[Tensor]]:
        """Drafted tokens, the last one not fed yet, and the distributions they were drawn from (none when greedy)."""
        drafts: list[int] = []
        drafted_from: list[Tensor] = []
        token = self.newest
        for _ in range(n_tokens):
            (arrival,) = self.engine.advance([Feed(0, [token], self.speculation.depth)])
            logits_1V = self.engine.next_logits([arrival])
            if self.request.sampling.is_greedy:
                token = int(logits_1V.argmax())
            else:
                drafted_from.append(probabilities(logits_1V, self.request.sampling)[0])
                token = self.sampler.draw(drafted_from[-1])
            drafts.append(token)
        return drafts, drafted_from

    def _check(self, drafts: list[int], drafted_from: list[Tensor], checked: Arrival) -> tuple[int, int]:
        """How many drafts are kept, and the token after them: the rejection rule, which when greedy is plain comparison."""
        (logits_NV,) = self.engine.logits([checked], last_only=False)  # after the newest token and after each draft
        if self.request.sampling.is_greedy:
            best = logits_NV.argmax(dim=1).tolist()
            kept = next((i for i, token in enumerate(drafts) if token != best[i]), len(drafts))
            return kept, best[kept]
        wanted_NV = probabilities(logits_NV, self.request.sampling)
        for i, (token, drafted_from_V) in enumerate(zip(drafts, drafted_from, strict=True)):
            if self.sampler.uniform() >= float(wanted_NV[i, token] / drafted_from_V[token]):
                left_over_V = (wanted_NV[i] - drafted_from_V).clamp_min(0.0)
                return i, self.sampler.draw(left_over_V if left_over_V.any() else wanted_NV[i])  # none left over but rounding
        return len(drafts), self.sampler.draw(wanted_NV[-1])

    def _draft_length(self) -> int:
        if not self.speculation.is_adaptive:
            return self.speculation.draft_tokens
        acceptance, cost_ratio = self._passed / self._tests, self.speculation.cost_ratio
        lengths = range(1, self.speculation.draft_tokens + 1)
        return max(lengths, key=lambda length: expected_speedup(acceptance, length, cost_ratio))

    def _note(self, drafted: int, kept: int) -> None:
        tested = min(drafted, kept + 1)
        self.counts.rounds += 1
        self.counts.drafted += drafted
        self.counts.tested += tested
        self.counts.accepted += kept
        self._tests = MEMORY * self._tests + tested
        self._passed = MEMORY * self._passed + kept
