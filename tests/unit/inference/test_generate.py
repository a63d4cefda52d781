"""Generation against a loop of full forward passes: batches, ends, seeds, prompts in chunks, depth changed on the way."""

from __future__ import annotations

import pytest
import torch

from components.inference.generate import Request, Session, generate, stream
from components.inference.sampling import Sampling
from components.models.cascade import Cascade
from tests.toys import toy_cascade, toy_tokens


@pytest.fixture(scope="module")
def model() -> Cascade:
    return toy_cascade(dtype=torch.float32)


def _prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(toy_tokens(1, length, seed)[0].tolist())


def _slow_greedy(model: Cascade, prompt: tuple[int, ...], depths: list[int]) -> list[int]:
    tokens = list(prompt)
    for depth in depths:
        with torch.no_grad():
            tokens.append(int(model(torch.tensor([tokens]), depth)[0, -1].argmax()))
    return tokens[len(prompt) :]


def test_a_ragged_batch_gives_what_each_request_gives_alone(model: Cascade) -> None:
    requests = [Request(_prompt(3 + 2 * i, i), 1 + i % 5, 4 + i) for i in range(7)]
    for request, completion in zip(requests, generate(model, requests), strict=True):
        assert completion.tokens == _slow_greedy(model, request.prompt, [request.depth] * request.max_tokens)
        assert completion.ending == "length"


@pytest.mark.parametrize("chunk", [1, 2, 3, 5, 100])
def test_prompts_may_be_taken_in_chunks(model: Cascade, chunk: int) -> None:
    requests = [Request(_prompt(length, length), 4, 5) for length in (1, 6, 9)]
    whole, cut = generate(model, requests), generate(model, requests, prefill_tokens=chunk)
    assert [completion.tokens for completion in whole] == [completion.tokens for completion in cut]


def test_a_stop_token_ends_the_text_before_it(model: Cascade) -> None:
    free = _slow_greedy(model, _prompt(5), [3] * 8)
    stop = next(token for i, token in enumerate(free) if i >= 2 and token not in free[:i])
    (completion,) = generate(model, [Request(_prompt(5), 3, 8, stop_tokens=frozenset({stop}))])
    assert completion.tokens == free[: free.index(stop)]
    assert completion.ending == "stop"


def test_a_sampled_text_depends_on_its_seed_and_not_on_its_batch(model: Cascade) -> None:
    def request(seed: int) -> Request:
        return Request(_prompt(5), 5, 12, Sampling(1.0, top_k=20, seed=seed))

    (alone,) = generate(model, [request(7)])
    together = generate(model, [request(1), request(7), Request(_prompt(9), 2, 3), request(7)])
    assert alone.tokens == together[1].tokens == together[3].tokens != together[0].tokens


def test_streaming_gives_the_same_tokens_one_by_one(model: Cascade) -> None:
    request = Request(_prompt(4), 3, 6)
    tokens = stream(model, request)
    first = next(tokens)
    assert [first, *tokens] == generate(model, [request])[0].tokens


def test_depth_changed_between_steps_reads_out_the_new_depth(model: Cascade) -> None:
    depths = [2, 2, 5, 5, 1, 1, 4, 3]
    session = Session(model, [Request(_prompt(6), 2, len(depths)), Request(_prompt(3), 3, len(depths))], deepest=5)
    for depth in depths:
        session.set_depth(0, depth)
        session.step()
    assert session.completions[0].tokens == _slow_greedy(model, _prompt(6), depths)
    assert session.completions[1].tokens == _slow_greedy(model, _prompt(3), [3] * len(depths))
    assert session.is_done
    assert session.step() == {}


def test_depth_beyond_the_cache_is_refused(model: Cascade) -> None:
    session = Session(model, [Request(_prompt(6), 2, 4)])
    with pytest.raises(ValueError, match="opened for depths up to 2"):
        session.set_depth(0, 3)


def test_requests_that_make_no_sense_are_refused(model: Cascade) -> None:
    with pytest.raises(ValueError, match="prompt is empty"):
        Request((), 1, 1)
    with pytest.raises(ValueError, match="max_tokens"):
        Request((1,), 1, 0)
    with pytest.raises(ValueError, match=r"depth 6 outside 1\.\.5"):
        generate(model, [Request((1,), 6, 1)])
    with pytest.raises(ValueError, match="no request"):
        generate(model, [])
