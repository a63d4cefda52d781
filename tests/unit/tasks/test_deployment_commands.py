"""generate, export, profile and select on a tiny model: what they print and write, and mistakes told before torch is imported."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from components.config.loader import load_study
from components.config.problems import CheckpointError, ConfigError, DataError
from components.config.schema import BpeTokenizer
from components.data.tokenizer import Tokenizer, train_bpe
from components.inference.generate import Request
from components.inference.generate import generate as complete
from components.models.files import ModelCard, load_model, save_model
from components.models.streams import build_cascade
from components.results import ArmProfile, OperatingPoints, read_record, write_record
from tasks import export, generate, profile, select
from tasks.tracking import UNIT, TrackingError, open_client
from tests.toys import toy_rows
from tests.unit.profiling.made_up_results import made_up_evaluation

ROOT = Path(__file__).resolve().parents[3]
PROMPT = "the state of the union"
COMMANDS = {"generate": generate, "export": export, "profile": profile, "select": select}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny study with a tokenizer, validation rows and untrained models of tlm-uniform and, with two streams, hd-n2."""
    root = tmp_path_factory.mktemp("study")
    shutil.copy(ROOT / "scales" / "tiny.yaml", root / "params.yaml")
    study, artifacts = load_study(root / "params.yaml"), root / "artifacts"
    (artifacts / "tokenizer").mkdir(parents=True)
    text = "the state of the union of these united states, and what we the people of it do about that " * 40
    text += " ".join(str(i) for i in range(300))
    tokenizer, n_bytes = train_bpe([text], BpeTokenizer(kind="bpe", vocab_size=300, training_bytes=10**6))
    tokenizer.save(artifacts / "tokenizer", "bpe", n_bytes)
    toy_rows(artifacts / "data", split="validation", seq_len=32)
    for arm in ("tlm-uniform", "hd-n2"):
        settings = study.models[arm].model
        model = build_cascade(settings.model_copy(update={"init_std": 0.2}), 300)
        model.init_weights(0)
        card = ModelCard(
            version=1, arm=arm, seed=42, model=settings, vocab_size=300, eos_id=0, objective={"kind": "telescopic"},
            trained_depths=(1, 2, 3, 4), repair=None, steps=1, tokens_per_step=1, seq_len=32, data_fingerprint="",
            stream_fingerprint="", tokenizer_hash=tokenizer.hash,
        )  # fmt: skip
        save_model(model, card, artifacts / "models" / arm / "seed-42")
    return root


@pytest.fixture
def study(made: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(made)
    return made


def _run(monkeypatch: pytest.MonkeyPatch, command: str, *arguments: str) -> None:
    monkeypatch.setattr("sys.argv", [command, *arguments])
    COMMANDS[command].main()


def _greedy(study: Path, depth: int, max_tokens: int, arm: str = "tlm-uniform") -> str:
    """The text that the command must print."""
    tokenizer = Tokenizer.open(study / "artifacts/tokenizer")
    model, _ = load_model(study / "artifacts/models" / arm / "seed-42")
    prompt = (0, *tokenizer.encode_batch([PROMPT])[0])
    (completion,) = complete(model, [Request(prompt, depth, max_tokens, stop_tokens=frozenset({0}))])
    return PROMPT + tokenizer.decode(completion.tokens)


def test_generate_streams_the_text_of_the_depth(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(monkeypatch, "generate", "--arm", "tlm-uniform", "--depth", "3", "--max-tokens", "8", PROMPT)
    shown = capsys.readouterr()
    assert shown.out == _greedy(study, 3, 8) + "\n"
    assert shown.err.startswith("depth 3 of 4: ")


@pytest.mark.parametrize("option", [(), ("--streams", "2")])
def test_generate_runs_the_streams_of_the_model(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: tuple[str, ...]
) -> None:
    _run(monkeypatch, "generate", "--arm", "hd-n2", "--depth", "3", *option, "--max-tokens", "8", PROMPT)
    shown = capsys.readouterr()
    assert shown.out == _greedy(study, 3, 8, "hd-n2") + "\n"
    assert shown.err.startswith("depth 3 of 4, 2 streams: ")


def test_generate_drafts_the_same_text_and_tells_the_gain(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    drafting = ("--speculative-depth", "2", "--draft-tokens", "2")
    _run(monkeypatch, "generate", "--arm", "tlm-uniform", "--max-tokens", "8", *drafting, PROMPT)
    shown = capsys.readouterr()
    assert shown.out == _greedy(study, 4, 8) + "\n"
    assert "depth 4 of 4, drafted by depth 2" in shown.err
    assert "acceptance" in shown.err
    assert shown.err.rstrip().endswith(("faster", "slower", "no clear gain"))


def test_generate_compares_depths(study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _run(monkeypatch, "generate", "--arm", "tlm-uniform", "--compare-depths", "1,4", "--max-tokens", "5", PROMPT)
    assert capsys.readouterr().out == "".join(f"--- depth {k}\n{_greedy(study, k, 5)}\n" for k in (1, 4))


def test_export_writes_a_checkpoint_with_its_card(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _run(monkeypatch, "export", "--arm", "tlm-uniform", "--depth", "2", "--out", str(tmp_path / "out"))
    assert "LlamaForCausalLM" in capsys.readouterr().out
    names = {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "README.md"}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    assert json.loads((tmp_path / "out/tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"
    assert "not evaluated yet" in (tmp_path / "out/README.md").read_text()


def test_export_with_streams_brings_its_own_files(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _run(monkeypatch, "export", "--arm", "hd-n2", "--depth", "2", "--out", str(tmp_path / "out"))
    assert "HiddenDecodingForCausalLM" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "out").glob("*.py")} == {"modeling_telescopic.py", "modeling_hidden_decoding.py"}
    assert json.loads((tmp_path / "out/config.json").read_text())["n_streams"] == 2
    assert "with 2 Hidden Decoding streams" in (tmp_path / "out/README.md").read_text()


def test_export_registers_a_model_that_mlflow_has_a_run_of_and_else_writes_nothing(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    command = ("export", "--arm", "hd-n2", "--depth", "2", "--out", str(tmp_path / "out"), "--register")
    with pytest.raises(TrackingError, match=r"MLflow has no run of hd-n2/seed-42, .*; run `python -m tasks\.track` first"):
        _run(monkeypatch, *command)
    assert not (tmp_path / "out").exists()
    with open_client(study) as (client, _):
        experiment = client.create_experiment(load_study(study / "params.yaml").runtime.experiment, str(tmp_path / "store"))
        run_id = client.create_run(experiment, tags={UNIT: "hd-n2/seed-42"}).info.run_id
    _run(monkeypatch, *command)
    assert capsys.readouterr().out.endswith("MLflow: models:/hd-n2-depth-2-streams-2/1\n")
    with open_client(study) as (client, _):
        version = client.get_model_version("hd-n2-depth-2-streams-2", "1")
        fetched = Path(client.download_artifacts(run_id, version.source.removeprefix(f"runs:/{run_id}/"), str(tmp_path)))
    assert (version.tags["arm"], version.tags["depth"], version.tags["n_streams"], version.tags["seed"]) == (
        "hd-n2",
        "2",
        "2",
        "42",
    )
    assert {path.name: path.read_bytes() for path in fetched.iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()
    }


def test_profile_and_select_choose_an_operating_point(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(monkeypatch, "profile", "--arm", "tlm-uniform")
    found = read_record(ArmProfile, study / "artifacts/profile/tlm-uniform.json")
    assert [(cell.batch_size, cell.depth) for cell in found.cells] == [(batch, k) for batch in (1, 2) for k in range(1, 5)]
    assert {cell.draft_depth for cell in found.speculation} == {1, 2, 3}
    write_record(made_up_evaluation("tlm-uniform", [5.0, 4.0, 3.0, 2.0]), study / "artifacts/evaluation/tlm-uniform.json")
    _run(monkeypatch, "select", "--latency-ms", "60000")
    assert capsys.readouterr().out.splitlines().count("best: tlm-uniform at depth 4") == 1
    assert len(read_record(OperatingPoints, study / "artifacts/operating_points.json").points) == 8
    with pytest.raises(Exception, match=r"none of 4 operating points fits; the closest is tlm-uniform at depth \d"):
        _run(monkeypatch, "select", "--latency-ms", "1e-9")
    shutil.rmtree(study / "artifacts/evaluation")
    shutil.rmtree(study / "artifacts/profile")


def test_profile_and_select_know_streams(
    study: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    _run(monkeypatch, "profile", "--arm", "hd-n2", "--out", str(tmp_path / "profile"))
    found = read_record(ArmProfile, tmp_path / "profile/hd-n2.json")
    assert [(cell.n_streams, cell.batch_size, cell.depth) for cell in found.cells] == [
        (2, batch, k) for batch in (1, 2) for k in range(1, 5)
    ]
    write_record(made_up_evaluation("hd-n2", [5.0, 4.0, 3.0, 2.0], n_streams=2), tmp_path / "evaluation/hd-n2.json")
    capsys.readouterr()
    _run(monkeypatch, "select", "--latency-ms", "60000", "--artifacts", str(tmp_path))
    shown = capsys.readouterr().out
    assert "best: hd-n2 at depth 4, 2 streams" in shown
    assert "--arm hd-n2 --depth 4 --streams 2" in shown


MISTAKES = [
    ("generate", ("--arm", "tlm-unifrm", PROMPT), ConfigError, "did you mean tlm-uniform"),
    (
        "generate",
        ("--arm", "tlm-uniform", "--seed", "7", PROMPT),
        ConfigError,
        "--seed 7: tlm-uniform is trained with the seeds 42",
    ),
    ("generate", ("--arm", "twin-full", PROMPT), CheckpointError, "no trained model here"),
    ("generate", ("--arm", "tlm-uniform", "--depth", "5", PROMPT), ConfigError, r"--depth 5: must be in 1\.\.4"),
    ("generate", ("--arm", "tlm-uniform", "--compare-depths", "1,9", PROMPT), ConfigError, "--compare-depths 9"),
    (
        "generate",
        ("--arm", "tlm-uniform", "--speculative-depth", "4", PROMPT),
        ConfigError,
        "--speculative-depth 4: must be .* less than the 4",
    ),
    ("generate", ("--arm", "tlm-uniform", "  "), ConfigError, "the prompt is empty"),
    ("generate", ("--arm", "tlm-uniform", "state " * 60), ConfigError, "the context 32; shorten it by"),
    ("generate", ("--arm", "tlm-uniform", "--max-tokens", "99", PROMPT), ConfigError, "--max-tokens 99"),
    (
        "generate",
        ("--arm", "tlm-uniform", "--streams", "2", PROMPT),
        ConfigError,
        "--streams 2: tlm-uniform is trained with 1 per token",
    ),
    ("generate", ("--arm", "hd-n2", "--streams", "3", PROMPT), ConfigError, "--streams 3: hd-n2 is trained with 2 per token"),
    ("export", ("--arm", "tlm-uniform", "--depth", "0", "--out", "new"), ConfigError, "--depth 0"),
    ("export", ("--arm", "tlm-uniform", "--depth", "1", "--out", "artifacts"), ConfigError, "not an empty folder"),
    ("export", ("--arm", "tlm-uniform", "--depth", "1", "--out", "params.yaml/x"), ConfigError, "cannot make params.yaml"),
    ("profile", ("--arm", "mlms-norm-distill"), CheckpointError, "no trained model here"),
]


@pytest.mark.parametrize(("command", "arguments", "error", "message"), MISTAKES)
def test_mistakes_are_told_in_one_line(
    study: Path, monkeypatch: pytest.MonkeyPatch, command: str, arguments: tuple[str, ...], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message) as caught:
        _run(monkeypatch, command, *arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("generate", ("--arm", "tlm-uniform", "--top-k", "x", PROMPT), "--top-k: must be a whole number of at least 1 (got 'x')"),
        ("generate", ("--arm", "tlm-uniform", "--max-tokens", "0", PROMPT), "--max-tokens: must be a whole number of at least 1"),
        ("generate", ("--arm", "tlm-uniform", "--compare-depths", "1,x", PROMPT), "--compare-depths: must be whole numbers with"),
        ("generate", ("--arm", "tlm-uniform", "--top-p", "0", PROMPT), "--top-p must be in (0, 1]"),
        ("generate", ("--arm", "tlm-uniform", "--temperature", "nan", PROMPT), "--temperature must be 0 (greedy) or more"),
        ("generate", ("--arm", "tlm-uniform", "--sampling-seed", str(2**64), PROMPT), "--sampling-seed must be a number"),
        ("generate", ("--arm", "tlm-uniform", "--adaptive", PROMPT), "go with --speculative-depth"),
        ("generate", ("--arm", "tlm-uniform", "--draft-tokens", "2", PROMPT), "go with --speculative-depth"),
        ("select", ("--latency-ms", "fast"), "--latency-ms: must be a number of more than 0 (got 'fast')"),
        ("select", ("--memory-mb", "inf"), "--memory-mb: must be a number of more than 0 (got 'inf')"),
        ("select", (), "give a budget"),
        ("profile", ("--arm", "tlm-uniform", "--threads", "0"), "--threads: must be a whole number of at least 1"),
    ],
)
def test_an_option_that_cannot_be_says_what_it_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        _run(monkeypatch, command, *arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]


def test_a_path_that_is_no_place_is_one_line(study: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tasks.generate", "--arm", "tlm-uniform", "--tokenizer", "params.yaml", PROMPT],
        cwd=study, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.startswith("error: params.yaml/metadata.json: cannot be used: Not a directory; ")
    assert len(done.stderr.splitlines()) == 1


def test_another_tokenizer_is_refused(study: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tokenizer, n_bytes = train_bpe(["abc " * 300], BpeTokenizer(kind="bpe", vocab_size=258, training_bytes=10**4))
    tokenizer.save(tmp_path, "bpe", n_bytes)
    with pytest.raises(DataError, match="not the tokenizer that"):
        _run(monkeypatch, "generate", "--arm", "tlm-uniform", "--tokenizer", str(tmp_path), "a")


def test_mistakes_are_found_without_torch(study: Path) -> None:
    script = """
import importlib, sys
from components.config.problems import StudyError
for command, arguments in {mistakes!r}:
    sys.argv = [command, *arguments]
    try:
        importlib.import_module("tasks." + command).main()
    except StudyError:
        assert "torch" not in sys.modules, (command, arguments)
    else:
        raise SystemExit("no error: " + command)
""".replace("{mistakes!r}", repr([(command, arguments) for command, arguments, *_ in MISTAKES]))
    result = subprocess.run([sys.executable, "-c", script], cwd=study, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-2000:]
