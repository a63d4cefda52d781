"""Optimizer, schedule, step, loop and checkpoints."""
