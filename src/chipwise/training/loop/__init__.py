"""One training: optimiser, schedule, checkpoints, evaluation, and the process that runs it."""
