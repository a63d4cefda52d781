"""What one arm grows into: its expansions and controls, trained and evaluated. `python -m flows.expand_arm --arm tlm-uniform`"""

from __future__ import annotations

from components.config.loader import load_study
from components.config.problems import ConfigError
from components.config.schema import Study
from flows.launch import launch, study_flow
from flows.parameters import EVALUATION_STAGES, PARAMS


@study_flow(name="expand-arm", flow_run_name="expand-{arm}")
def expand_arm(arm: str) -> None:
    """Trains and evaluates every expansion and control that starts from the arm, directly or by way of others, where stale.

    Args:
        arm: an arm, backbone or expansion of params.yaml that others start from.
    """
    from flows.running import run_stages

    run_stages(arms=grown_from(load_study(PARAMS), arm), stages=EVALUATION_STAGES)


def grown_from(study: Study, arm: str) -> list[str]:
    """The expansions and controls that start from the arm or from each other.

    Raises:
        ConfigError: there are none.
    """
    grown: list[str] = []
    for name, model in [*study.expansions.items(), *study.controls.items()]:
        if model.base in (arm, *grown):
            grown.append(name)
    if not grown:
        raise ConfigError(f"arm {arm}: nothing under expansions or controls starts from it; add an entry with base: {arm}")
    return grown


if __name__ == "__main__":
    launch(expand_arm, grown_from)
