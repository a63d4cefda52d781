"""Checkpoints by hub id, over a loopback stand-in of the hub, in processes of their own: the client reads HF_ENDPOINT at import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from ruamel.yaml import YAML
from safetensors.torch import save_file

from components.config.loader import read_yaml
from components.config.problems import CheckpointError
from components.config.schema import BpeTokenizer
from components.data.tokenizer import train_bpe
from components.huggingface.checkpoint import read_index
from components.huggingface.config import model_yaml, read_config
from components.huggingface.weights import split_weights
from components.models.cascade import Cascade
from components.models.files import load_model
from tests.unit.data.hub_standin import COMMIT, REPOSITORY, HubStandIn
from tests.unit.huggingface.test_config import LLAMA

VOCAB = 300
TOKEN = "hf_not-a-real-token"
NEEDED = {"config.json", "tokenizer.json", "model.safetensors.index.json", "a.safetensors", "b.safetensors"}
TEMPTING = ("pytorch_model.bin", "consolidated.pt", "training_args.bin", "unused.safetensors")


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """What the hub has: a Llama in two shards with its tokenizer, and pickles beside it."""
    folder = tmp_path / "served"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({**LLAMA, "vocab_size": VOCAB, "max_position_embeddings": 256}))
    shape = read_config(folder)
    model = Cascade(shape.model, VOCAB)
    model.init_weights(1)
    tensors = split_weights(model.state_dict(), shape.model)
    shards = {"a.safetensors": sorted(tensors)[::2], "b.safetensors": sorted(tensors)[1::2]}
    for file, names in shards.items():
        save_file({name: tensors[name] for name in names}, folder / file)
    where = {name: file for file, names in shards.items() for name in names}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": where}))
    text = " ".join(f"a{i} b{i * i} is no c{i % 7}d{i % 11}" for i in range(400))
    tokenizer, n_bytes = train_bpe([text], BpeTokenizer(kind="bpe", vocab_size=VOCAB, training_bytes=10**6))
    (tmp_path / "tokenizer").mkdir()
    tokenizer.save(tmp_path / "tokenizer", "bpe", n_bytes)
    tokenizer.raw.save(str(folder / "tokenizer.json"))
    for name in TEMPTING:
        (folder / name).write_bytes(b"not to be read")
    return folder


@pytest.fixture
def params(served: Path, repository: Path) -> Path:
    """A study of that checkpoint, by its hub id."""
    study = read_yaml(repository / "scales" / "stories.yaml")
    study["data"] |= {"tokenizer": {"kind": "bpe", "vocab_size": VOCAB, "training_bytes": 10**6}}
    rest = {key: study["model"][key] for key in ("junction_norm", "init_std", "document_attention")}
    study["model"] = YAML(typ="safe", pure=True).load(model_yaml(read_config(served))) | rest
    study |= {"backbones": {"llama": {"path": f"{REPOSITORY}@{COMMIT}"}}, "expansions": {}, "controls": {}}
    path = served.parent / "params.yaml"
    path.write_text(json.dumps(study))
    return path


def run_import(endpoint: str, home: Path, *arguments: object, **settings: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home / "home"), "HF_TOKEN": TOKEN, **settings}
    command = [sys.executable, "-m", "tasks.import_backbone", *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert TOKEN not in done.stdout + done.stderr
    return done


def asked_files(hub: HubStandIn) -> set[str]:
    return {Path(request).name for request in hub.requests if "/resolve/" in request}


def test_a_sharded_checkpoint_is_imported_by_hub_id_and_again_without_a_network(served: Path, params: Path, tmp_path: Path) -> None:
    options = ("--arm", "llama", "--params", params, "--tokenizer", tmp_path / "tokenizer", "--out")
    with HubStandIn(served, kind="models") as hub:
        done = run_import(hub.endpoint, tmp_path, *options, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert hub.tokens_seen == {f"Bearer {TOKEN}"}
    assert asked_files(hub) == NEEDED
    again = run_import(hub.endpoint, tmp_path, *options, tmp_path / "again", HF_HUB_OFFLINE="1")
    assert again.returncode == 0, again.stderr
    for out in ("out", "again"):
        model, card = load_model(next((tmp_path / out / "llama").iterdir()))
        wanted = Cascade(card.model, VOCAB)
        wanted.init_weights(1)
        assert all(torch.equal(tensor, wanted.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_another_tokenizer_than_the_hubs_is_refused(served: Path, params: Path, tmp_path: Path) -> None:
    text = (served / "tokenizer.json").read_text()
    (served / "tokenizer.json").write_text(text.replace("<|endoftext|>", "<|endofother|>"))
    options = ("--arm", "llama", "--params", params, "--tokenizer", tmp_path / "tokenizer", "--out", tmp_path / "out")
    with HubStandIn(served, kind="models") as hub:
        done = run_import(hub.endpoint, tmp_path, *options)
    assert done.returncode == 2, done.stderr
    assert "endoftext" in done.stderr


def test_describing_a_checkpoint_fetches_its_shape_only(served: Path, tmp_path: Path) -> None:
    with HubStandIn(served, kind="models") as hub:
        done = run_import(hub.endpoint, tmp_path, "--describe", REPOSITORY)
    assert done.returncode == 0, done.stderr
    assert model_yaml(read_config(served)) in done.stdout
    assert asked_files(hub) == {"config.json"}


@pytest.mark.parametrize(
    ("value", "refusal", "says", "remedy"),
    [
        ("owner/other", None, "no such repository on http://127.0.0.1", "check the id, set HF_TOKEN"),
        (f"{REPOSITORY}@v9", None, "the repository has no such revision", "branches, tags or commits"),
        (REPOSITORY, (401, "GatedRepo"), "the repository is gated", f"accept its terms at http://127.0.0.1:PORT/{REPOSITORY}"),
        (REPOSITORY, (403, "GatedRepo"), "the repository is gated", "set HF_TOKEN to a token of that account"),
        (REPOSITORY, (401, "RepoNotFound"), "no such repository on", "set HF_TOKEN to a token that may read it"),
        (REPOSITORY, (401, ""), "refuses to give config.json (401)", "set HF_TOKEN to a valid token"),
        (REPOSITORY, (403, ""), "refuses to give config.json (403)", "set HF_TOKEN to a valid token"),
        ("owner/other..name", None, "config.json cannot be fetched from", "or give a local path"),
    ],
)
def test_what_the_hub_will_not_give_is_one_line(
    served: Path, tmp_path: Path, value: str, refusal: tuple[int, str] | None, says: str, remedy: str
) -> None:
    with HubStandIn(served, kind="models", refusal=refusal) as hub:
        done = run_import(hub.endpoint, tmp_path, "--describe", value)
    said = done.stderr.strip().replace(hub.endpoint, "http://127.0.0.1:PORT")
    assert done.returncode == 2, said
    assert said.startswith("error: --describe: ")
    assert "\n" not in said
    assert f"(got '{value}')" in said
    assert says in said
    assert remedy in said


@pytest.mark.parametrize(
    ("offline", "says"), [("1", "OfflineModeIsEnabled: "), pytest.param("0", "ConnectError: ", marks=pytest.mark.slow)]
)
def test_no_network_is_one_line_that_names_the_parameter(
    served: Path, params: Path, tmp_path: Path, offline: str, says: str
) -> None:
    with HubStandIn(served, kind="models") as hub:
        pass  # nobody listens there any more
    options = ("--arm", "llama", "--params", params, "--tokenizer", tmp_path / "tokenizer", "--out", tmp_path / "out")
    done = run_import(hub.endpoint, tmp_path, *options, HF_HUB_OFFLINE=offline)
    *notices, said = done.stderr.strip().splitlines()
    assert done.returncode == 2, said
    assert said.startswith(f"error: backbones.llama.path: config.json cannot be fetched from {hub.endpoint}: {says}"), said
    assert f"(got '{REPOSITORY}@{COMMIT}'); check the network, HF_ENDPOINT and HF_HUB_OFFLINE, or give a local path" in said
    assert all("thrown while requesting" in line or "Retrying in" in line for line in notices), "the client's own notices"
    assert offline == "0" or not notices
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("file", ["pytorch_model.bin", "../a.safetensors"])
def test_an_index_that_names_something_else_than_safetensors_beside_it_is_refused(tmp_path: Path, file: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"model.norm.weight": file}}))
    with pytest.raises(CheckpointError, match="not a safetensors file beside it"):
        read_index(index)
