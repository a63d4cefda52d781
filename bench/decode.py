"""Decoding speed of the engine against `transformers`' `generate` on the same exported prefix, and against the share of FLOPs.

Both continue the same prompts greedily by the same number of tokens and must give the same text; they take turns, so that a busy
machine slows both alike. Printed per depth and batch: tokens/s of both, their ratio (median and spread over rounds), and the time
of a text as a share of the whole model's, beside the share of FLOPs. One thread, float32, CPU; weights are drawn: speed does not
depend on them. The peer of a depth in the first segment is the library's own Llama, of a deeper one the exported modelling file.

    python -m bench.decode [--scale quick] [--rounds 5] [--tokens 48]
"""

from __future__ import annotations

import itertools
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bench.texts import small_tokenizer
from bench.turns import Row, Size, at_least, bench_parser, quick_study, quotients
from components.config.loader import load_study
from components.data.tokenizer import Tokenizer
from components.inference.export import export_prefix
from components.inference.generate import Request, generate
from components.models.cascade import Cascade
from components.models.files import ModelCard
from components.models.sizes import prefix_flops

PROMPT_TOKENS = 16


class Times(NamedTuple):
    """Seconds of each round."""

    engine: list[float]
    peer: list[float]


def main() -> None:
    parser = bench_parser(__doc__)
    parser.add_argument("--scale", default="quick", help="parameter file of scales/ with the model (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns that each takes (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=48, help="new tokens per text (default: %(default)s)")
    parser.add_argument("--depths", type=int, nargs="*", help="depths to measure (default: half of each segment, and its end)")
    parser.add_argument("--tokenizer", type=Path, default=Path("artifacts/tokenizer"), help="goes into the export")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    study = load_study(Path("scales") / f"{arguments.scale}.yaml")
    model = Cascade(study.model, study.data.tokenizer.vocab_size)
    model.init_weights(0)
    exits = (0, *study.model.exits)
    halves = [(low + high) // 2 for low, high in itertools.pairwise(exits)]
    depths = arguments.depths or sorted({*halves, *study.model.exits} - {0})
    print(f"{model.n_blocks} blocks, exits {study.model.exits}, {arguments.tokens} new tokens after {PROMPT_TOKENS}, one thread")
    names = ("batch", "depth", "engine tok/s", "peer tok/s", "ratio", "spread", "time/full", "FLOPs/full")
    print("".join(name.rjust(width) for name, width in zip(names, (5, 6, 14, 12, 8, 14, 11, 12), strict=True)))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HOME"] = f"{folder}/hub"
        tokenizer = Tokenizer.open(arguments.tokenizer)
        peers = {depth: _peer(model.eval(), depth, tokenizer, Path(folder) / str(depth)) for depth in depths}
        for batch in (1, 8):
            times = measure(model, peers, batch, arguments.tokens, arguments.rounds)
            _print(model, times, batch, arguments.tokens)


def rows(size: Size) -> list[Row]:
    """Our decoding speed over the peer's at full depth, batch 1 and 8."""
    torch.set_num_threads(1)
    rounds, n_tokens = {"smoke": (1, 4), "short": (3, 32), "full": (7, 48)}[size]
    study = quick_study()
    model = Cascade(study.model, study.data.tokenizer.vocab_size)
    model.init_weights(0)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HOME"] = f"{folder}/hub"
        peers = {model.n_blocks: _peer(model.eval(), model.n_blocks, small_tokenizer(), Path(folder) / "full")}
        for batch in (1, 8):
            ours, theirs = measure(model, peers, batch, n_tokens, rounds)[model.n_blocks]
            found.append(Row(7, f"decode tokens/s, batch {batch}", "transformers generate", at_least(2.0), quotients(theirs, ours)))
    return found


def measure(model: Cascade, peers: dict[int, Any], batch: int, n_tokens: int, rounds: int) -> dict[int, Times]:
    """Seconds of the engine and of each depth's peer, by turns.

    Raises:
        SystemExit: the two give different texts.
    """
    prompts = torch.randint(1, model.vocab_size, (batch, PROMPT_TOKENS), generator=torch.Generator().manual_seed(0))
    ours: dict[int, list[float]] = {depth: [] for depth in peers}
    theirs: dict[int, list[float]] = {depth: [] for depth in peers}
    for turn in range(rounds + 1):
        for depth, peer in peers.items():
            requests = [Request(tuple(prompt), depth, n_tokens) for prompt in prompts.tolist()]
            engine_seconds, texts = _timed(lambda requests=requests: [c.tokens for c in generate(model, requests)])
            peer_seconds, peer_texts = _timed(lambda peer=peer: _generate(peer, prompts, n_tokens))
            if texts != peer_texts:
                raise SystemExit(f"depth {depth}, batch {batch}: the two give different texts")
            if turn:  # the first is warm-up
                ours[depth].append(engine_seconds)
                theirs[depth].append(peer_seconds)
    return {depth: Times(ours[depth], theirs[depth]) for depth in peers}


def _print(model: Cascade, times: dict[int, Times], batch: int, n_tokens: int) -> None:
    ours, theirs = ({depth: one[side] for depth, one in times.items()} for side in (0, 1))
    whole = max(times)
    for depth in times:
        ratios = sorted(b / a for a, b in zip(ours[depth], theirs[depth], strict=True))
        share = statistics.median(a / b for a, b in zip(ours[depth], ours[whole], strict=True))
        flops = [prefix_flops(model.settings, model.vocab_size, k, PROMPT_TOKENS + n_tokens) for k in (depth, whole)]
        speeds = [batch * n_tokens / statistics.median(seconds[depth]) for seconds in (ours, theirs)]
        print(
            f"{batch:5}{depth:6}{speeds[0]:14,.0f}{speeds[1]:12,.0f}{statistics.median(ratios):8.2f}"
            f"{ratios[0]:8.2f}-{ratios[-1]:.2f}{share:11.2f}{flops[0] / flops[1]:12.2f}"
        )


def _peer(model: Cascade, depth: int, tokenizer: Tokenizer, out: Path) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    card = ModelCard(
        version=1, arm="bench", seed=0, model=model.settings, vocab_size=model.vocab_size, eos_id=0, objective={},
        trained_depths=(), repair=None, steps=0, tokens_per_step=0, seq_len=2048, data_fingerprint="", stream_fingerprint="",
        tokenizer_hash="",
    )  # fmt: skip
    export_prefix(model, card, depth, tokenizer, "", out)
    return AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True).eval()


def _generate(peer: Any, prompts: torch.Tensor, n_tokens: int) -> list[list[int]]:
    mask = torch.ones_like(prompts)
    found = peer.generate(prompts, attention_mask=mask, max_new_tokens=n_tokens, do_sample=False, eos_token_id=None, pad_token_id=0)
    texts: list[list[int]] = found[:, prompts.shape[1] :].tolist()
    return texts


def _timed(run: Callable[[], list[list[int]]]) -> tuple[float, list[list[int]]]:
    started = time.process_time()
    texts = run()
    return time.process_time() - started, texts


if __name__ == "__main__":
    main()
