"""`make ui` shows the store that the results go to, whatever kind it is."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("store", "said", "started"),
    [
        (None, "http://127.0.0.1:5123", "sqlite:///mlruns/mlflow.db"),
        ("postgresql://user:secret@127.0.0.1/mlflow", "http://127.0.0.1:5123", "postgresql://user:secret@127.0.0.1/mlflow"),
        ("http://mlflow.example:5000", "open MLFLOW_TRACKING_URI in a browser", None),
    ],
)
def test_ui_starts_pages_only_for_a_store_without_a_server(
    store: str | None, said: str, started: str | None, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@ with $MLFLOW_BACKEND_STORE_URI" >> "{tmp_path}/calls"\n')
    python.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    if store:
        environment["MLFLOW_TRACKING_URI"] = store
    (tmp_path / "ready").touch()
    command = ["make", "-s", "ui", f"BIN={tmp_path}", f"READY={tmp_path / 'ready'}", "-o", str(tmp_path / "ready"), "PORT=5123"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    calls = (tmp_path / "calls").read_text().splitlines()
    assert calls[0].startswith("-m tasks.track")
    assert said in done.stdout
    assert calls[1:] == ([f"-m mlflow ui --host 127.0.0.1 --port 5123 with {started}"] if started else [])
    assert "secret" not in done.stdout
