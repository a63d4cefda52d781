"""The data alone: tokenizer, tokens and packed rows. `python -m flows.data`"""

from __future__ import annotations

from prefect import flow

from flows.launch import launch
from flows.running import run_stages


@flow(name="data")
def data() -> None:
    """Runs `tokenize` and `pack` where they are stale."""
    run_stages(stages=["pack"])


if __name__ == "__main__":
    launch(data)
