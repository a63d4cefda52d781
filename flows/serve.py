"""Offers every flow to a Prefect server: `python -m flows.serve`, then `prefect deployment run full-study/local`.

The runs happen here, on this machine, in processes of their own; Ctrl-C ends the offer.
"""

from __future__ import annotations

import os

LOCAL_SERVER = "http://127.0.0.1:4200/api"
TAGS = ["telescopic-study"]
ONE_AT_A_TIME = 1  # runs of one deployment: a second run waits, since both would work on the same files


def main() -> None:
    """Serves the flows as deployments named `local`, on `PREFECT_API_URL` or the local server's usual address."""
    os.environ.setdefault("PREFECT_API_URL", LOCAL_SERVER)  # before Prefect reads it on import
    from prefect import serve

    from flows.data import data
    from flows.evaluate_arm import evaluate_arm
    from flows.expand_arm import expand_arm
    from flows.full_study import full_study
    from flows.profile_arm import profile_arm
    from flows.train_arm import train_arm

    flows = (full_study, data, train_arm, expand_arm, evaluate_arm, profile_arm)
    serve(*(flow.to_deployment(name="local", tags=TAGS, concurrency_limit=ONE_AT_A_TIME) for flow in flows))


if __name__ == "__main__":
    main()
