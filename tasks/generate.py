"""Continues a prompt with a trained arm at any depth, any number of streams, and shows the text as it comes; speed goes to stderr.

A draft depth turns on self-speculative decoding: the same greedy text, checked in bursts; its gain is measured and told.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from components.config.problems import ConfigError, DataError
from tasks.choice import add_model_arguments, add_streams_argument, check_option, check_streams, choose_model
from tasks.command import add_path, command_parser, run_command, whole_number, whole_numbers

if TYPE_CHECKING:
    from components.data.tokenizer import Tokenizer
    from components.inference.generate import Request
    from components.inference.speculative import Speculation
    from components.models.cascade import Cascade

DRAFT_TOKENS = 4
EXAMPLES = """
python -m tasks.generate --arm tlm-uniform --depth 7 "The state of the union"
python -m tasks.generate --arm tlm-uniform --temperature 0.8 --top-p 0.95 --sampling-seed 3 "My fellow citizens"
python -m tasks.generate --arm tlm-uniform --compare-depths 4,8,16 "The state of the union"
python -m tasks.generate --arm hd-n4 --depth 12 --streams 4 "The state of the union"
python -m tasks.generate --arm tlm-uniform --speculative-depth 5 --draft-tokens 3 "The state of the union"
"""


def main() -> None:
    """Checks the request before torch is imported, then generates."""
    arguments = _arguments()
    chosen = choose_model(arguments)
    n_blocks = chosen.arm.model.n_blocks
    depth = check_option("--depth", n_blocks if arguments.depth is None else arguments.depth, n_blocks)
    depths = [check_option("--compare-depths", k, n_blocks) for k in arguments.compare_depths or (depth,)]
    drafting = arguments.speculative_depth
    if drafting is not None and not 1 <= drafting < depth:
        raise ConfigError(f"--speculative-depth {drafting}: must be at least 1, and less than the {depth} blocks that check it")
    streams = check_streams(arguments.streams, chosen.arm)
    if not arguments.prompt.strip():
        raise ConfigError('the prompt is empty; give some text, e.g. "The state of the union"')
    if any("\ud800" <= character <= "\udfff" for character in arguments.prompt):
        raise ConfigError("the prompt is not UTF-8 text; give it in the terminal's encoding")

    from components.data.tokenizer import Tokenizer

    tokenizer = Tokenizer.open(arguments.tokenizer)
    prompt = (tokenizer.eos_id, *tokenizer.encode_batch([arguments.prompt])[0])
    max_tokens = _max_tokens(arguments.max_tokens, len(prompt), chosen.study.data.seq_len)
    import torch

    from components.inference.generate import Request
    from components.inference.sampling import Sampling
    from components.inference.speculative import Speculation
    from components.models.devices import pick_device
    from components.models.files import load_model
    from components.models.sizes import prefix_flops

    torch.set_num_threads(chosen.study.runtime.threads_per_worker)
    model, card = load_model(chosen.folder, pick_device(chosen.study.runtime.device))
    if card.tokenizer_hash != tokenizer.hash:
        raise DataError(f"{arguments.tokenizer}: not the tokenizer that {chosen.folder} was trained with; run `dvc repro`")
    with _clean_errors(), model.running(streams):
        sampling = Sampling(arguments.temperature, arguments.top_k, arguments.top_p, arguments.sampling_seed)
        requests = [Request(prompt, k, max_tokens, sampling, frozenset({tokenizer.eos_id})) for k in depths]
        if arguments.compare_depths:
            _compare(model, requests, tokenizer)
        elif drafting is None:
            _stream(model, requests[0], tokenizer, arguments.prompt)
        else:
            shape, context = chosen.arm.model.serving(streams), chosen.study.data.seq_len
            draft, whole = (prefix_flops(shape, tokenizer.vocab_size, k, context) for k in (drafting, depth))
            speculation = Speculation(drafting, arguments.draft_tokens or DRAFT_TOKENS, arguments.adaptive, draft / whole)
            _speculate(model, requests[0], speculation, tokenizer, arguments.prompt)


@contextlib.contextmanager
def _clean_errors() -> Iterator[None]:
    """What the request asks for and the model does not have is the user's to mend."""
    try:
        yield
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _stream(model: Cascade, request: Request, tokenizer: Tokenizer, prompt: str) -> None:
    from components.inference.generate import stream
    from components.inference.text import TextStream

    text, n_tokens, started = TextStream(tokenizer.decode, request.prompt), 0, time.perf_counter()
    _show(prompt)
    for token in stream(model, request):
        n_tokens += 1
        _show(text.add(token))
    _show(text.end() + "\n")
    _tell(f"{_place(model, request)}: {_speed(n_tokens, time.perf_counter() - started)}")


def _compare(model: Cascade, requests: list[Request], tokenizer: Tokenizer) -> None:
    """All depths in one batch, each request at its own."""
    from components.inference.generate import generate

    started = time.perf_counter()
    completions = generate(model, requests)
    seconds = time.perf_counter() - started
    for request, completion in zip(requests, completions, strict=True):
        _show(f"--- depth {request.depth}\n{tokenizer.decode([*request.prompt, *completion.tokens])}\n")
    _tell(f"{len(requests)} depths in one batch: {_speed(sum(len(c.tokens) for c in completions), seconds)}")


def _speculate(model: Cascade, request: Request, speculation: Speculation, tokenizer: Tokenizer, prompt: str) -> None:
    from components.inference.generate import Completion
    from components.inference.speculative import SpeculationCounts, speculate
    from components.inference.text import TextStream
    from components.profiling.latency import Stopwatch
    from components.profiling.speculation import measure_cost_ratio, measure_speculation

    text, completion, counts = TextStream(tokenizer.decode, request.prompt), Completion([], None), SpeculationCounts()
    started = time.perf_counter()
    _show(prompt)
    for token in speculate(model, request, speculation, completion, counts):
        _show(text.add(token))
    _show(text.end() + "\n")
    seconds = time.perf_counter() - started
    watch = Stopwatch.of(next(model.parameters()).device)
    cost_ratio = measure_cost_ratio(model, speculation.depth, request.depth, len(request.prompt), watch)
    cell = measure_speculation(model, [request] * 3, speculation, cost_ratio, watch)
    acceptance = "none tested" if cell.acceptance is None else f"{cell.acceptance:.2f}"
    expected = "-" if cell.expected_speedup is None else f"{cell.expected_speedup:.2f}x"
    verdict = "faster" if cell.measured_low > 1.0 else "slower" if cell.measured_high < 1.0 else "no clear gain"
    _tell(f"{_place(model, request)}, drafted by depth {speculation.depth}: {_speed(len(completion.tokens), seconds)}")
    _tell(
        f"acceptance {acceptance}, cost ratio {cell.cost_ratio:.2f}; {cell.measured_speedup:.2f}x the speed of plain decoding "
        f"({cell.measured_low:.2f}-{cell.measured_high:.2f}; formula {expected}): {verdict}"
    )


def _max_tokens(wanted: int | None, n_prompt: int, context: int) -> int:
    """New tokens: as many as wanted, or as the context has room for.

    Raises:
        ConfigError: the prompt, or what is wanted after it, does not fit.
    """
    room = context - n_prompt
    if room < 1:
        raise ConfigError(f"the prompt has {n_prompt} tokens, the context {context}; shorten it by {1 - room} tokens or more")
    if wanted is not None and wanted > room:
        raise ConfigError(f"--max-tokens {wanted}: after {n_prompt} tokens of prompt the context of {context} has room for {room}")
    return room if wanted is None else wanted


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _tell(line: str) -> None:
    print(line, file=sys.stderr)


def _place(model: Cascade, request: Request) -> str:
    return f"depth {request.depth} of {model.n_blocks}" + (f", {model.n_running} streams" if model.n_running > 1 else "")


def _speed(n_tokens: int, seconds: float) -> str:
    return f"{n_tokens} tokens in {seconds:.2f} s, {n_tokens / seconds:,.0f} tokens/s"


def _arguments() -> argparse.Namespace:
    parser = command_parser("tasks.generate", __doc__, EXAMPLES)
    parser.add_argument("prompt", help="text to continue")
    add_model_arguments(parser)
    parser.add_argument("--depth", type=int, help="k, blocks to run (default: all)")
    add_streams_argument(parser)
    parser.add_argument("--max-tokens", type=whole_number, help="new tokens (default: to the end of the context)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: %(default)s)")
    parser.add_argument("--top-k", type=whole_number, help="draw from the k likeliest tokens only (default: all)")
    parser.add_argument("--top-p", type=float, default=1.0, help="draw from the likeliest that reach this (default: %(default)s)")
    parser.add_argument("--sampling-seed", type=int, default=0, help="of the draws (default: %(default)s)")
    parser.add_argument("--speculative-depth", type=int, help="draft with this depth (default: no drafting)")
    parser.add_argument("--draft-tokens", type=whole_number, help=f"tokens per draft (default: {DRAFT_TOKENS})")
    parser.add_argument("--adaptive", action="store_true", help="adapt the draft length, up to --draft-tokens")
    parser.add_argument("--compare-depths", type=whole_numbers, help="the same prompt at several depths, e.g. 4,8,16")
    add_path(parser, "--tokenizer", "artifacts/tokenizer", "folder of the tokenizer")
    arguments = parser.parse_args()
    if arguments.compare_depths and (arguments.speculative_depth is not None or arguments.depth is not None):
        parser.error("--compare-depths goes without --depth and --speculative-depth")
    if arguments.speculative_depth is None and (arguments.adaptive or arguments.draft_tokens):
        parser.error("--draft-tokens and --adaptive go with --speculative-depth")
    if not 0.0 <= arguments.temperature < float("inf"):
        parser.error(f"--temperature must be 0 (greedy) or more (got {arguments.temperature})")
    if not 0.0 < arguments.top_p <= 1.0:
        parser.error(f"--top-p must be in (0, 1] (got {arguments.top_p})")
    if not -(2**63) <= arguments.sampling_seed < 2**64:
        parser.error(f"--sampling-seed must be a number of 64 bits (got {arguments.sampling_seed})")
    return arguments


if __name__ == "__main__":
    run_command(main)
