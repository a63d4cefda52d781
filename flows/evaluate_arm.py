"""One arm, trained and evaluated at every depth. `python -m flows.evaluate_arm --arm twin-full`"""

from __future__ import annotations

from flows.launch import launch, study_flow
from flows.parameters import EVALUATION_STAGES


@study_flow(name="evaluate-arm", flow_run_name="evaluate-{arm}")
def evaluate_arm(arm: str) -> None:
    """Evaluates one model, and runs what that needs, where stale.

    Args:
        arm: an arm, backbone, repair, expansion or control of params.yaml.
    """
    from flows.running import run_stages

    run_stages(arms=[arm], stages=EVALUATION_STAGES)


if __name__ == "__main__":
    launch(evaluate_arm)
