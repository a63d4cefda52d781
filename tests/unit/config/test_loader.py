"""The parameter file: what is accepted, and what is said about the rest."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from components.config.loader import find_arm, load_study
from components.config.problems import ConfigError
from tests.toys import ROOT

QUICK = (ROOT / "params.yaml").read_text(encoding="utf-8")


def _edited(folder: Path, *edits: tuple[str, str]) -> Path:
    text = QUICK
    for pattern, replacement in edits:
        text, n = re.subn(pattern, replacement, text, count=1, flags=re.MULTILINE)
        assert n == 1, pattern
    path = folder / "params.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def _message(folder: Path, *edits: tuple[str, str]) -> str:
    with pytest.raises(ConfigError) as caught:
        load_study(_edited(folder, *edits))
    return str(caught.value)


def test_the_file_in_the_repository_is_valid() -> None:
    study = load_study(ROOT / "params.yaml")
    assert study.arms["mlms-norm-distill"].model.junction_norm
    assert not study.model.junction_norm
    assert study.arms["twin-full"].training == study.training


@pytest.mark.parametrize(
    ("edit", "key", "says"),
    [
        ((r"^  steps: \d+", "  stepz: 5"), "training.stepz", "did you mean steps?"),
        ((r"^  steps: \d+ *\n", ""), "training.steps", "missing key"),
        ((r"^  lr: \S+", "  lr: fast"), "training.lr", "'fast'"),
        ((r"^  lr: \S+", "  lr: '1e-3'"), "training.lr", "'1e-3'"),
        ((r"^  lr: \S+", "  lr: -1.0"), "training.lr", "greater than 0"),
        ((r"^  lr: \S+", "  lr: .inf"), "training.lr", "finite"),
        ((r"^  seeds: .*", "  seeds: [1, 1]"), "training.seeds", "must not repeat"),
        ((r"^  seeds: .*", "  seeds: [18446744073709551616]"), "training.seeds.0", "should be less than 9223372036854775808"),
        ((r"^  stream_seed: .*", "  stream_seed: 18446744073709551616"), "data.stream_seed", "less than 18446744073709551616"),
        ((r"^  seq_len: \d+", "  seq_len: 3"), "data.seq_len", "greater than or equal to 8"),
        ((r"tasks: \[\]", "tasks: [arc_eazy]"), "benchmarks.tasks.0", "'arc_easy'"),
        ((r"tasks: \[\]", "tasks: [piqa, piqa]"), "benchmarks.tasks", "must not repeat"),
        ((r"kind: hub", "kind: files"), "benchmarks.source.folder", "missing key"),
        ((r"kind: hub", "kind: hub, folder: x"), "benchmarks.source.folder", "unknown key"),
        ((r"limit: all", "limit: 0"), "benchmarks.limit", "at least 1, or all (got 0)"),
        ((r"limit: all", "limit: -1"), "benchmarks.limit", "at least 1, or all"),
        ((r"corpora: {}", "corpora: {books: {paths: []}}"), "benchmarks.corpora.books.paths", "at least 1"),
        ((r"kind: sotu", "kind: wikipedia"), "data.source", "'sotu'"),
        ((r"vocab_size: \d+", "vocab_sise: 10"), "data.tokenizer.vocab_sise", "did you mean vocab_size?"),
        ((r"^  head_dim: \d+", "  head_dim: 10"), "model.segments.0.d_model", "multiple of head_dim"),
        ((r"^  warmup_steps: \d+", "  warmup_steps: 999999"), "training.warmup_steps", "cool-down"),
        ((r"^  micro_batch_rows: \d+", "  micro_batch_rows: 7"), "training.batch_rows", "multiple of runtime.workers"),
        ((r"device: auto", "device: tpu"), "runtime.device", "'cuda'"),
        ((r"confidence: \S+", "confidence: 0.9999999999999999"), "evaluation.confidence", "less than or equal to 0.9999"),
        ((r"junction_norm: true", "junction_nrm: true"), "arms.mlms-norm-distill.model.junction_nrm", "mean junction_norm?"),
        ((r"kind: fixed_exits", "kind: fixed_exit"), "arms.mlms-norm-distill.objective.kind", "did you mean fixed_exits?"),
        ((r"backward: per_exit", "backward: sideways"), "arms.mlms-norm-distill.objective.backward", "'joint'"),
        ((r"kind: twin, exit: 3", "kind: twin, exit: 4"), "arms.twin-full.objective.exit", "at most 3"),
        ((r"kind: uniform", "kind: unifrm"), "arms.tlm-uniform.objective.sampler", "'loguniform'"),
        ((r"^  twin-full:", "  Twin Full:"), "arms.Twin Full", "pattern"),
        ((r"^    objective: \{kind: twin", "    objetive: {kind: twin"), "arms.twin-full.objetive", "did you mean objective?"),
        ((r"^schema_version: 1", "schema_version: 9"), "schema_version", "1"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_key_and_remedy(tmp_path: Path, edit: tuple[str, str], key: str, says: str) -> None:
    message = _message(tmp_path, edit)
    lines = [line for line in message.splitlines() if f": {key}: " in line or f": {key}." in line]
    assert lines, message
    assert any(says in line for line in lines), message


def test_all_mistakes_are_listed_at_once(tmp_path: Path) -> None:
    message = _message(
        tmp_path, (r"^  lr: \S+", "  lr: fast"), (r"device: auto", "device: tpu"), (r"kind: twin, exit", "kind: twinn, exit")
    )
    assert "training.lr" in message
    assert "runtime.device" in message
    assert "arms.twin-full.objective.kind" in message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "not valid YAML: line 1, column 5: expected the node content"),
        ("", "mapping"),
        ("- 1", "mapping"),
        ("a: 2026-99-99", "not valid YAML: month must be in 1..12"),
        ("seed: 1\nseed: 2", 'not valid YAML: line 2, column 1: found duplicate key "seed"'),
        ("\xff", "not UTF-8 text"),
        ("a: 1\n---\nb: 2", "line 2, column 1: found another document"),
        ("a: &a {b: *a}", "an alias"),
        ("a: &a [*a]", "an alias"),
    ],
)
def test_a_file_that_is_no_parameter_file_is_a_clean_error(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match=re.escape(str(path))) as caught:
        load_study(path)
    (line,) = str(caught.value).splitlines()
    assert says in line


def test_a_missing_file_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="make scale"):
        load_study(tmp_path / "params.yaml")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_study(tmp_path)


def test_an_unknown_arm_names_the_others() -> None:
    with pytest.raises(ConfigError, match=r"did you mean tlm-uniform\?"):
        find_arm(load_study(ROOT / "params.yaml"), "tlm-unifrm")


def test_numbers_are_read_as_dvc_reads_them(tmp_path: Path) -> None:
    study = load_study(_edited(tmp_path, (r"^  lr: \S+", "  lr: 3e-4")))
    assert study.training.lr == 0.0003


def test_an_error_needs_no_torch() -> None:
    code = (
        "import sys; from components.config.loader import load_study; from pathlib import Path\n"
        "load_study(Path('params.yaml')); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


def test_an_arm_can_run_elsewhere_than_the_others(tmp_path: Path) -> None:
    text = (ROOT / "scales" / "tiny.yaml").read_text()
    own = "  arms: {twin-full: {workers: 2, micro_batch_rows: 2, ray_resources: {big: 1}}, hd-n2: {device: cpu}}\n"
    (tmp_path / "params.yaml").write_text(text.replace("  experiment: tiny\n", f"  experiment: tiny\n{own}"))
    runtime = load_study(tmp_path / "params.yaml").runtime
    twin, other = runtime.for_arm("twin-full"), runtime.for_arm("tlm-uniform")
    assert (twin.workers, twin.micro_batch_rows, twin.ray_resources, twin.threads_per_worker) == (2, 2, {"big": 1}, 1)
    assert (other.workers, other.ray_resources) == (1, {})
    assert runtime.for_arm("hd-n2").device == "cpu"


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ("{twin-ful: {workers: 2}}", "runtime.arms.twin-ful: no such arm, repair, expansion or control; did you mean twin-full?"),
        ("{hd-n2: {workers: 3}}", "multiple of runtime.arms.hd-n2.workers x runtime.arms.hd-n2.micro_batch_rows = 3 x 4"),
        ("{twin-full: {workers: 4, micro_batch_rows: 1, gpus_per_worker: 0.5}}", "twin-full.gpus_per_worker: several workers need"),
        ("{twin-full: {compile: true, sharding: fsdp}}", "twin-full.compile: does not work with sharding: fsdp"),
    ],
)
def test_what_differs_for_an_arm_is_checked(tmp_path: Path, own: str, said: str) -> None:
    text = (ROOT / "scales" / "tiny.yaml").read_text()
    (tmp_path / "params.yaml").write_text(text.replace("  experiment: tiny\n", f"  experiment: tiny\n  arms: {own}\n"))
    with pytest.raises(ConfigError) as caught:
        load_study(tmp_path / "params.yaml")
    assert said in str(caught.value)
