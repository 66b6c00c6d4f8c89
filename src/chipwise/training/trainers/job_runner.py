"""Runs one job of a folder of jobs: ``python -m chipwise.training.trainers.job_runner JOB.json``."""

from __future__ import annotations

import sys
from pathlib import Path

from chipwise.core.record import Record
from chipwise.errors import ChipwiseError
from chipwise.training.trainers.jobs import run_job


def main() -> int:
    """Runs the job named on the command line; returns the exit code."""
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    path = Path(sys.argv[1])
    try:
        import torch

        torch.set_num_threads(1)
        result = Record.of(run_job(path))
    except ChipwiseError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return error.exit_code
    if "failed" in result:
        print(f"{path}: {result.record('failed').get('message', str)}", file=sys.stderr)
        return 1
    values = result.record("values")
    print(f"{path}: loss {values.get('loss', float):.4f} after {values.get('steps', int)} steps")
    return 0


if __name__ == "__main__":
    sys.exit(main())
