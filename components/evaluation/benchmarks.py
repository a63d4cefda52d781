"""Log-likelihoods of continuations at every depth, from one trunk pass per request.

A request becomes end-of-text, context, continuation: the start token that packing puts before every document, once. What is asked
is the log-likelihood of the continuation's tokens. The tokenizer sees context and continuation together, as text; the cases where
their border is not a border of tokens, or they are longer than the model's window, are settled here and nowhere else.

Shapes: B requests of a batch, T tokens, D width of the residual stream, M scored tokens of a batch, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from components.config.problems import DataError
from components.data.tokenizer import Tokenizer
from components.evaluation.harness import Benchmark, Request, score_metrics
from components.evaluation.sweep import counted_blocks
from components.models.cascade import Cascade
from components.models.readout import CHUNK_TOKENS
from components.results import BenchmarkDepth, BenchmarkScores

REQUESTS_PER_PIECE = 4096


class Encoded(NamedTuple):
    """A request as tokens.

    Attributes:
        tokens: end-of-text, then context and continuation; int64.
        first: index of the first token that is scored, at least 1; all from there on are.
    """

    tokens: npt.NDArray[np.int64]
    first: int


class Window(NamedTuple):
    """A piece of a request that fits into the model: inputs are tokens[begin : end - 1], scored are tokens[first : end]."""

    request: int
    begin: int
    first: int
    end: int


@dataclass(frozen=True)
class RequestScores:
    """What the model says about every request.

    Attributes:
        n_streams: streams per token that ran.
        loglikelihoods: float64 [requests, N], nats.
        is_greedy: bool [requests, N], was every scored token the most likely one.
        blocks_run: blocks that had been executed when depth 1..N was read out.
    """

    n_streams: int
    loglikelihoods: npt.NDArray[np.float64]
    is_greedy: npt.NDArray[np.bool_]
    blocks_run: tuple[int, ...]


@dataclass(frozen=True)
class Prepared:
    """A benchmark as tokens and windows; the same for every model of one tokenizer and window."""

    benchmark: Benchmark
    encoded: tuple[Encoded, ...]
    windows: tuple[Window, ...]
    window_tokens: int

    @property
    def n_shortened(self) -> int:
        """Requests whose context lost its beginning."""
        return sum(_is_shortened(request, self.window_tokens) for request in self.encoded)

    @property
    def n_split(self) -> int:
        """Requests whose continuation is longer than the window."""
        return sum(_is_split(request, self.window_tokens) for request in self.encoded)


def prepare_benchmark(benchmark: Benchmark, tokenizer: Tokenizer, window_tokens: int) -> Prepared:
    """Tokenizes a benchmark.

    Args:
        window_tokens: the longest input of the model.

    Raises:
        DataError: a request asks for nothing.
    """
    encoded = encode_requests([request for requests in benchmark.requests for request in requests], tokenizer, benchmark.name)
    windows = tuple(window for i, request in enumerate(encoded) for window in cut_windows(i, request, window_tokens))
    return Prepared(benchmark, tuple(encoded), windows, window_tokens)


def encode_requests(requests: Sequence[Request], tokenizer: Tokenizer, name: str) -> list[Encoded]:
    """Each request as tokens.

    White space at the end of a context goes to the continuation, where the tokenizer wants it. When a token spans the border,
    scoring starts with that token: nothing of the continuation is left out, and the scores of context and continuation add up to
    that of the whole.

    Args:
        name: says in messages what is being encoded.

    Raises:
        DataError: a continuation is empty.
    """
    encoded: list[Encoded] = []
    for at in range(0, len(requests), REQUESTS_PER_PIECE):
        piece = requests[at : at + REQUESTS_PER_PIECE]
        contexts = tokenizer.encode_batch([request.context.rstrip() for request in piece])
        wholes = tokenizer.encode_batch([request.context + request.continuation for request in piece])
        for i, (context, whole) in enumerate(zip(contexts, wholes, strict=True), at):
            shared = next((j for j, pair in enumerate(zip(context, whole, strict=False)) if pair[0] != pair[1]), len(context))
            if shared >= len(whole):
                raise DataError(
                    f"benchmark {name}: request {i} has an empty continuation (context ends in {requests[i].context[-40:]!r}); "
                    "mend or remove the document"
                )
            encoded.append(Encoded(np.array([tokenizer.eos_id, *whole], np.int64), 1 + shared))
    return encoded


def cut_windows(index: int, request: Encoded, window_tokens: int) -> Iterator[Window]:
    """The request as one window, its context shortened from the left as far as needed.

    A continuation that does not fit even alone is scored in several windows, each token once and with at least half a window before
    it. (The harness's own backends fail there.)
    """
    n_tokens = len(request.tokens)
    if not _is_split(request, window_tokens):
        yield Window(index, max(0, n_tokens - window_tokens - 1), request.first, n_tokens)
        return
    stride = (window_tokens + 1) // 2
    for first in range(request.first, n_tokens, stride):
        end = min(first + stride, n_tokens)
        yield Window(index, max(0, end - window_tokens - 1), first, end)


def score_cells(
    model: Cascade, prepared: Prepared, batch_rows: int, on_windows: Callable[[int], object] = lambda _: None
) -> tuple[RequestScores, ...]:
    """All requests at every depth, for every number of streams that the model is trained with, ascending."""
    return tuple(score_requests(model, prepared, batch_rows, on_windows, n) for n in model.stream_counts)


def score_requests(
    model: Cascade,
    prepared: Prepared,
    batch_rows: int,
    on_windows: Callable[[int], object] = lambda _: None,
    n_streams: int = 1,
) -> RequestScores:
    """Scores all requests at every depth.

    Args:
        batch_rows: full windows in a batch; shorter ones go in accordingly more at a time.
        on_windows: told how many windows each finished batch had.
        n_streams: streams that run.
    """
    device = next(model.parameters()).device
    shape = (model.n_blocks, len(prepared.encoded))
    sums = torch.zeros(shape, dtype=torch.float64, device=device)
    misses = torch.zeros(shape, dtype=torch.int64, device=device)
    blocks_run: dict[int, int] = {}
    depths = range(1, model.n_blocks + 1)
    with torch.inference_mode(), model.running(n_streams), counted_blocks(model) as counted:
        for windows in _batches(prepared.windows, batch_rows * prepared.window_tokens):
            tokens_BT, at_M, labels_M, owner_M = (array.to(device) for array in _tensors(windows, prepared.encoded))
            counted.clear()
            for depth, x_BTD in model.residuals(tokens_BT, depths):
                blocks_run[depth] = len(counted)
                hidden_ND, head_VD = model.read_residual(x_BTD, depth)
                loglikelihood_M, is_hit_M = _score_tokens(hidden_ND[at_M], head_VD, labels_M)
                sums[depth - 1].index_add_(0, owner_M, loglikelihood_M.double())
                misses[depth - 1].index_add_(0, owner_M, (~is_hit_M).long())
            on_windows(len(windows))
    ran = tuple(blocks_run[depth] for depth in depths)
    return RequestScores(n_streams, sums.T.cpu().numpy(), (misses == 0).T.cpu().numpy(), ran)


def benchmark_scores(prepared: Prepared, cells: Sequence[RequestScores]) -> BenchmarkScores:
    """The benchmark's record: the harness's metrics of every (depth, streams) cell."""
    benchmark = prepared.benchmark
    depths = []
    for cell in cells:
        metrics = score_metrics(benchmark, cell.loglikelihoods, cell.is_greedy)
        for depth, (blocks_run, at_depth) in enumerate(zip(cell.blocks_run, metrics, strict=True), 1):
            depths.append(BenchmarkDepth(depth=depth, n_streams=cell.n_streams, blocks_run=blocks_run, metrics=at_depth))
    return BenchmarkScores(
        benchmark=benchmark.name,
        task_version=benchmark.version,
        fingerprint=benchmark.fingerprint,
        n=len(benchmark.documents),
        chance=benchmark.chance,
        n_requests=len(prepared.encoded),
        n_shortened=prepared.n_shortened,
        n_split=prepared.n_split,
        depths=tuple(depths),
    )


def _is_split(request: Encoded, window_tokens: int) -> bool:
    return len(request.tokens) - request.first > window_tokens


def _is_shortened(request: Encoded, window_tokens: int) -> bool:
    return not _is_split(request, window_tokens) and len(request.tokens) > window_tokens + 1


def _batches(windows: Sequence[Window], batch_tokens: int) -> Iterator[list[Window]]:
    """Windows of about equal length together, longest first: the first batch shows whether memory suffices."""
    ordered = sorted(windows, key=lambda window: window.begin - window.end)
    at = 0
    while at < len(ordered):
        longest = ordered[at].end - 1 - ordered[at].begin
        batch = ordered[at : at + max(1, batch_tokens // longest)]
        at += len(batch)
        yield batch


def _tensors(windows: Sequence[Window], encoded: Sequence[Encoded]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(inputs [B, T]; index into B * T of each prediction that is scored, its label, its request: [M]).

    Rows are filled up on the right, where causal attention keeps the filling from what is scored.
    """
    length = max(window.end - 1 - window.begin for window in windows)
    tokens_BT = np.zeros((len(windows), length), np.int64)
    at, labels, owners = [], [], []
    for row, (request, begin, first, end) in enumerate(windows):
        tokens = encoded[request].tokens
        tokens_BT[row, : end - 1 - begin] = tokens[begin : end - 1]
        at.append(np.arange(first - 1 - begin, end - 1 - begin) + row * length)
        labels.append(tokens[first:end])
        owners.append(np.full(end - first, request))
    at_M, labels_M, owner_M = (torch.from_numpy(np.concatenate(arrays)) for arrays in (at, labels, owners))
    return torch.from_numpy(tokens_BT), at_M, labels_M, owner_M


def _score_tokens(hidden_MD: Tensor, head_VD: Tensor, labels_M: Tensor) -> tuple[Tensor, Tensor]:
    """(log-likelihood of each label, float32; was it the most likely token), without holding all logits at once."""
    loglikelihoods, hits = [], []
    for hidden, labels in zip(torch.split(hidden_MD, CHUNK_TOKENS), torch.split(labels_M, CHUNK_TOKENS), strict=True):
        logits = (hidden @ head_VD.to(hidden.dtype).T).float()
        loglikelihoods.append(logits.gather(1, labels[:, None])[:, 0] - logits.logsumexp(dim=1))
        hits.append(logits.argmax(dim=1) == labels)
    return torch.cat(loglikelihoods), torch.cat(hits)
