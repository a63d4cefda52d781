"""The latency of one arm at every depth, and what that needs. `python -m flows.profile_arm --arm twin-full`"""

from __future__ import annotations

from flows.launch import launch, study_flow
from flows.parameters import PROFILE_STAGES


@study_flow(name="profile-arm", flow_run_name="profile-{arm}")
def profile_arm(arm: str) -> None:
    """Profiles one model, and runs what that needs, where stale.

    Args:
        arm: an arm, backbone, repair, expansion or control of params.yaml.
    """
    from flows.running import run_stages

    run_stages(arms=[arm], stages=PROFILE_STAGES)


if __name__ == "__main__":
    launch(profile_arm)
