"""Memory of the loss at the paper's vocabulary, measured in fresh processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.toys import ROOT

MEASURE = r"""
import re, sys
from pathlib import Path
import torch
import torch.nn.functional as F
from components.models.readout import distilled_nll_sum, nll_sum

def peak_kib():  # of this program alone: ru_maxrss starts at the peak of the process that started it
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1))

torch.set_num_threads(1)
hidden = torch.randn(2048, 32, requires_grad=True)
head = torch.randn(49152, 32, requires_grad=True)
labels = torch.randint(0, 49152, (2048,))
teacher = torch.randn(2048, 32)
nll_sum(hidden[:8], head[:64], labels[:8] % 64).backward()
before = peak_kib()
if sys.argv[1] == "plain":
    F.cross_entropy(hidden @ head.T, labels, reduction="sum").backward()
elif sys.argv[1] == "chunked":
    nll_sum(hidden, head, labels).backward()
else:
    distilled_nll_sum(hidden, head, labels, teacher, head, 0.3).backward()
print(peak_kib() - before)
"""


def _peak_kib(how: str) -> int:
    run = subprocess.run([sys.executable, "-c", MEASURE, how], cwd=ROOT, capture_output=True, text=True, check=True)
    return int(run.stdout)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_the_loss_at_vocabulary_49152_takes_an_eighth_of_plain_logits() -> None:
    plain = _peak_kib("plain")
    assert plain > 2 * 2048 * 49152 * 4 / 1024  # the logits and their gradient, at least
    assert _peak_kib("chunked") <= plain / 8
    assert _peak_kib("distilled") <= plain / 8
