"""The machine as processes use it: freed memory that is kept does not come back page by page."""

from __future__ import annotations

import subprocess
import sys

import pytest

FAULTS = """
import resource
import torch
from components.models.devices import keep_freed_memory

{before}
for turn in range(40):
    if turn == 20:  # by then the heap has room for all that is held at once
        start = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16 << 20)  # 64 MiB, 16,384 pages
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - start)
"""


def page_faults(before: str) -> int:
    done = subprocess.run([sys.executable, "-c", FAULTS.format(before=before)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere another allocator decides")
def test_the_memory_of_freed_tensors_is_kept() -> None:
    without, kept = page_faults("pass"), page_faults("keep_freed_memory()")
    if without < 1000:
        pytest.skip("this C library, or its settings, keeps freed memory anyway")
    assert kept < without / 4, (kept, without)
