"""A child process that evaluates rows: ``python -m chipwise.design.strategies.evaluation_worker``. See
``core/workers.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict

import numpy as np

from chipwise.core.workers import Message, Report, serve
from chipwise.design.strategies.executors import attempt
from chipwise.design.strategies.references import function_of
from chipwise.errors import WorkerError


class _Evaluator:
    """Evaluates rows with the function named in the pool's setup."""

    evaluate: Callable[..., object]

    def start(self, setup: Message) -> None:
        """Imports the evaluation function."""
        self.evaluate = function_of(setup)

    def run(self, job: Message, _report: Report) -> Message:
        """Evaluates one row.

        Raises:
            WorkerError: The evaluation failed.
        """
        kind, value = attempt(self.evaluate, np.array(job["row"], np.int64))
        if kind == "failed":
            raise WorkerError(value)
        return asdict(value)


def main() -> None:
    """Serves jobs from standard input."""
    evaluator = _Evaluator()
    serve(evaluator.run, start=evaluator.start)


if __name__ == "__main__":
    main()
