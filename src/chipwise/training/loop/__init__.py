"""Trains one model: optimiser, schedule, checkpoints, evaluation, and the worker process."""
