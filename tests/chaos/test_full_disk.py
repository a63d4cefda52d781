"""A disk that fills up while something is written: a clean error, what was whole stays whole, and the next run ends the same."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from components.config.problems import StorageError
from components.data.folders import replaced_folder
from components.data.manifest import RowsHeader
from components.data.rows import n_rows_of, write_rows
from components.training.run import Progress, run_training
from tests.toys import telescopic, toy_run

UNIFORM = telescopic("uniform")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one megabyte."""
    folder = tmp_path / "small disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("a small file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def file_size_limit(n_bytes: int) -> Iterator[None]:
    """No file of this process grows beyond it: the same kind of error, without root."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


class StopHereError(Exception):
    pass


def stop_at(step: int) -> Callable[[Progress], None]:
    def on_progress(progress: Progress) -> None:
        if progress.step == step:
            raise StopHereError

    return on_progress


def test_disk_full_in_a_save_keeps_the_checkpoint_before(tmp_path: Path, small_disk: Path) -> None:
    straight, run = toy_run(tmp_path / "straight", UNIFORM), toy_run(small_disk, UNIFORM)
    run_training(straight, lambda _: None)
    with pytest.raises(StopHereError):
        run_training(run, stop_at(4))
    (checkpoint,) = run.run_dir.glob("*/step-3")
    before = files(checkpoint)
    ballast = small_disk / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb") as file:
        while True:
            file.write(bytes(4096))
            file.flush()
    with pytest.raises(StorageError, match="step-6: cannot be written: No space left on device; the checkpoint of step 3 is kept"):
        run_training(run, lambda _: None)
    assert files(checkpoint) == before
    assert not list(run.run_dir.glob("*/.writing-*"))
    ballast.unlink()
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    seen: list[Progress] = []
    run_training(run, seen.append)
    assert seen[0].resumed_from == 3
    assert files(run.output_dir) == files(straight.output_dir)


def test_file_size_limit_in_a_save_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    straight, run = toy_run(tmp_path / "straight", UNIFORM), toy_run(tmp_path / "limited", UNIFORM)
    run_training(straight, lambda _: None)
    with pytest.raises(StopHereError):
        run_training(run, stop_at(8))
    with file_size_limit(100_000), pytest.raises(StorageError, match=r"step-9: .*File too large; the checkpoint of step 6 is kept"):
        run_training(run, lambda _: None)
    run_training(run, lambda _: None)
    assert files(run.output_dir) == files(straight.output_dir)


def pack(target: Path) -> None:
    documents = [np.append(np.arange(1, 400), 0).astype(np.uint16) for _ in range(2000)]
    n_tokens = sum(map(len, documents))
    header = RowsHeader(
        version=1, split="train", seq_len=32, vocab_size=400, eos_id=0, tokenizer_hash="t", corpus_fingerprint="c",
        fingerprint="f", n_documents=2000, n_rows=n_rows_of(n_tokens, 32), tokens_in=n_tokens, tokens_out=n_tokens,
        tokens_dropped=0,
    )  # fmt: skip
    with replaced_folder(target, "old") as folder:
        write_rows(folder, header, iter(documents), bytes_per_file=200_000)


def test_disk_full_in_packing_leaves_the_rows_before(small_disk: Path) -> None:
    target = small_disk / "data"
    target.mkdir()
    (target / "old").write_text("whole")
    with pytest.raises(StorageError, match="data: cannot be written: No space left on device"):
        pack(target)
    assert [path.name for path in small_disk.iterdir()] == ["data"]
    assert (target / "old").read_text() == "whole"
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    pack(target)
    assert (target / "rows-00000.arrow").exists()


def test_any_command_says_that_the_disk_is_full(tmp_path: Path) -> None:
    script = (
        "import resource\nfrom pathlib import Path\nfrom tasks.command import run_command\n"
        "def main():\n    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "    Path('results.json').write_text('x' * 5000)\nrun_command(main)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(root)},
        stderr=subprocess.PIPE, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert "File too large" in done.stderr
    assert len(done.stderr.splitlines()) == 1
