"""How much faster four workers are than one, on evaluations that sleep.

    python benchmarks/worker_speed.py --strategy auto

Prints seconds an evaluation with one worker and with four, from the second batch on (workers start in the first), and
their ratio. It is at most four where asking takes no time, and above where one worker waits for that too.
"""

from __future__ import annotations

import argparse
import time

from chipwise.optim import optimise
from chipwise.testing.strategy_suite import toy_objectives, toy_problem

SLEEP_S = 0.25
BATCH = 8


def sleeping(row):
    """An evaluation that takes its time and no processor."""
    time.sleep(SLEEP_S)
    return toy_objectives(row[None])[0, :1]


def main() -> None:
    """Runs both and prints the ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--evaluations", type=int, default=72)
    args = parser.parse_args()
    took = {}
    for workers in (1, 4):
        moments: list[float] = []
        optimise(
            toy_problem(),
            sleeping,
            evaluations=args.evaluations,
            strategy=args.strategy,
            workers=workers,
            batch=BATCH,
            on_progress=lambda done, wanted, moments=moments: moments.append(time.monotonic()),
        )
        took[workers] = (moments[-1] - moments[BATCH]) / (len(moments) - BATCH - 1)
        print(f"{workers} workers: {took[workers]:.3f} s an evaluation")
    print(f"{took[1] / took[4]:.2f} times as fast")


if __name__ == "__main__":
    main()
