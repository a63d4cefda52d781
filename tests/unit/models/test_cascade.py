"""The cascade: every prefix is a model of its own, causal, and independent of what lies deeper."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from components.models.cascade import Cascade, match_norm
from tests.toys import ROOT, VOCAB, toy_cascade, toy_tokens

DEPTHS = range(1, 6)


@pytest.mark.parametrize("junction_norm", [False, True])
@pytest.mark.parametrize("depth", DEPTHS)
def test_prefix_equals_a_model_of_just_its_blocks_bit_for_bit(depth: int, junction_norm: bool) -> None:
    whole = toy_cascade(dtype=torch.float32, junction_norm=junction_norm)
    alone = Cascade(whole.settings.prefix(depth), VOCAB)
    weights = whole.state_dict()
    alone.load_state_dict({name: weights[name] for name in alone.state_dict()})
    tokens = toy_tokens()
    assert torch.equal(whole(tokens, depth), alone(tokens, depth))


@pytest.mark.parametrize("depth", DEPTHS)
def test_prefix_gradient_stops_at_depth(depth: int) -> None:
    model = toy_cascade()
    model(toy_tokens(), depth).sum().backward()
    segment = model.segment_at(depth)
    for name, parameter in model.named_parameters():
        kind, index = name.split(".")[:2]
        used = int(index) < depth if kind == "blocks" else int(index) <= segment if kind == "embeddings" else int(index) == segment
        assert (parameter.grad is not None) == used, name


@pytest.mark.parametrize("junction_norm", [False, True])
def test_a_token_changes_no_logit_before_it(junction_norm: bool) -> None:
    model, tokens = toy_cascade(junction_norm=junction_norm), toy_tokens(1)
    changed = tokens.clone()
    changed[0, 7] = (changed[0, 7] + 1) % VOCAB
    for depth in DEPTHS:
        before, after = model(tokens, depth), model(changed, depth)
        assert torch.equal(before[0, :7], after[0, :7])
        assert not torch.equal(before[0, 7:], after[0, 7:])


def test_one_trunk_pass_gives_the_logits_of_every_depth() -> None:
    model, tokens = toy_cascade(), toy_tokens()
    for depth, x_BTD in model.residuals(tokens, DEPTHS):
        hidden_ND, head_VD = model.read_residual(x_BTD, depth)
        assert torch.equal((hidden_ND @ head_VD.T).view(3, 12, VOCAB), model(tokens, depth))


@pytest.mark.parametrize("depth", [0, 6])
def test_depth_outside_the_model_is_refused(depth: int) -> None:
    with pytest.raises(ValueError, match=f"depth {depth} outside 1..5"):
        toy_cascade()(toy_tokens(), depth)


def test_matched_norm_is_the_reference_norm_of_another_width() -> None:
    stream, reference = torch.randn(2, 3, 8, dtype=torch.float64), torch.randn(2, 3, 5, dtype=torch.float64)
    matched = match_norm(stream, reference)
    torch.testing.assert_close(matched.norm(dim=-1), reference.norm(dim=-1))
    torch.testing.assert_close(matched / matched.norm(dim=-1, keepdim=True), stream / stream.norm(dim=-1, keepdim=True))


def test_rotary_angles_are_float32_whatever_is_computed_in() -> None:
    """In bfloat16 neighbours past position 256 would stand at one place."""
    model = toy_cascade(dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rotary = model.rotary(2048, torch.device("cpu"))
    pairs = torch.arange(0, 8, 2, dtype=torch.float64)
    exact = torch.arange(2048, dtype=torch.float64)[:, None] * 10000.0 ** (-pairs / 8)
    assert rotary.cos.dtype == rotary.sin.dtype == torch.float32
    # angles up to 2,048 have 24 bits
    torch.testing.assert_close(rotary.cos[:, 0, 0].double(), torch.cat((exact, exact), 1).cos(), atol=2e-4, rtol=0)
    torch.testing.assert_close(rotary.sin[:, 0, 0].double(), torch.cat((-exact, exact), 1).sin(), atol=2e-4, rtol=0)


def test_a_model_is_made_without_torchs_compiler() -> None:
    """Its import takes a second, in every command that loads a model."""
    code = (
        "import sys, torch\n"
        "from pathlib import Path\n"
        "from components.config.loader import load_study\n"
        "from components.models.streams import build_cascade\n"
        "study = load_study(Path('scales/tiny.yaml'))\n"
        "with torch.device('meta'):\n"
        "    build_cascade(study.model, 64)\n"
        "assert 'torch._dynamo' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_initialisation_depends_on_the_seed_alone() -> None:
    first, again, other = toy_cascade(3).state_dict(), toy_cascade(3).state_dict(), toy_cascade(4).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embeddings.0.weight"], other["embeddings.0.weight"])


def test_initial_weights_have_the_stated_spread() -> None:
    model = Cascade(toy_cascade().settings.model_copy(update={"init_std": 0.02}), 4096)
    model.init_weights(0)
    weights = model.state_dict()
    assert float(weights["embeddings.0.weight"].std()) == pytest.approx(0.02, rel=0.02)
    # 1024 and 2048 draws: the standard error of a standard deviation is about 2 %
    assert float(weights["blocks.4.attention.out.weight"].std()) == pytest.approx(0.02 / 10**0.5, rel=0.1)
    assert float(weights["blocks.4.ffn.down.weight"].std()) == pytest.approx(0.02 / 10**0.5, rel=0.1)
    assert torch.equal(weights["exits.0.norm.weight"], torch.ones(16))


def test_block_diagonal_attention_never_sees_the_document_before() -> None:
    from components.models.cascade import document_numbers

    model, tokens = toy_cascade(), toy_tokens(1)
    tokens[tokens == 0] = 1
    tokens[0, 5] = 0  # end-of-text: starts the second document
    changed = tokens.clone()
    changed[0, 2] = (changed[0, 2] % (VOCAB - 1)) + 1
    assert changed[0, 2] != tokens[0, 2]
    for depth in DEPTHS:
        masked = [model(t, depth, document_numbers(t, 0)) for t in (tokens, changed)]
        leaking = [model(t, depth) for t in (tokens, changed)]
        assert torch.equal(masked[0][0, 5:], masked[1][0, 5:])
        assert not torch.equal(leaking[0][0, 5:], leaking[1][0, 5:])
        # the document alone gives the same logits: rotary attention sees only distances (1e-6: angles are float32)
        torch.testing.assert_close(masked[0][0, 5:], model(tokens[:, 5:], depth)[0], atol=1e-6, rtol=0)
