"""A run's specification, folder, budget and trials: what every pipeline writes and resumes from."""

from chipwise.run.spec import RunSpec, load_run

__all__ = ["RunSpec", "load_run"]
