"""One arm, trained, with the data it needs. `python -m flows.train_arm --arm twin-full`"""

from __future__ import annotations

from prefect import flow

from flows.launch import launch
from flows.running import run_stages


@flow(name="train-arm", flow_run_name="train-{arm}")
def train_arm(arm: str) -> None:
    """Runs `train` of the arm, and what it needs, where stale."""
    run_stages(arms=[arm], stages=["train"])


if __name__ == "__main__":
    launch(train_arm)
