"""What of a `config.json` is read, and what is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from components.config.experts import Experts
from components.config.problems import CheckpointError
from components.huggingface.config import model_differences, model_yaml, read_config

LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 48, "hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "rms_norm_eps": 1e-5, "max_position_embeddings": 64,
}  # fmt: skip
QWEN3_8B: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 12288, "max_position_embeddings": 40960, "max_window_layers": 36, "model_type": "qwen3",
    "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": None,
    "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip


def _read(folder: Path, raw: object) -> Any:
    (folder / "config.json").write_text(raw if isinstance(raw, str) else json.dumps(raw))
    return read_config(folder)


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({"model_type": "gpt2"}, "model_type", "must be one of llama, qwen3"),
        ({"attention_bias": True}, "attention_bias", "must be False"),
        ({"mlp_bias": True}, "mlp_bias", "must be False"),
        ({"hidden_act": "gelu"}, "hidden_act", "must be 'silu'"),
        ({"attention_dropout": 0.1}, "attention_dropout", "must be 0"),
        ({"use_sliding_window": True}, "use_sliding_window", "must be False"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types", "full_attention"),
        ({"quantization_config": {"bits": 4}}, "quantization_config", "must be None"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor", "must be 1"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "rope_parameters.rope_type", "default, linear or llama3"),
        ({"rope_scaling": {"rope_type": "linear"}}, "rope_parameters.factor", "missing key"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "rope_parameters.low_freq_factor", "missing key"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e6}}}, "rope_parameters", "one mapping of keys to values"),
    ],
)
def test_what_the_blocks_cannot_do_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(CheckpointError) as raised:
        _read(tmp_path, {**LLAMA, **changes})
    assert any(f"config.json: {key}: " in line and says in line for line in str(raised.value).splitlines()), str(raised.value)


@pytest.mark.parametrize(
    ("changes", "key", "says"),
    [
        ({"hidden_size": "wide"}, "hidden_size", "whole number of at least 1 (got 'wide')"),
        ({"num_attention_heads": 0}, "num_attention_heads", "whole number of at least 1 (got 0)"),
        ({"num_key_value_heads": 3}, "num_key_value_heads", "must divide the 4 query heads (got 3)"),
        ({"head_dim": 3}, "head_dim", "must be even"),
        ({"rms_norm_eps": 0}, "rms_norm_eps", "greater than 0"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings", "boolean (got 'no')"),
        ({"rope_theta": -1.0}, "rope_theta", "greater than 0"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "rope_parameters.factor", "greater than or equal to 1"),
        ({"rope_scaling": {**LLAMA3, "high_freq_factor": 0.5}}, "rope_parameters.high_freq_factor", "more than low_freq_factor"),
        (
            {"rope_scaling": {**LLAMA3, "original_max_position_embeddings": 0}},
            "rope_parameters.original_max_position_embeddings",
            "greater than or equal to 1",
        ),
    ],
)
def test_a_value_that_no_model_can_have_is_one_line_under_its_own_key(
    tmp_path: Path, changes: dict[str, Any], key: str, says: str
) -> None:
    with pytest.raises(CheckpointError) as raised:
        _read(tmp_path, {**LLAMA, **changes})
    (line,) = str(raised.value).splitlines()
    assert f"config.json: {key}: " in line
    assert says in line


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 10**6),
    st.floats(),
    st.sampled_from(["", "llama", "yarn", "16"]),
    st.lists(st.integers(), max_size=2),
    st.dictionaries(st.sampled_from(["rope_type", "factor", "type"]), st.integers(), max_size=2),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(changes=st.dictionaries(st.sampled_from(sorted({*LLAMA, *QWEN3_8B, "rope_parameters", "layer_types"})), JUNK, min_size=1))
def test_whatever_stands_in_the_file_it_is_a_shape_or_a_clean_error(tmp_path: Path, changes: dict[str, Any]) -> None:
    try:
        shape = _read(tmp_path, {**LLAMA, **changes})
    except CheckpointError as error:
        said = str(error).splitlines()
    else:
        said = [str(problem) for problem in model_differences(shape.model, shape.model)]
    assert [line for line in said if "config.json: " not in line] == []


def test_all_problems_come_at_once(tmp_path: Path) -> None:
    raw = {key: value for key, value in LLAMA.items() if key not in ("hidden_size", "rms_norm_eps")}
    with pytest.raises(CheckpointError) as raised:
        _read(tmp_path, {**raw, "mlp_bias": True})
    assert len(str(raised.value).splitlines()) == 3


@pytest.mark.parametrize(("raw", "says"), [("{", "not JSON"), ("[]", "must be a mapping")])
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, raw: str, says: str) -> None:
    with pytest.raises(CheckpointError, match=says):
        _read(tmp_path, raw)
    with pytest.raises(CheckpointError, match="no such file"):
        read_config(tmp_path / "elsewhere")
    (tmp_path / "config.json").unlink()
    (tmp_path / "config.json").mkdir()
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_config(tmp_path)


def test_what_the_first_llama_left_out_has_its_meaning(tmp_path: Path) -> None:
    model = _read(tmp_path, LLAMA).model
    assert (model.blocks[0].n_kv_heads, model.blocks[0].head_dim) == (4, 4)
    assert (model.rope_theta, model.rope_scaling, model.tied_embeddings, model.qk_norm) == (10000.0, None, False, False)


def test_the_scale_of_qwen3_8b_has_its_shape(tmp_path: Path) -> None:
    from components.config.loader import load_study
    from components.models.sizes import stored_parameters
    from tests.toys import ROOT

    shape, study = _read(tmp_path, QWEN3_8B), load_study(ROOT / "scales" / "hd-qwen3-8b.yaml")
    assert model_differences(study.backbones["qwen3-8b"].model, shape.model) == []
    assert shape.vocab_size == study.data.tokenizer.vocab_size
    assert stored_parameters(shape.model, shape.vocab_size) == 8_190_735_360  # as the hub counts them


def test_every_difference_to_the_parameter_file_is_named(tmp_path: Path) -> None:
    shape = _read(tmp_path, LLAMA)
    declared = shape.model.model_copy(update={"rope_theta": 1e6, "tied_embeddings": True})
    assert {problem.key for problem in model_differences(declared, shape.model)} == {"rope_theta", "tied_embeddings"}


def test_experts_as_wide_as_the_checkpoints_layers_are_a_difference(tmp_path: Path) -> None:
    shape = _read(tmp_path, LLAMA)
    experts = Experts(n_experts=4, top_k=2, d_inner=20, n_shared=0, gate="softmax", balance="bias", balance_weight=0.01)
    (segment,) = shape.model.segments
    declared = shape.model.model_copy(update={"experts": experts, "segments": (segment.model_copy(update={"d_inner": None}),)})
    assert declared.blocks[0].d_inner == shape.model.blocks[0].d_inner
    (problem,) = model_differences(declared, shape.model)
    assert (problem.key, problem.remedy) == ("experts", "write null")


def test_the_printed_shape_is_what_the_parameter_file_wants(tmp_path: Path) -> None:
    from ruamel.yaml import YAML

    from components.config.model import Model

    for changes in ({}, {"tie_word_embeddings": True, "rope_parameters": LLAMA3}):
        shape = _read(tmp_path, {**LLAMA, **changes})
        printed = YAML(typ="safe", pure=True).load(model_yaml(shape))
        rest = {"junction_norm": False, "init_std": 0.02, "document_attention": "leak"}
        assert Model.model_validate_json(json.dumps(printed | rest)) == shape.model
