"""One search from its file to its folder: phases in order, each resumable, nothing finished ever lost."""

from chipwise.run.spec import RunSpec, load_run

__all__ = ["RunSpec", "load_run"]
