"""The data alone: tokenizer, tokens and packed rows. `python -m flows.data`"""

from __future__ import annotations

from flows.launch import launch, study_flow


@study_flow(name="data")
def data() -> None:
    """Runs `tokenize` and `pack` where they are stale."""
    from flows.running import run_stages

    run_stages(stages=["pack"])


if __name__ == "__main__":
    launch(data)
