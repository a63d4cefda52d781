"""Exported prefixes, loaded by `transformers` in a fresh process, against the prefix in place."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from components.config.problems import ConfigError
from components.config.schema import BpeTokenizer, Llama3Rope, Model, Segment
from components.config.streams import Streams
from components.data.tokenizer import Tokenizer, train_bpe
from components.inference.export import export_prefix
from components.inference.generate import Request, generate
from components.models.cascade import Cascade
from components.models.files import ModelCard
from components.models.repaired import Repaired, RepairPart
from components.models.streams import build_cascade
from tests.toys import toy_model, toy_tokens
from tests.unit.models.test_experts import toy_experts
from tests.unit.models.test_streams import toy_streams

VOCAB = 300
DEPTHS = range(1, 6)  # exits at 2, 4, 5: before, at and after each junction
KV = ("separate", "shared")
REPAIRS: dict[str, RepairPart] = {"norm": "norm", "affine": "affine", "head": "head", "block": "block"}
SEGMENTS = (Segment(n_blocks=1, d_model=16), Segment(n_blocks=4, d_model=24))
STREAMED: dict[str, dict[str, Any]] = {
    "mixed": {},
    "physical": {"rope_rule": "physical", "layers": ("cross_full",) * 5},
    "shared": {"kv": "shared"},
    "window": {"layers": ("cross_local", "intra") * 2 + ("cross_local",), "local": {"size": 3, "unit": "tokens"}, "n_streams": 3},
    "sum": {"supervision": "sum", "layers": ("cross_full", "intra", "intra", "cross_full", "intra")},
    "fewer": {"sampled": (2, 4)},
    "mirrored": {"layers": ("intra", "cross_full", "intra", "cross_full", "intra"), "n_mirrored": 2, "rope_rule": "logical"},
}
# Blocks of Qwen3's kind, positions of Llama 3's.
GROUPED: dict[str, Any] = {
    "segments": (
        Segment(n_blocks=1, d_model=16, n_heads=4, n_kv_heads=2, d_inner=20),
        Segment(n_blocks=4, d_model=24, n_heads=6, n_kv_heads=2, d_inner=36),
    ),
    "qk_norm": True,
    "rope_scaling": Llama3Rope(kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=16),
}
EXPERTS: tuple[tuple[str, dict[str, Any], Streams | None], ...] = (
    ("experts-bias", {}, None),
    ("experts-loss", {"balance": "auxiliary", "gate": "sigmoid", "n_shared": 0}, None),
    ("streams-experts", {}, toy_streams()),
)
PROMPT = "what the states of the union"

LOADING = """
import json, sys
import torch
from pathlib import Path
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer
torch.set_num_threads(1)
root, found, classes, texts = Path(sys.argv[1]), {}, {}, {}
tokens = torch.tensor(json.loads(sys.argv[2]))
for folder in sorted(path for path in root.iterdir() if (path / "config.json").exists()):
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    classes[folder.name] = type(model).__name__
    with torch.no_grad():
        found[folder.name] = model(tokens).logits
        padded = torch.cat((torch.zeros(len(tokens), 3, dtype=torch.int64), tokens), 1)
        mask = torch.cat((torch.zeros(len(tokens), 3, dtype=torch.int64), torch.ones_like(tokens)), 1)
        found[folder.name + ".padded"] = model(padded, attention_mask=mask).logits[:, 3:].contiguous()
    inputs = tokenizer(sys.argv[3], return_tensors="pt")
    new = model.generate(**inputs, max_new_tokens=8, do_sample=False, eos_token_id=None)
    texts[folder.name] = {"prompt": inputs.input_ids[0].tolist(), "new": new[0, inputs.input_ids.shape[1]:].tolist(),
                          "eos": tokenizer.eos_token_id}
save_file(found, root / "logits.safetensors")

from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
scores, pairs = {}, json.loads(sys.argv[5])
for name in json.loads(sys.argv[4]):
    backend = HFLM(pretrained=str(root / name), trust_remote_code=True, device="cpu", batch_size=2)
    asked = [Instance("loglikelihood", {}, tuple(pair), i) for i, pair in enumerate(pairs)]
    scores[name] = backend.loglikelihood(asked, disable_tqdm=True)
(root / "found.json").write_text(json.dumps({"classes": classes, "texts": texts, "scores": scores}))
"""
ACCUMULATING = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True, dtype=torch.float64)
tokens = torch.randint(0, 300, (4, 10), generator=torch.Generator().manual_seed(0))
labels = tokens.clone()
for row, n_kept in enumerate((5, 7, 2, 9)):
    labels[row, 1 + n_kept:] = -100
def gradients(parts, n_items):
    model.zero_grad()
    for part in parts:
        model(tokens[part], labels=labels[part], num_items_in_batch=n_items).loss.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
whole = gradients([slice(None)], None)
assert float(whole.abs().max()) > 1e-3
print(float((gradients([slice(row, row + 1) for row in range(4)], torch.tensor(23)) - whole).abs().max()))
"""
HARNESS = ("plain-2", "norm-5", "repair-affine-3", "streams-mixed-5")  # a Llama, and one of each modelling file
PAIRS = (("the state of the", " union"), ("what we the people", " of these united states do about it"))


def _drawn(model: Cascade) -> Cascade:
    model.init_weights(3)
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    for bias in model.buffers():
        bias += 0.3 * torch.randn(bias.shape, generator=generator)
    if isinstance(model, Repaired):
        for parameter in model.repairs.parameters():
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def _card(model: Cascade) -> ModelCard:
    return ModelCard(
        version=1, arm="toy", seed=0, model=model.settings, vocab_size=VOCAB, eos_id=0, objective={}, trained_depths=(5,),
        repair=None, steps=1, tokens_per_step=1, seq_len=64, data_fingerprint="", stream_fingerprint="", tokenizer_hash="",
    )  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    text = "the state of the union of these united states, and what we the people of it do about that " * 40
    return train_bpe(
        [text + " ".join(str(i) for i in range(300))], BpeTokenizer(kind="bpe", vocab_size=VOCAB, training_bytes=10**6)
    )[0]


@pytest.fixture(scope="module")
def models() -> dict[str, tuple[Cascade, int]]:
    """Every export of the test: model and depth, by name."""
    chosen: dict[str, tuple[Cascade, int]] = {}
    for is_norm in (False, True):
        model = _drawn(Cascade(toy_model(junction_norm=is_norm), VOCAB))
        chosen |= {f"{'norm' if is_norm else 'plain'}-{depth}": (model, depth) for depth in DEPTHS if depth > 2 or not is_norm}
    for part in REPAIRS.values():
        model = _drawn(Repaired(toy_model(), VOCAB, part, [1, 3]))
        chosen |= {f"repair-{part}-{depth}": (model, depth) for depth in (1, 3)}
    for name, changes in STREAMED.items():
        streams = toy_streams(**{"n_streams": 4, **changes})
        model = _drawn(build_cascade(Model.model_validate({**dict(toy_model()), "segments": SEGMENTS, "streams": streams}), VOCAB))
        chosen |= {f"streams-{name}-{depth}": (model, depth) for depth in (1, 3, 5)}
    for kind, streams in (("grouped", None), *((f"streams-grouped-{kv}", toy_streams(n_streams=3, kv=kv)) for kv in KV)):
        model = _drawn(build_cascade(Model.model_validate({**dict(toy_model()), **GROUPED, "streams": streams}), VOCAB))
        chosen |= {f"{kind}-{depth}": (model, depth) for depth in (3, 5)}
    for name, mixture, streams in EXPERTS:
        model = _drawn(build_cascade(toy_model(segments=SEGMENTS, experts=toy_experts(**mixture), streams=streams), VOCAB))
        chosen |= {f"{name}-{depth}": (model, depth) for depth in (1, 4)}
    uneven = Segment(n_blocks=2, d_model=16, n_heads=3, n_kv_heads=3)  # heads that do not divide the width
    chosen["uneven-2"] = (_drawn(Cascade(toy_model(segments=(uneven,)), VOCAB)), 2)
    model = _drawn(Repaired(toy_model(experts=toy_experts()), VOCAB, "block", [3]))
    return chosen | {"experts-repaired-3": (model, 3)}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, models: Mapping[str, tuple[Cascade, int]], tokenizer: Tokenizer) -> Path:
    """A folder of exports, and what a fresh process found in them."""
    root = tmp_path_factory.mktemp("exports")
    for name, (model, depth) in models.items():
        with model.running(model.stream_counts[0]):
            export_prefix(model, _card(model), depth, tokenizer, "a card", root / name)
    environment = {**os.environ, "HF_HOME": str(root / "hub"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    tokens = json.dumps(toy_tokens(2, 20).tolist())
    command = [sys.executable, "-c", LOADING, str(root), tokens, PROMPT, json.dumps(HARNESS), json.dumps(PAIRS)]
    result = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr[-3000:]
    return root


def test_logits_are_those_of_the_prefix_in_place(exported: Path, models: Mapping[str, tuple[Cascade, int]]) -> None:
    found = load_file(exported / "logits.safetensors")
    worst = {}
    for name, (model, depth) in models.items():
        with torch.no_grad(), model.running(model.stream_counts[0]):
            wanted = model(toy_tokens(2, 20), depth)
        worst[name] = float((found[name] - wanted).abs().max() / wanted.abs().max())
        # float32: padding and a mask change the order of the sums
        torch.testing.assert_close(found[f"{name}.padded"], wanted, atol=1e-5, rtol=1e-5)
    assert max(worst.values()) <= 1e-6, worst  # float32: q, k and v as one product or three


def test_one_width_is_a_plain_llama_and_more_bring_their_own_file(exported: Path) -> None:
    classes = json.loads((exported / "found.json").read_text())["classes"]
    assert {name for name, kind in classes.items() if kind == "LlamaForCausalLM"} == {
        "plain-1", "plain-2", "repair-norm-1", "repair-head-1", "repair-block-1",
    }  # fmt: skip
    for name, kind in classes.items():
        assert (exported / name / "modeling_telescopic.py").exists() == (kind != "LlamaForCausalLM")
        assert (exported / name / "modeling_hidden_decoding.py").exists() == (kind == "HiddenDecodingForCausalLM")
        assert name.startswith("streams-") == (kind == "HiddenDecodingForCausalLM")


def test_every_tensor_has_its_own_storage_and_no_more_than_the_prefix_needs(exported: Path) -> None:
    for depth, n_blocks in ((2, 2), (4, 4), (5, 5)):
        path = exported / f"plain-{depth}" / "model.safetensors"
        with safe_open(path, "pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        assert len({tensor.untyped_storage().data_ptr() for tensor in tensors.values()}) == len(tensors)
        alone = Cascade(toy_model().prefix(depth), VOCAB)
        unused = sum(p.numel() for out in list(alone.exits)[:-1] for p in out.parameters())
        assert sum(tensor.numel() for tensor in tensors.values()) == sum(p.numel() for p in alone.parameters()) - unused
        assert (
            len({name.split(".")[1 if depth > 2 else 2] for name in tensors if "blocks." in name or "layers." in name}) == n_blocks
        )


def test_generation_gives_the_text_of_the_engine(
    exported: Path, models: Mapping[str, tuple[Cascade, int]], tokenizer: Tokenizer
) -> None:
    texts = json.loads((exported / "found.json").read_text())["texts"]
    for name, text in texts.items():
        assert text["eos"] == tokenizer.eos_id
        assert text["prompt"] == tokenizer.encode_batch([PROMPT])[0]
        model, depth = models[name]
        with model.running(model.stream_counts[0]):
            assert text["new"] == generate(model, [Request(tuple(text["prompt"]), depth, 8)])[0].tokens, name


def test_the_harness_scores_an_export_as_the_prefix_in_place(
    exported: Path, models: Mapping[str, tuple[Cascade, int]], tokenizer: Tokenizer
) -> None:
    """Log-likelihoods from lm-evaluation-harness's own Hugging Face backend, which gets the folder and nothing else."""
    scores = json.loads((exported / "found.json").read_text())["scores"]
    for name in HARNESS:
        model, depth = models[name]
        for (context, continuation), (found, is_greedy) in zip(PAIRS, scores[name], strict=True):
            asked, whole = tokenizer.encode_batch([context, context + continuation])
            with torch.no_grad(), model.running(model.stream_counts[0]):
                log_NV = model(torch.tensor([whole]), depth)[0].log_softmax(-1)[len(asked) - 1 : -1]
            answer_N = torch.tensor(whole[len(asked) :])
            # float32: padding changes the order of the sums
            assert found == pytest.approx(float(log_NV.gather(1, answer_N[:, None]).sum()), abs=1e-4)
            assert is_greedy == torch.equal(log_NV.argmax(-1), answer_N)


def test_a_folder_that_is_taken_is_refused(tmp_path: Path, models: Mapping[str, tuple[Cascade, int]], tokenizer: Tokenizer) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    model, depth = models["plain-3"]
    with pytest.raises(ConfigError, match="not an empty folder"):
        export_prefix(model, _card(model), depth, tokenizer, "", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_link_to_an_empty_folder_is_followed(
    tmp_path: Path, models: Mapping[str, tuple[Cascade, int]], tokenizer: Tokenizer
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    model, depth = models["plain-1"]
    export_prefix(model, _card(model), depth, tokenizer, "", tmp_path / "link")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]
    weights, config = tmp_path / "real" / "model.safetensors", tmp_path / "real" / "config.json"
    assert weights.stat().st_mode == config.stat().st_mode, "whoever may read one may read the other"


@pytest.mark.parametrize("name", ["plain-3", "streams-mixed-3"])
def test_micro_batches_of_unequal_size_add_up_to_the_gradient_of_their_batch(name: str, exported: Path) -> None:
    """As `Trainer` accumulates: it tells the labels of the whole step, and adds the losses."""
    result = subprocess.run(
        [sys.executable, "-c", ACCUMULATING, str(exported / name)], capture_output=True, text=True, timeout=120,
        env={**os.environ, "HF_HOME": str(exported / "hub"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr[-3000:]
    assert float(result.stdout) < 1e-12
