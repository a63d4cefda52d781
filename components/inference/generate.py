"""Generates text for a batch of requests, each with its own prompt, depth, sampling and end.

A request's newest token is not fed until the next step, so its depth may be changed between any two steps: the step after reads out
the new depth, over a past that is complete at that depth (`engine.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from components.inference.engine import Engine, Feed
from components.inference.sampling import Sampler, Sampling, choose_tokens
from components.models.cascade import Cascade

Ending = Literal["stop", "length"]


@dataclass(frozen=True)
class Request:
    """One text to continue.

    Attributes:
        prompt: token ids, at least one. Models trained with `block_diagonal` attention know an end-of-text token only in front.
        depth: k, blocks to run; `Session.set_depth` changes it later.
        max_tokens: new tokens at most.
        stop_tokens: the text ends before the first of these.
    """

    prompt: tuple[int, ...]
    depth: int
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    stop_tokens: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        """Raises ValueError on an empty prompt or no tokens to generate."""
        if not self.prompt:
            raise ValueError("the prompt is empty: it needs at least one token")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens: must be at least 1 (got {self.max_tokens})")


@dataclass
class Completion:
    """What has been generated for a request so far; `ending` is None while it goes on."""

    tokens: list[int]
    ending: Ending | None


class Session:
    """Requests that are decoded together."""

    def __init__(
        self, model: Cascade, requests: Sequence[Request], deepest: int | None = None, prefill_tokens: int | None = None
    ) -> None:
        """Allocates the cache for the longest request.

        Args:
            deepest: the deepest that `set_depth` will ask for; by default the deepest of the requests.
            prefill_tokens: most prompt tokens of a request that one pass takes; all of them by default.

        Raises:
            ValueError: a depth that the model or the cache does not have, or no request.
        """
        if not requests:
            raise ValueError("no request")
        if prefill_tokens is not None and prefill_tokens < 1:
            raise ValueError(f"prefill_tokens: must be at least 1 (got {prefill_tokens})")
        for request in requests:
            model.segment_at(request.depth)
        capacity = max(len(request.prompt) + request.max_tokens for request in requests)
        needed = max(request.depth for request in requests)
        self.engine = Engine(model, len(requests), capacity, needed if deepest is None else deepest)
        self.requests = list(requests)
        self.completions = [Completion([], None) for _ in requests]
        self._depths = [request.depth for request in requests]
        self._samplers = [Sampler(request.sampling) for request in requests]
        self._to_feed = [list(request.prompt) for request in requests]
        self._chunk = prefill_tokens

    @property
    def is_done(self) -> bool:
        return all(completion.ending for completion in self.completions)

    def set_depth(self, request: int, depth: int) -> None:
        """Reads out another depth from the next step on.

        Raises:
            ValueError: the session has no cache that deep, or the model no such depth.
        """
        self.engine.model.segment_at(depth)
        if depth > self.engine.cache.deepest:
            raise ValueError(f"depth {depth}: this session was opened for depths up to {self.engine.cache.deepest}")
        self._depths[request] = depth

    def step(self) -> dict[int, int]:
        """Gives every open request its next token, and returns these by request; one that ends by a stop token gets none."""
        active = [i for i, completion in enumerate(self.completions) if completion.ending is None]
        if not active:
            return {}
        arrivals = self.engine.advance([self._feed(i) for i in active])
        while self._chunk and any(self._to_feed[i] for i in active):
            unfinished = [i for i in active if self._to_feed[i]]
            newest = self.engine.advance([self._feed(i) for i in unfinished])
            for i, arrival in zip(unfinished, newest, strict=True):
                arrivals[active.index(i)] = arrival
        added: dict[int, int] = {}
        chosen = choose_tokens([self._samplers[i] for i in active], self.engine.next_logits(arrivals))
        for i, token in zip(active, chosen, strict=True):
            if self._take(i, token):
                added[i] = token
        return added

    def _feed(self, i: int) -> Feed:
        tokens = self._to_feed[i][: self._chunk] if self._chunk else self._to_feed[i]
        self._to_feed[i] = self._to_feed[i][len(tokens) :]
        return Feed(i, tokens, self._depths[i])

    def _take(self, i: int, token: int) -> bool:
        request, completion = self.requests[i], self.completions[i]
        if token in request.stop_tokens:
            completion.ending = "stop"
            return False
        completion.tokens.append(token)
        self._to_feed[i] = [token]
        if len(completion.tokens) == request.max_tokens:
            completion.ending = "length"
        return True


def generate(model: Cascade, requests: Sequence[Request], prefill_tokens: int | None = None) -> list[Completion]:
    """Completes all requests, in one batch."""
    session = Session(model, requests, prefill_tokens=prefill_tokens)
    while not session.is_done:
        session.step()
    return session.completions


def stream(model: Cascade, request: Request) -> Iterator[int]:
    """The new tokens of one request, each as soon as it is there."""
    session = Session(model, [request])
    while not session.is_done:
        yield from session.step().values()
