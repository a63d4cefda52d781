"""Exported folders as versions of registered models in MLflow, one model for each arm, depth and number of streams.

A version has the folder's files, in the run of the arm, and its README as the description. What MLflow holds is what `transformers`
loads: `from_pretrained(mlflow.artifacts.download_artifacts("models:/tlm-uniform-depth-7/1"))`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from tasks.tracking import UNIT, TrackingError, open_client

CONTENT = "study.export"  # tag with the hash of the files


def run_of(root: Path, experiment: str, unit: str) -> str:
    """The run that a version of `unit`, <arm>/seed-<seed>, belongs to.

    Raises:
        TrackingError: MLflow has none, or cannot be reached.
    """
    with open_client(root) as (client, _):
        found = client.get_experiment_by_name(experiment)
        runs = client.search_runs([found.experiment_id], f"tags.`{UNIT}` = '{unit}'") if found else []
    if not runs:
        raise TrackingError(f"MLflow has no run of {unit}, which --register adds to; run `python -m tasks.track` first")
    return str(runs[0].info.run_id)


def register_export(root: Path, run_id: str, name: str, folder: Path, tags: Mapping[str, str]) -> str:
    """Makes the folder a version of the model `name`, unless the run has that version already; returns its address in MLflow.

    Raises:
        TrackingError: MLflow cannot be reached, or refuses.
    """
    from components.models.files import file_sha256

    sums = "".join(f"{file_sha256(file)}  {file.name}\n" for file in sorted(folder.iterdir()))
    content = hashlib.sha256(sums.encode()).hexdigest()
    with open_client(root) as (client, _):
        for version in client.search_model_versions(f"name = '{name}'"):
            if version.run_id == run_id and version.tags.get(CONTENT) == content:
                return f"models:/{name}/{version.version}"
        place = f"exports/{name}-{content[:12]}"
        client.log_artifacts(run_id, str(folder), place)
        if not client.search_registered_models(f"name = '{name}'"):
            client.create_registered_model(name)
        version = client.create_model_version(
            name,
            f"runs:/{run_id}/{place}",
            run_id,
            tags={**tags, CONTENT: content},
            description=(folder / "README.md").read_text(encoding="utf-8"),
        )
    return f"models:/{name}/{version.version}"
