"""The GPU check: one clean line where there is no GPU, and its parts run anywhere, on small models."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from bench.gpu_smoke import compare, measure, syncs, twin_of, with_streams
from tests.toys import ROOT, telescopic, toy_arm

VOCAB = 48
CPU = torch.device("cpu")


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_a_gpu_it_ends_with_one_clean_line() -> None:
    command = [sys.executable, "-m", "bench.gpu_smoke"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == "no CUDA device here: nothing was checked; run it on a machine with a GPU\n"


def test_two_precisions_of_one_step_agree_and_two_models_do_not() -> None:
    arm = toy_arm(telescopic())
    assert compare(arm, VOCAB, 12, (CPU, "float32"), (CPU, "float32")).cosine == pytest.approx(1.0, abs=1e-6)
    found = compare(arm, VOCAB, 12, (CPU, "bfloat16"), (CPU, "float32"))
    assert found.is_good
    assert found.loss_gap > 0  # bfloat16 was used
    assert not found._replace(cosine=0.5).is_good


@pytest.mark.parametrize("n_streams", [1, 2])
def test_speed_counts_the_flops_of_the_steps_it_times(n_streams: int) -> None:
    arm = toy_arm(telescopic())
    model = arm.model if n_streams == 1 else with_streams(arm.model, n_streams)
    speed = measure(twin_of(model, arm), VOCAB, 2, 12, CPU)
    assert speed.seconds > 0
    assert speed.flops_per_second > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_training_step_never_waits_for_the_gpu() -> None:
    assert syncs(toy_arm(telescopic()), VOCAB, 12, torch.device("cuda")) == ""
