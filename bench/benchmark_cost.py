"""Time of scoring a benchmark at every depth, against lm-evaluation-harness' own Hugging Face backend at one depth.

Same questions, tokenizer, weights and batch size; each side starts from text. The log-likelihoods at full depth have to agree, or
nothing is measured. Single thread, float32.

    python -m bench.benchmark_cost [--size full]
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch

from bench.peers import llama_of
from bench.texts import questions, small_tokenizer
from bench.turns import Row, Size, at_most, dense_model, quotients, run_alone, take_turns
from components.data.tokenizer import Tokenizer
from components.evaluation.benchmarks import Prepared, cut_windows, encode_requests, score_requests
from components.evaluation.harness import Request
from components.models.cascade import Cascade
from components.models.onednn import onednn_products

WINDOW, BATCH = 256, 8
CASES = {
    "smoke": (2, 32, 16, 2, 1),
    "short": (8, 256, 64, 16, 3),
    "full": (8, 256, 64, 64, 5),
}  # blocks, width, head, questions, rounds


def rows(size: Size) -> list[Row]:
    """Our time at every depth over the harness' at one."""
    from lm_eval.api.instance import Instance

    torch.set_num_threads(1)
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    n_blocks, width, head_dim, n_questions, rounds = CASES[size]
    tokenizer = small_tokenizer()
    model = Cascade(dense_model(n_blocks, width, head_dim), tokenizer.vocab_size)
    model.init_weights(0)
    model.eval()
    asked = questions(n_questions)
    backend = _backend(model, tokenizer)
    instances = [
        Instance(request_type="loglikelihood", doc={}, arguments=(one.context, one.continuation), idx=i)
        for i, one in enumerate(asked)
    ]
    theirs = [answer[0] for answer in backend.loglikelihood(instances, disable_tqdm=True)]
    np.testing.assert_allclose(_score(model, asked, tokenizer)[:, -1], theirs, atol=1e-3)
    seconds = take_turns(
        {
            "ours": lambda: _score(model, asked, tokenizer),
            "theirs": lambda: backend.loglikelihood(instances, disable_tqdm=True),
        },
        rounds,
    )
    ratio = quotients(seconds["ours"], seconds["theirs"])
    return [Row(6, f"benchmark at all {n_blocks} depths", "lm-eval HF, one depth", at_most(1.5), ratio)]


def _score(model: Cascade, asked: list[Request], tokenizer: Tokenizer) -> np.ndarray[Any, Any]:
    encoded = encode_requests(asked, tokenizer, "bench")
    windows = tuple(window for i, request in enumerate(encoded) for window in cut_windows(i, request, WINDOW))
    prepared = Prepared(None, tuple(encoded), windows, WINDOW)  # type: ignore[arg-type]  # scoring asks the benchmark nothing
    with onednn_products():  # as the stage does
        return score_requests(model, prepared, BATCH).loglikelihoods


def _backend(model: Cascade, tokenizer: Tokenizer) -> Any:
    from lm_eval.models.huggingface import HFLM
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    raw = type(tokenizer.raw).from_str(tokenizer.raw.to_str())
    eos = tokenizer.eos_token
    raw.post_processor = TemplateProcessing(single=f"{eos} $A", special_tokens=[(eos, tokenizer.eos_id)])
    fast = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=eos, bos_token=eos, pad_token=eos)
    return HFLM(pretrained=llama_of(model, WINDOW), tokenizer=fast, batch_size=BATCH, max_length=WINDOW, device="cpu")


if __name__ == "__main__":
    run_alone(rows, __doc__)
