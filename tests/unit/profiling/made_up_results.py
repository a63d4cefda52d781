"""Evaluations and profiles with made-up numbers, for joining and choosing."""

from __future__ import annotations

from typing import Any

from components.results import (
    ArmEvaluation,
    ArmProfile,
    DepthScore,
    LatencyCell,
    SeedEvaluation,
    Timing,
    ValidationSet,
    finite,
    perplexity,
)


def made_up_evaluation(arm: str, nll: list[float], validation: str = "v", seeds: int = 1, n_streams: int = 1) -> ArmEvaluation:
    def score(depth: int, value: float) -> DepthScore:
        state, number = finite(value)
        return DepthScore(
            depth=depth, n_streams=n_streams, state=state, nll_nats=number, ppl=perplexity(number),
            bits_per_byte=None if number is None else number / 2, parameters=100 * depth, flops_per_token=200 * depth,
            blocks_run=depth,
        )  # fmt: skip

    return ArmEvaluation(
        version=1, arm=arm, objective="telescopic", n_blocks=len(nll), exits=(len(nll),), trained_depths=(len(nll),), vocab_size=9,
        validation=ValidationSet(fingerprint=validation, n_documents=1, n_tokens=1, n_bytes=1),
        seeds=tuple(
            SeedEvaluation(
                seed=seed, depths=tuple(score(k, value + seed) for k, value in enumerate(nll, 1)), aulb_nats=None,
                aulb_clipped_nats=None,
            )
            for seed in range(seeds)
        ),
    )  # fmt: skip


def made_up_profile(arm: str, steps: list[float], **changes: Any) -> ArmProfile:
    def cell(depth: int, seconds: float, batch: int, context: int) -> LatencyCell:
        step = Timing(median_seconds=seconds * batch, low_seconds=seconds, high_seconds=2 * seconds * batch, samples=3)
        return LatencyCell(
            depth=depth, n_streams=1, batch_size=batch, context_tokens=context, prefill=step, decode=step,
            prefill_tokens_per_second=1.0, decode_tokens_per_second=1 / seconds, weight_bytes=1000 * depth,
            kv_bytes=batch * context, peak_memory_bytes=1,
        )  # fmt: skip

    cells = tuple(cell(k, s, batch, context) for batch in (1, 4) for context in (10, 20) for k, s in enumerate(steps, 1))
    fields = {
        "version": 1, "arm": arm, "seed": 0, "n_blocks": len(steps), "device": "A CPU", "device_kind": "cpu", "threads": 1,
        "dtype": "float32", "torch_version": "2", "decode_steps": 1, "repeats": 3, "cells": cells, "violations": (),
        "speculation": (), "recommended": None,
    }  # fmt: skip
    return ArmProfile(**{**fields, **changes})
