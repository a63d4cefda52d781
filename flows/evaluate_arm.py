"""One arm, trained and evaluated at every depth. `python -m flows.evaluate_arm --arm twin-full`"""

from __future__ import annotations

from prefect import flow

from flows.launch import launch
from flows.running import EVALUATION_STAGES, run_stages


@flow(name="evaluate-arm", flow_run_name="evaluate-{arm}")
def evaluate_arm(arm: str) -> None:
    """Evaluates the arm, repair, expansion or control, and runs what that needs, where stale."""
    run_stages(arms=[arm], stages=EVALUATION_STAGES)


if __name__ == "__main__":
    launch(evaluate_arm)
