"""One arm, trained, with the data it needs. `python -m flows.train_arm --arm twin-full`"""

from __future__ import annotations

from flows.launch import launch, study_flow
from flows.parameters import TRAINING_STAGES, check_trained


@study_flow(name="train-arm", flow_run_name="train-{arm}")
def train_arm(arm: str) -> None:
    """Trains one model, and what it needs, where stale.

    Args:
        arm: an arm, repair, expansion or control of params.yaml.
    """
    from flows.running import run_stages

    run_stages(arms=[arm], stages=TRAINING_STAGES)


if __name__ == "__main__":
    launch(train_arm, check_trained)
