"""What `python -m tasks.plan` prints, and what it refuses."""

from __future__ import annotations

import re

import pytest

from components.config.loader import load_study
from components.config.problems import ConfigError
from components.profiling.parameters import list_parameters
from components.profiling.plan import plan_study
from tasks import plan
from tests.toys import ROOT


def _run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("sys.argv", ["plan", *arguments])
    plan.main()


def test_every_model_has_a_line_and_the_hours_add_up(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _run(monkeypatch, "--scale", "tiny", "--tflops", "0.001")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "scales/tiny.yaml: 32 tokens a row, vocabulary 300"
    names = list(load_study(ROOT / "scales" / "tiny.yaml").models)
    column = lines[2].split().index("device-hours")
    rows = {line.split()[0]: line.split() for line in lines[3 : 3 + len(names)]}
    assert list(rows) == names
    total = next(float(line.split()[0]) for line in lines if "device-hours in all" in line)
    assert total == pytest.approx(sum(float(row[column]) for row in rows.values()), rel=1e-2)  # three digits are printed
    assert "at 40% of 0.001 TFLOP/s" in "\n".join(lines)


def test_check_says_what_the_file_has(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    _run(monkeypatch, "--scale", "tiny", "--check")
    assert capsys.readouterr().out == "scales/tiny.yaml: valid; 3 arms, 0 backbones, 0 repairs, 1 expansions, 0 controls\n"


@pytest.mark.parametrize(
    ("arm", "said"),
    [("tlm-uniform", "values decay, [0-9,]+ do not$"), ("repair-affine", "values decay, [0-9,]+ do not, [0-9,]+ are frozen$")],
)
def test_every_parameter_is_listed_with_its_decay(
    arm: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _run(monkeypatch, "--scale", "all-arms", "--parameters", arm)
    *table, _, total = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in table[1:]}
    gain, matrix = rows["blocks.0.attention_norm.weight"], rows["blocks.0.attention.qkv.weight"]
    assert re.search(said, total), total
    assert sum(int(size.replace(",", "")) for size in re.findall(r"([\d,]+) (?:values|do|are)", total)) == sum(
        int(row.split()[-2].replace(",", "")) for row in rows.values()
    )
    is_repair = arm.startswith("repair")
    assert gain.endswith("frozen" if is_repair else "none")
    assert matrix.endswith("frozen" if is_repair else " 0.01")


@pytest.mark.parametrize("arm", ["tlm-uniform", "mlms", "twin-full", "layerdrop", "repair-block"])
def test_the_parameters_listed_are_those_of_the_plan(arm: str) -> None:
    study = load_study(ROOT / "scales" / "all-arms.yaml")
    planned = next(line.parameters for line in plan_study(study) if line.name == arm)
    assert sum(line.size for line in list_parameters(study.models[arm], study.data.tokenizer.vocab_size)) == planned


def test_an_unknown_scale_names_the_one_that_was_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"scale 'proxy-200': no file .*; did you mean proxy-200m\?"):
        _run(monkeypatch, "--scale", "proxy-200")


@pytest.mark.parametrize(
    "option", [("--tflops", "nan"), ("--tflops", "inf"), ("--tflops", "0"), ("--mfu", "1.5"), ("--mfu", "nan")]
)
def test_a_peak_that_no_device_has_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], option: tuple[str, str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        _run(monkeypatch, *option)
    assert ended.value.code == 2
    assert "--mfu must be in (0, 1] and --tflops positive" in capsys.readouterr().err
