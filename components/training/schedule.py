"""The learning rate of every step: warm-up, stable, decay (WSD)."""

from __future__ import annotations

from components.config.schema import Training


def learning_rate(training: Training, step: int) -> float:
    """Learning rate of step 0..steps-1: linear warm-up to `lr`, constant, linear cool-down over the last `cooldown_steps`.

    Step s of the warm-up uses lr (s + 1) / warmup_steps, and the c-th step from the end of the cool-down lr c / cooldown_steps: no
    step is wasted at 0, and there is no step past the end.

    Raises:
        ValueError: `step` outside 0..steps-1.
    """
    if not 0 <= step < training.steps:
        raise ValueError(f"step {step} outside 0..{training.steps - 1}")
    if step < training.warmup_steps:
        return training.lr * (step + 1) / training.warmup_steps
    left = training.steps - step
    return training.lr * min(1.0, left / training.cooldown_steps) if training.cooldown_steps else training.lr
