"""Peak memory of the loss at vocabulary 49,152, forward and backward, against plain logits.

Every way of computing it gets a process of its own; what is read is how far its peak (VmHWM) rises. `distilled` has a teacher.

    python -m bench.loss_memory [--size full]
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.turns import Row, Size, Spread, at_most, run_alone

STATUS = Path("/proc/self/status")
VOCAB, WIDTH = 49_152, 32
TOKENS = {"smoke": 512, "short": 2048, "full": 2048}
MEASURE = r"""
import re, sys
from pathlib import Path
import torch
import torch.nn.functional as F
from components.models.readout import distilled_nll_sum, nll_sum

def peak_kib():  # of this program alone: ru_maxrss starts at the peak of the process that started it
    return int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text()).group(1))

how, tokens, vocab, width = sys.argv[1], *map(int, sys.argv[2:])
torch.set_num_threads(1)
hidden = torch.randn(tokens, width, requires_grad=True)
head = torch.randn(vocab, width, requires_grad=True)
labels = torch.randint(0, vocab, (tokens,))
teacher = torch.randn(tokens, width)
nll_sum(hidden[:8], head[:64], labels[:8] % 64).backward()
before = peak_kib()
if how == "plain":
    F.cross_entropy(hidden @ head.T, labels, reduction="sum").backward()
elif how == "chunked":
    nll_sum(hidden, head, labels).backward()
else:
    distilled_nll_sum(hidden, head, labels, teacher, head, 0.3).backward()
print(peak_kib() - before)
"""


def rows(size: Size) -> list[Row]:
    """Each loss as a share of plain logits."""
    goal = at_most(1 / 8)
    if not STATUS.exists():
        return [Row(10, "memory of the loss", "plain logits", goal, None, f"{STATUS} is not there")]
    plain = peak_kib("plain", TOKENS[size])
    shares = {how: peak_kib(how, TOKENS[size]) / plain for how in ("chunked", "distilled")}
    return [Row(10, f"memory of the loss, {how}", "plain logits", goal, Spread.of([share])) for how, share in shares.items()]


def peak_kib(how: str, tokens: int) -> int:
    """How far the peak of a fresh process rises, KiB."""
    command = [sys.executable, "-c", MEASURE, how, str(tokens), str(VOCAB), str(WIDTH)]
    run = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
    return int(run.stdout)


if __name__ == "__main__":
    run_alone(rows, __doc__)
