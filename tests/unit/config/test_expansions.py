"""The sections `expansions` and `controls`: what they resolve to, and what is said about mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from components.config.loader import load_study, read_yaml
from components.config.problems import ConfigError
from components.config.schema import Study
from components.objectives.base import build_objective
from tests.toys import ROOT

LAYERS = ["intra", "cross_full", "intra", "cross_full"]
TWO: dict[str, Any] = {
    "base": "tlm-uniform",
    "streams": {
        "n_streams": 2,
        "layers": LAYERS,
        "rope_rule": "by_layer",
        "kv": "separate",
        "supervision": "last",
        "n_mirrored": 0,
    },
    "replication": "cyclic",
    "optimizer": "keep",
    "training": {"steps": 12, "warmup_steps": 2},
}
FOUR = {**TWO, "base": "hd-n2", "streams": {"n_streams": 4}, "training": {"steps": 8, "warmup_steps": 2}}


def _load(folder: Path, expansions: dict[str, Any], controls: dict[str, Any] | None = None, **sections: Any) -> Study:
    from ruamel.yaml import YAML

    raw = dict(read_yaml(ROOT / "scales" / "tiny.yaml"))
    raw |= {"expansions": expansions, "controls": controls or {}, **sections}
    path = folder / "params.yaml"
    with path.open("w") as file:
        YAML(typ="safe", pure=True).dump(_lists(raw), file)
    return load_study(path)


def _lists(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _lists(value) for key, value in node.items()}
    return [_lists(value) for value in node] if isinstance(node, list | tuple) else node


def test_an_expansion_keeps_objective_and_shape_and_reads_on(tmp_path: Path) -> None:
    study = _load(tmp_path, {"hd-n2": TWO, "hd-n4": FOUR})
    base, two, four = (study.models[name] for name in ("tlm-uniform", "hd-n2", "hd-n4"))
    assert (two.base, four.base) == ("tlm-uniform", "hd-n2")
    assert (two.first_step, four.first_step) == (24, 36)
    assert two.objective.inner == four.objective.inner == base.objective
    assert two.model.segments == base.model.segments
    assert (two.training.steps, two.training.lr) == (12, study.training.lr)
    assert four.model.streams.layers == tuple(LAYERS)
    assert (two.model.streams.n_streams, four.model.streams.n_streams) == (2, 4)


def test_a_jump_from_one_to_four_and_to_three_is_allowed(tmp_path: Path) -> None:
    study = _load(tmp_path, {f"hd-n{n}": {**TWO, "streams": {**TWO["streams"], "n_streams": n}} for n in (3, 4)})
    assert study.expansions["hd-n3"].model.streams.n_streams == 3


def test_controls_get_the_tokens_and_the_flops_of_the_whole_chain(tmp_path: Path) -> None:
    controls = {
        "hd-n1": {"base": "tlm-uniform", "of": "hd-n4", "equal": "tokens"},
        "hd-n1-flops": {"base": "tlm-uniform", "of": "hd-n4", "equal": "flops"},
    }
    study = _load(tmp_path, {"hd-n2": TWO, "hd-n4": FOUR}, controls)
    tokens, flops = study.controls["hd-n1"], study.controls["hd-n1-flops"]
    assert tokens.training.steps == 12 + 8
    assert tokens.model.streams is None
    assert tokens.first_step == 24
    assert tokens.training.warmup_steps == 2

    def spent(name: str) -> float:
        arm = study.models[name]
        per_token = build_objective(arm, study.data.tokenizer.vocab_size, 42).expected_flops(study.data.seq_len)
        return per_token * arm.training.steps

    per_step = spent("hd-n1") / 20
    assert abs(spent("hd-n1-flops") - spent("hd-n2") - spent("hd-n4")) <= per_step / 2
    assert flops.training.steps > 1.5 * tokens.training.steps  # the head, which one stream pays for, is most of so small a model


def _with(key: str, value: Any) -> dict[str, Any]:
    if key in TWO:
        return {**TWO, key: value}
    return {**TWO, "streams": {**TWO["streams"], key: value}}


@pytest.mark.parametrize(
    ("block", "key", "says"),
    [
        (_with("n_streams", 0), "streams.n_streams", "greater than or equal to 1"),
        (_with("n_streams", 1), "streams.n_streams", "must be more than the 1 of tlm-uniform"),
        (_with("layers", LAYERS[:3]), "streams.layers", "needs one kind per block, 4"),
        (_with("layers", ["intra"] * 4), "streams.layers", "all intra"),
        (_with("layers", ["intra", "cross_local", "intra", "intra"]), "streams.local", "cross_local blocks need a window"),
        (_with("local", {"size": 4, "unit": "rows"}), "streams.local", "cross_local blocks only"),
        (_with("layers", ["intra", "cross", "intra", "intra"]), "streams.layers.1", "'cross_full'"),
        (_with("rope_rule", "per_layer"), "streams.rope_rule", "'by_layer'"),
        (_with("n_mirrored", 1), "streams.n_mirrored", "use at most 0"),
        (_with("n_mirrored", -1), "streams.n_mirrored", "greater than or equal to 0"),
        (_with("sampled", [1, 4]), "streams.sampled", "must rise to n_streams = 2"),
        (_with("stream", 2), "streams.stream", "unknown key"),
        ({**TWO, "objective": {"kind": "twin", "exit": 1}}, "objective.exit", "must be the last one, 3"),
        (_with("base", "tlm-unifrm"), "base", "did you mean tlm-uniform?"),
        (_with("training", {"batch_rows": 8}), "training.batch_rows", "must be that of tlm-uniform, 4"),
        (_with("training", {"seeds": [7]}), "training.seeds", "must be among the seeds of tlm-uniform"),
        (_with("training", {"steps": 3}), "training.warmup_steps", "cool-down"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_key_and_remedy(tmp_path: Path, block: dict[str, Any], key: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, {"hd": block})
    lines = [line for line in str(caught.value).splitlines() if f": expansions.hd.{key}: " in line]
    assert lines, caught.value
    assert any(says in line for line in lines), caught.value


def test_fewer_streams_than_the_base_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"expansions\.hd-n4\.streams\.n_streams: must be more than the 4 of hd-n2"):
        _load(tmp_path, {"hd-n2": {**TWO, "streams": {**TWO["streams"], "n_streams": 4}}, "hd-n4": FOUR})


def test_mistakes_of_controls_are_named(tmp_path: Path) -> None:
    controls = {
        "a": {"base": "tlm-uniform", "of": "hd-n3", "equal": "tokens"},
        "b": {"base": "twin-full", "of": "hd-n2", "equal": "tokens"},
        "hd-n2": {"base": "tlm-uniform", "of": "hd-n2", "equal": "tokens"},
    }
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, {"hd-n2": TWO}, controls)
    message = str(caught.value)
    assert "controls.a.of: must be an expansion (got 'hd-n3'); did you mean hd-n2?" in message
    assert "controls.b.base: must be the arm that hd-n2 comes from, tlm-uniform" in message
    assert "controls.hd-n2: is also the name of another model" in message


def test_an_expansion_comes_after_its_base(tmp_path: Path) -> None:
    for expansions, broken in (({"four": FOUR, "hd-n2": TWO}, "four"), ({"hd-n2": {**TWO, "base": "hd-n2"}}, "hd-n2")):
        rule = rf"expansions\.{broken}\.base: must be an arm, a backbone or an earlier expansion \(got 'hd-n2'\)"
        with pytest.raises(ConfigError, match=rule):
            _load(tmp_path, expansions)


def test_a_control_does_not_start_from_an_expansion(tmp_path: Path) -> None:
    controls = {"hd-c": {"base": "hd-n2", "of": "hd-n2", "equal": "tokens"}}
    with pytest.raises(ConfigError, match=r"controls\.hd-c\.base: must be an arm or a backbone \(got 'hd-n2'\)"):
        _load(tmp_path, {"hd-n2": TWO}, controls)


def test_what_stands_on_a_mistake_adds_no_mistake_of_its_own(tmp_path: Path) -> None:
    control = {"base": "tlm-uniform", "of": "hd-n2", "equal": "tokens"}
    with pytest.raises(ConfigError) as caught:
        _load(tmp_path, {"hd-n2": {**TWO, "training": {"steps": 3}}, "hd-n4": FOUR}, {"hd-c": control})
    assert "expansions.hd-n2.training.warmup_steps" in str(caught.value)
    assert "hd-n4" not in str(caught.value)
    assert "hd-c" not in str(caught.value)


def test_streams_of_an_arm_from_scratch_are_refused(tmp_path: Path) -> None:
    arms = dict(read_yaml(ROOT / "scales" / "tiny.yaml"))["arms"]
    arms["tlm-uniform"] = {**arms["tlm-uniform"], "model": {"streams": TWO["streams"]}}
    with pytest.raises(ConfigError, match=r"arms\.tlm-uniform\.model\.streams: streams come by expansion"):
        _load(tmp_path, {}, arms=arms)
