"""What a flow run leaves in Prefect: the arms, the figures, the pages of the MLflow runs, and where the time went."""

from __future__ import annotations

import base64
import json
from collections.abc import Sequence

from prefect import get_run_logger
from prefect.artifacts import create_image_artifact, create_link_artifact, create_markdown_artifact, create_table_artifact

from components.config.loader import load_study
from components.config.problems import ResultsError
from flows.parameters import PARAMS, ROOT
from tasks.phases import COMPUTE, StageTime, covered_seconds
from tasks.tracking import LINKS, STORE

REPORT = ROOT / "artifacts" / "report"
CURVES = "depth_curves_ppl*.png"  # one figure, or one for each kind of objective; the others are in the report


def publish_results() -> None:
    """The table of arms, the figures, the report and the MLflow runs, as far as they exist."""
    from components.reporting.analysis import Analysis
    from components.reporting.load import load_results
    from components.reporting.tables import arms_table

    try:
        table = arms_table(Analysis(load_results(load_study(PARAMS), ROOT / "artifacts")))
    except ResultsError as error:  # a failed run has holes, or results of other parameters beside its own
        get_run_logger().warning("no table of arms: %s", error)
    else:
        rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
        create_table_artifact(key="arms", table=rows, description=table.note)
    page = REPORT / "index.html"
    if page.exists():
        create_link_artifact(key="report", link=page.as_uri(), link_text=str(page), description="The report")
    for figure in sorted((REPORT / "figures").glob(CURVES)):
        picture = base64.b64encode(figure.read_bytes()).decode()
        key = figure.stem.replace("_", "-")
        create_image_artifact(image_url=f"data:image/png;base64,{picture}", key=key, description="Perplexity of every prefix")
    file = ROOT / STORE / LINKS
    links = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    if links:
        lines = [f"- [{unit}]({address})" for unit, address in links.items()]
        text = "Runs in MLflow (`make ui` opens a store without a server of its own):\n\n" + "\n".join(lines)
        create_markdown_artifact(text, key="mlflow-runs", description="MLflow runs of the arms")


def publish_times(times: Sequence[StageTime], wall_seconds: float) -> None:
    """The table of what the stages' time went into, and its sum as a line of the log."""
    if not times:
        return
    rows = [{"stage": one.stage, **{name: round(seconds, 1) for name, seconds in _columns(one).items()}} for one in times]
    computing = covered_seconds(phase for one in times for phase in one.phases if phase.name == COMPUTE)
    busy = sum(one.seconds for one in times)
    parts = {name: sum(one.shares()[name] for one in times) for name in times[0].shares()}
    shares = ", ".join(f"{name} {seconds / busy:.0%}" for name, seconds in parts.items())
    said = (
        f"{computing / wall_seconds:.0%} of {wall_seconds:.0f} s with a stage training or evaluating; of the stages' time: {shares}"
    )
    create_table_artifact(key="time-by-stage", table=rows, description=f"Seconds. {said}")
    get_run_logger().info(said)


def _columns(one: StageTime) -> dict[str, float]:
    return {"seconds": one.seconds, **one.shares()}
