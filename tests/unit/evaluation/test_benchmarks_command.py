"""The stages benchmark and contamination as a user runs them, over a toy model, toy benchmarks and a toy corpus."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from components.config.loader import load_study
from components.config.problems import CheckpointError
from components.data.tokenization import tokenize_corpus
from components.data.tokenizer import Tokenizer
from components.evaluation.harness import harness_version
from components.models.cascade import Cascade
from components.models.files import ModelCard, save_model
from components.results import ArmBenchmarks, Contamination, read_record
from tasks import benchmark, contamination
from tests.unit.data.tiny_corpus import ListCorpus, sentences
from tests.unit.evaluation.toy_benchmarks import NAMES, word_tokenizer, write_benchmarks

ARM = "tlm-uniform"


def _save_model(folder: Path, params: Path, tokenizer: Tokenizer) -> None:
    arm = load_study(params).arms[ARM]
    for seed in arm.training.seeds:
        model = Cascade(arm.model, tokenizer.vocab_size)
        model.init_weights(seed)
        card = ModelCard(
            version=1, arm=ARM, seed=seed, model=arm.model, vocab_size=tokenizer.vocab_size, eos_id=tokenizer.eos_id,
            objective={}, trained_depths=(1,), repair=None, steps=1, tokens_per_step=1, seq_len=48, data_fingerprint="d",
            stream_fingerprint="s", tokenizer_hash=tokenizer.hash,
        )  # fmt: skip
        save_model(model, card, folder / ARM / f"seed-{seed}")


@pytest.fixture
def study(tmp_path: Path, repository: Path) -> Path:
    """A folder with params.yaml, tokenizer, models and tokens; two seeds, all benchmarks, one corpus."""
    write_benchmarks(tmp_path / "benchmarks", 4)
    (tmp_path / "books").mkdir()
    (tmp_path / "books" / "one.txt").write_text("the cat swims in the world and the dog does not. " * 4)
    text = (repository / "scales" / "tiny.yaml").read_text()
    for old, new in (
        ("tasks: []", f"tasks: [{', '.join(NAMES)}]"),
        ("{kind: hub}", f"{{kind: files, folder: {tmp_path}/benchmarks}}"),
        ("corpora: {}", f"corpora: {{books: {{paths: ['{tmp_path}/books/*.txt'], text_column: text, max_bytes: 1000}}}}"),
        ("limit: all", "limit: 3"),
        ("seeds: [42]", "seeds: [1, 2]"),
    ):
        assert old in text
        text = text.replace(old, new, 1)
    (tmp_path / "params.yaml").write_text(text)
    tokenizer = word_tokenizer()
    (tmp_path / "tokenizer").mkdir()
    tokenizer.save(tmp_path / "tokenizer", "bpe", 0)
    _save_model(tmp_path / "models", tmp_path / "params.yaml", tokenizer)
    lambada = "On day 0 she looked at the cat for long, and fed the cat"
    (tmp_path / "tokens").mkdir()
    tokenize_corpus(ListCorpus([*sentences(60), lambada]), tokenizer, 0.05, tmp_path / "tokens", None, lambda _: None)
    return tmp_path


def _run(monkeypatch: pytest.MonkeyPatch, main: Callable[[], None], *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["stage", *(str(argument) for argument in arguments)])
    main()


def _benchmark(monkeypatch: pytest.MonkeyPatch, study: Path) -> ArmBenchmarks:
    folders = [part for name in ("tokenizer", "models", "out") for part in (f"--{name}", study / name)]
    _run(monkeypatch, benchmark.main, "--arm", ARM, "--params", study / "params.yaml", *folders)
    return read_record(ArmBenchmarks, study / "out" / f"{ARM}.json")


def test_every_benchmark_and_corpus_is_scored_for_every_seed(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = _benchmark(monkeypatch, study)
    assert (record.status, record.limit, record.window_tokens, record.n_blocks) == ("run", 3, 32, 4)
    assert record.harness == harness_version()
    assert [seed.seed for seed in record.seeds] == [1, 2]
    for seed in record.seeds:
        assert [scores.benchmark for scores in seed.benchmarks] == list(NAMES)
        assert {scores.n for scores in seed.benchmarks} == {3}
        assert [(corpus.corpus, corpus.n_bytes) for corpus in seed.corpora] == [("books", 196)]
    first, second = record.seeds
    assert first.corpora[0].depths != second.corpora[0].depths
    assert "piqa accuracy (chance 0.500)" in capsys.readouterr().out


def test_scoring_again_gives_the_same_file(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _benchmark(monkeypatch, study)
    before = (study / "out" / f"{ARM}.json").read_bytes()
    _benchmark(monkeypatch, study)
    assert (study / "out" / f"{ARM}.json").read_bytes() == before


def test_a_model_of_another_tokenizer_is_refused(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = word_tokenizer()
    other.hash = "other"
    _save_model(study / "models", study / "params.yaml", other)
    with pytest.raises(CheckpointError, match="trained with another tokenizer"):
        _benchmark(monkeypatch, study)


def test_contamination_is_found_in_the_training_documents(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [part for name in ("tokenizer", "tokens") for part in (f"--{name}", study / name)]
    _run(monkeypatch, contamination.main, "--params", study / "params.yaml", *folders, "--out", study / "c.json")
    record = read_record(Contamination, study / "c.json")
    found = {one.benchmark: one.documents for one in record.benchmarks}
    assert found == {**dict.fromkeys(NAMES, ()), "lambada_openai": (0,)}
    scored = _benchmark(monkeypatch, study).seeds[0].benchmarks
    assert [one.fingerprint for one in record.benchmarks] == [one.fingerprint for one in scored]


@pytest.mark.parametrize(("stage", "arguments"), [("benchmark", ["--arm", ARM]), ("contamination", [])])
def test_without_benchmarks_the_stage_says_so_and_imports_nothing_heavy(
    tmp_path: Path, repository: Path, stage: str, arguments: list[str]
) -> None:
    heavy = ("torch", "lm_eval", "datasets", "transformers", "tokenizers", "pandas")
    out = tmp_path / ("out" if stage == "benchmark" else "out.json")
    program = (
        f"import sys; sys.argv = ['x', '--params', 'scales/tiny.yaml', '--out', {str(out)!r}, *{arguments}]\n"
        f"from tasks.{stage} import main\nmain()\nprint([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=repository, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    assert "nothing to" in done.stdout
    if stage == "benchmark":
        assert read_record(ArmBenchmarks, out / f"{ARM}.json").status == "not_run"
    else:
        assert read_record(Contamination, out).status == "not_run"
