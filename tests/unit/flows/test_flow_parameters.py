"""Parameters of flows: each mistake is one clean line before Prefect starts."""

from __future__ import annotations

from argparse import ArgumentTypeError

import pytest

from components.config.loader import load_study
from components.config.problems import ConfigError
from flows.expand_arm import grown_from
from flows.launch import words
from flows.parameters import PARAMS, check_parameters, check_trained, stage_names
from tasks.command import whole_numbers
from tests.toys import ROOT

TINY = ROOT / "scales" / "tiny.yaml"


def test_without_a_scale_the_parameter_file_is_used_as_it_is() -> None:
    assert check_parameters() == PARAMS
    assert check_parameters(scale="tiny", arms=["twin-full"], seeds=[1, 2], stages=["evaluate"], max_parallel=3) == TINY


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"scale": "tinny"}, "scale 'tinny': no file .*tinny.yaml; did you mean tiny?"),
        ({"arms": ["twin"]}, "arms: no twin in dvc.yaml; there are "),
        ({"stages": ["trian"]}, "stages: no trian in dvc.yaml; there are .*; did you mean train?"),
        ({"stages": ["repair"]}, "stages: no repair in dvc.yaml; there are "),  # tiny has no repairs
        ({"arms": ["hd-n2"], "stages": ["train"]}, "arms hd-n2: have none of the stages train"),
        ({"seeds": [3, 3]}, r"training\.seeds: must not repeat"),
        ({"max_parallel": 0}, "max_parallel 0: must be at least 1"),
        ({"arm": "twin"}, "--arm twin: no such arm"),
        ({"arm": "twin-full", "rule": grown_from}, "arm twin-full: nothing under expansions or controls starts from it"),
        ({"scale": "stories", "arm": "stories", "rule": check_trained}, "arms stories: have none of the stages control, expand"),
    ],
)
def test_mistake_is_one_line(parameters: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        check_parameters(**{"scale": "tiny", **parameters})  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_stage_names_are_those_of_dvc_for_the_scale() -> None:
    names = stage_names(load_study(TINY))
    assert {"tokenize", "train@twin-full", "expand@hd-n2", "report"} <= set(names)
    assert not [name for name in names if name.startswith(("repair", "control"))]


def test_lists_on_the_command_line_are_separated_by_commas() -> None:
    assert words("a,b,") == ["a", "b"]
    assert whole_numbers("42, 43,") == [42, 43]
    for wrong in ("42,x", "-1", "", ","):
        with pytest.raises(ArgumentTypeError, match="whole numbers with commas"):
            whole_numbers(wrong)


def test_what_grows_from_an_arm_comes_by_way_of_other_expansions() -> None:
    study = load_study(ROOT / "scales" / "quick.yaml")
    assert grown_from(study, "tlm-uniform") == ["hd-n2", "hd-n4", "hd-n1", "hd-n1-flops", "hd-n1-of-n4"]
    assert grown_from(study, "hd-n2") == ["hd-n4"]
    with pytest.raises(ConfigError, match="arm twin-full: nothing under expansions or controls starts from it"):
        grown_from(study, "twin-full")
