"""The stages tokenize and pack as a user runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from components.data.documents import read_documents
from components.data.stream import BatchStream, PackedRows
from tests.unit.data.tiny_corpus import sentences


def run(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", *(str(argument) for argument in arguments)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def params(tmp_path: Path, repository: Path) -> Path:
    """The quick study's parameters over a corpus of our own."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for i, text in enumerate(sentences(200)):
        (corpus / f"{i}.txt").write_text(text)
    text = (repository / "params.yaml").read_text()
    text = text.replace("kind: sotu ", f"kind: files\n    paths: ['{corpus}/*.txt']\n    text_column: text ")
    text = text.replace("vocab_size: 1024", "vocab_size: 300")
    path = tmp_path / "params.yaml"
    path.write_text(text)
    return path


def test_the_two_stages_turn_a_corpus_into_a_stream_of_batches(tmp_path: Path, params: Path, repository: Path) -> None:
    for stage in (
        ("tasks.tokenize", "--params", params, "--out", tmp_path / "tokens", "--tokenizer-out", tmp_path / "tokenizer"),
        ("tasks.pack", "--params", params, "--tokens", tmp_path / "tokens", "--out", tmp_path / "data"),
    ):
        done = run(*stage, cwd=repository)
        assert done.returncode == 0, done.stderr
        assert "train" in done.stdout
    batch = BatchStream(PackedRows.open(tmp_path / "data" / "train"), 42, 4).batch(0)
    assert batch.inputs.shape == (4, 128)
    assert len(read_documents(tmp_path / "data" / "validation").ids) > 0


def test_a_mistake_in_the_data_is_one_clean_message(tmp_path: Path, params: Path, repository: Path) -> None:
    (tmp_path / "corpus" / "000.txt").write_bytes(b"gr\xf6\xdfer")
    done = run("tasks.tokenize", "--params", params, "--out", tmp_path / "t", "--tokenizer-out", tmp_path / "z", cwd=repository)
    assert done.returncode == 2
    assert "000.txt: the text is not UTF-8" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "t").exists()


@pytest.mark.parametrize("stage", ["tokenize", "pack"])
def test_help_and_wrong_parameters_need_no_heavy_import(tmp_path: Path, repository: Path, stage: str) -> None:
    (tmp_path / "wrong.yaml").write_text("schema_version: 1\n")
    heavy = "datasets", "torch", "pyarrow", "tokenizers", "pandas", "huggingface_hub"
    program = (
        f"import sys; sys.argv = ['x', '--params', '{tmp_path}/wrong.yaml']\n"
        f"from tasks.{stage} import main\n"
        f"try: main()\nexcept Exception as error: print(type(error).__name__)\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=repository, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["ConfigError", "[]"], done.stdout
    assert "--params" in run(f"tasks.{stage}", "--help", cwd=repository).stdout
