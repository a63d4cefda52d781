"""The source `fineweb-edu`, over a loopback stand-in of the hub (in a process of its own: the hub's client reads HF_ENDPOINT at
import) and over a local folder in the hub's layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from components.config.problems import DataError
from components.config.schema import FineWebEduSource
from components.data.hub import HubCorpus
from tests.unit.data.hub_standin import COMMIT, HubStandIn
from tests.unit.data.tiny_corpus import sentences

CARD = """---
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*/*
- config_name: sample-10BT
  data_files:
  - split: train
    path: sample/10BT/*
---
"""
SCORES = [None, 2.5, 3.0, 4.5]
TOKEN = "hf_not-a-real-token"

READ = """
import json, sys
from components.config.problems import StudyError
from components.config.schema import FineWebEduSource
from components.data.hub import HubCorpus
try:
    source = HubCorpus(FineWebEduSource.model_validate_json(sys.argv[1]))
    documents = []
    for document in source.documents():
        documents.append(document)
        if len(documents) == int(sys.argv[2]):
            break
    print(json.dumps(documents))
except StudyError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(1)
"""


@pytest.fixture
def layout(tmp_path: Path) -> Path:
    """A data set in FineWeb-Edu's layout: two files of a sample, and one of the full set; wide columns that nobody asks for."""
    folder = tmp_path / "corpus"
    for name, first, n in (
        ("sample/10BT/000_00000", 0, 300),
        ("sample/10BT/001_00000", 300, 60),
        ("data/CC-MAIN-2013-20/train-0", 0, 20),
    ):
        path = folder / f"{name}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        columns = {
            "text": sentences(n, first),
            "id": [f"<urn:{first + i}>" for i in range(n)],
            "score": pa.array([SCORES[i % 4] for i in range(n)], pa.float64()),
            "embedding": [os.urandom(5000) for _ in range(n)],
        }
        pq.write_table(pa.table(columns), path, row_group_size=50)
    (folder / "README.md").write_text(CARD)
    return folder


def settings_of(dataset: str, config: str = "sample-10BT", revision: str = "main", minimum_score: float = 0.0) -> FineWebEduSource:
    return FineWebEduSource(
        kind="fineweb-edu", dataset=dataset, config=config, revision=revision, token_budget=1000, minimum_score=minimum_score
    )


def read_over_http(hub: HubStandIn, home: Path, settings: FineWebEduSource, limit: int = 0) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home),
        "HF_TOKEN": TOKEN,
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
    command = [sys.executable, "-c", READ, settings.model_dump_json(), str(limit)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)


def test_the_hub_and_its_local_copy_give_the_same_documents(layout: Path, tmp_path: Path) -> None:
    local = [(document.id, document.text) for document in HubCorpus(settings_of(str(layout))).documents()]
    assert local == [(f"<urn:{i}>", text) for i, text in enumerate(sentences(360))]
    with HubStandIn(layout) as hub:
        done = read_over_http(hub, tmp_path / "home", settings_of("owner/corpus", revision=COMMIT))
    assert done.returncode == 0, done.stderr
    assert [(document[0], document[1]) for document in json.loads(done.stdout)] == local
    assert hub.tokens_seen == {f"Bearer {TOKEN}"}
    assert TOKEN not in done.stdout + done.stderr


def test_a_reader_that_stops_early_ends_cleanly_and_fetches_only_what_it_needs(layout: Path, tmp_path: Path) -> None:
    with HubStandIn(layout) as hub:
        done = read_over_http(hub, tmp_path / "home", settings_of("owner/corpus"), limit=10)
    assert done.returncode == 0, done.stderr
    assert "terminate" not in done.stderr
    assert len(json.loads(done.stdout)) == 10
    assert not any("001_00000.parquet" in request for request in hub.requests), "the second file is not opened"


def test_a_hub_that_is_busy_for_a_moment_is_asked_again(layout: Path, tmp_path: Path) -> None:
    with HubStandIn(layout, failures=2) as hub:
        done = read_over_http(hub, tmp_path / "home", settings_of("owner/corpus"))
    assert done.returncode == 0, done.stderr
    assert [document[1] for document in json.loads(done.stdout)] == sentences(360)


def test_an_unknown_configuration_or_data_set_is_one_clean_error(layout: Path, tmp_path: Path) -> None:
    with HubStandIn(layout) as hub:
        unknown = read_over_http(hub, tmp_path / "home", settings_of("owner/corpus", config="sample-1T"))
        missing = read_over_http(hub, tmp_path / "home", settings_of("owner/other"))
    assert "error: owner/corpus (sample-1T): cannot be streamed" in unknown.stderr
    assert "sample-10BT" in unknown.stderr, "the configurations that exist"
    assert "error: owner/other (sample-10BT): cannot be streamed" in missing.stderr
    for done in (unknown, missing):
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert TOKEN not in done.stderr


def test_documents_below_the_minimum_score_or_without_one_are_marked(layout: Path) -> None:
    rejections = [document.rejected for document in HubCorpus(settings_of(str(layout), minimum_score=3.0)).documents()]
    assert rejections[:4] == ["without_score", "below_minimum_score", "", ""]
    assert rejections == rejections[:4] * 90


def test_a_minimum_score_of_zero_keeps_all_and_needs_no_scores(layout: Path) -> None:
    pq.write_table(pa.table({"text": ["a", "b"]}), layout / "sample/10BT/002_00000.parquet")
    documents = list(HubCorpus(settings_of(str(layout))).documents())
    assert not any(document.rejected for document in documents)
    assert documents[-1].id == "sample/10BT/002_00000.parquet:1"
    with pytest.raises(DataError, match=r"002_00000\.parquet: no column 'score' .*minimum_score to 0"):
        list(HubCorpus(settings_of(str(layout), minimum_score=1.0)).documents())


@pytest.mark.parametrize("with_card", [True, False])
def test_a_partial_local_copy_is_enough(layout: Path, with_card: bool) -> None:
    (layout / "data" / "CC-MAIN-2013-20" / "train-0.parquet").unlink()
    if not with_card:
        (layout / "README.md").unlink()
    assert len(list(HubCorpus(settings_of(str(layout))).documents())) == 360
    with pytest.raises(DataError, match="no parquet files of configuration 'default'"):
        list(HubCorpus(settings_of(str(layout), config="default")).documents())


def test_a_card_that_leads_out_of_the_folder_is_an_error(layout: Path) -> None:
    (layout / "README.md").write_text(CARD.replace("sample/10BT/*", "../elsewhere/*"))
    with pytest.raises(DataError, match="leads out of the folder"):
        list(HubCorpus(settings_of(str(layout))).documents())


def test_a_corrupt_file_of_a_local_copy_is_an_error_that_names_it(layout: Path) -> None:
    path = layout / "sample/10BT/001_00000.parquet"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(DataError, match=r"sample/10BT/001_00000\.parquet: cannot be read as parquet"):
        list(HubCorpus(settings_of(str(layout))).documents())
