"""What a stage's end means; DVC is played by small scripts that really run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tasks import stage
from tasks.phases import Phase, covered_seconds
from tasks.stage import StageFailedError, run_stage


def play_dvc(monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """Puts a script in the place of dvc; it sees the arguments and the status file as the stage's command would."""
    prelude = "import json, os, sys\nfrom pathlib import Path\nstatus = os.environ.get('STUDY_STATUS_FILE')\n"
    monkeypatch.setattr(stage, "DVC", (sys.executable, "-c", prelude + script))


def test_lines_are_passed_on_without_dvcs_advice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play_dvc(monkeypatch, "print(' '.join(sys.argv[1:])); print('\\tgit add dvc.lock'); print('a\\rb')")
    said: list[str] = []
    run_stage("train@a", tmp_path, said.append)
    assert said == ["repro --single-item train@a", "a", "b"]


def test_mistake_is_final_and_keeps_its_message(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play_dvc(
        monkeypatch, "Path(status).write_text(json.dumps({'code': 2, 'message': 'no such column', 'phases': []})); sys.exit(255)"
    )
    with pytest.raises(StageFailedError, match="train@a: no such column") as caught:
        run_stage("train@a", tmp_path, print)
    assert caught.value.is_final


def test_crash_can_be_retried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play_dvc(monkeypatch, "sys.exit(255)")
    with pytest.raises(StageFailedError, match="exit code 255") as caught:
        run_stage("train@a", tmp_path, print)
    assert not caught.value.is_final


def test_result_that_dvc_lost_is_committed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play_dvc(
        monkeypatch,
        "print(' '.join(sys.argv[1:]))\n"
        "if 'repro' in sys.argv: Path(status).write_text(json.dumps({'code': 0, 'message': '', 'phases': []})); sys.exit(255)",
    )
    said: list[str] = []
    run_stage("train@a", tmp_path, said.append)
    assert said[-1] == "commit --force train@a"


def test_stage_waits_while_another_dvc_works_on_its_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play_dvc(
        monkeypatch,
        "mark = Path('mark')\n"
        "if not mark.exists():\n"
        "    mark.touch(); print(\"ERROR: 'a' is busy, it is being blocked by:\\n  (PID 1): dvc repro\"); sys.exit(255)",
    )
    monkeypatch.setattr(stage, "BUSY_SECONDS", 0.0)
    said: list[str] = []
    run_stage("pack", tmp_path, said.append)
    assert "pack: another DVC works on the same files (see above); waiting for it" in said


def test_stage_that_runs_too_long_is_stopped_and_may_be_tried_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play_dvc(monkeypatch, "import time; time.sleep(3600)")
    with pytest.raises(StageFailedError, match=r"train@a: stopped after 1 s \(runtime\.stage_timeout_seconds\)") as caught:
        run_stage("train@a", tmp_path, print, timeout_seconds=1.0)
    assert not caught.value.is_final


def test_results_of_others_are_pulled_only_when_there_may_be_some(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    play_dvc(monkeypatch, "print(' '.join(sys.argv[1:]))")
    said: list[str] = []
    run_stage("train@a", tmp_path, said.append, may_pull=True)
    assert said == ["repro --pull --single-item train@a"]


def test_time_of_a_stage_adds_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    phases = "[{'name': 'command', 'start': 10, 'end': 20}, {'name': 'training or evaluating', 'start': 12, 'end': 19}]"
    play_dvc(monkeypatch, f"Path(status).write_text(json.dumps({{'code': 0, 'message': '', 'phases': {phases}}}))")
    shares = run_stage("train@a", tmp_path, print).shares()
    assert shares["training or evaluating"] == 7
    assert shares["start-up, reading, writing"] == 3
    both = [Phase("", 0, 4), Phase("", 2, 3), Phase("", 10, 11)]
    assert covered_seconds(both) == 5
