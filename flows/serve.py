"""Offers every flow to a Prefect server (`make server` starts one), which `prefect deployment run full-study/local` then runs.

The runs happen here, on this machine, in processes of their own; Ctrl-C ends the offer.
"""

from __future__ import annotations

import os

from tasks.command import command_parser, run_command

EXAMPLES = """
python -m flows.serve
PREFECT_API_URL=http://prefect.example:4200/api python -m flows.serve
"""

LOCAL_SERVER = "http://127.0.0.1:4200/api"
TAGS = ["telescopic-study"]
ONE_AT_A_TIME = 1  # runs of one deployment: a second run waits, since both would work on the same files


def main() -> None:
    """Serves the flows as deployments named `local`, on `PREFECT_API_URL` or the local server's usual address.

    Raises:
        ConfigError: no server answers there.
    """
    command_parser("flows.serve", __doc__, EXAMPLES).parse_args()
    address = os.environ.setdefault("PREFECT_API_URL", LOCAL_SERVER)  # before Prefect reads it on import
    from httpx import ConnectError
    from prefect import serve

    from components.config.problems import ConfigError
    from flows.data import data
    from flows.evaluate_arm import evaluate_arm
    from flows.expand_arm import expand_arm
    from flows.full_study import full_study
    from flows.profile_arm import profile_arm
    from flows.train_arm import train_arm

    flows = (full_study, data, train_arm, expand_arm, evaluate_arm, profile_arm)
    deployments = [flow.to_deployment(name="local", tags=TAGS, concurrency_limit=ONE_AT_A_TIME) for flow in flows]
    try:
        serve(*deployments)
    except ConnectError:
        raise ConfigError(f"PREFECT_API_URL {address}: no server answers; start one with `make server`, or set another") from None


if __name__ == "__main__":
    run_command(main)
