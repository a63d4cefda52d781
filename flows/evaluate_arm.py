"""One arm, trained and evaluated at every depth. `python -m flows.evaluate_arm --arm twin-full`"""

from __future__ import annotations

from prefect import flow

from flows.launch import launch
from flows.running import run_stages


@flow(name="evaluate-arm", flow_run_name="evaluate-{arm}")
def evaluate_arm(arm: str) -> None:
    """Runs `evaluate` of the arm, and what it needs, where stale."""
    run_stages(arms=[arm], stages=["evaluate"])


if __name__ == "__main__":
    launch(evaluate_arm)
