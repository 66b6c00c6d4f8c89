"""Training steps with and without huge pages: CPU time and page faults of a step, in processes in turns.

    python benchmarks/huge_pages.py --out FILE.csv      # about four minutes on one idle core

The designs of ``training_threads.py``, with the text and the recipe of ``examples/clinic.yaml``, in one thread. Torch
reads ``THP_MEM_ALLOC_ENABLE`` once, so each round starts a process with each value; its first steps are not counted.
Columns: design, pages, rounds, median of the rounds' median CPU time of a step in milliseconds, its ratio to that with
usual pages, the least and the greatest ratio of a round, and page faults of a step.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from chipwise.core.workers import HUGE_PAGES
from chipwise.design.run.spec import load_run
from chipwise.model.space.designs import design_of, summary
from chipwise.training.data.recipe import Recipe
from chipwise.training.loop.trainer import Run
from provenance import write_table
from training_threads import SIZES, choices, timed

ROUNDS, STEPS, FIRST = 6, 20, 4
PAGES = {"usual": "0", "huge": "1"}


def steps_of(spec_file: Path) -> list[tuple[str, float, float]]:
    """Of each design its name, the median CPU seconds of a step, and page faults of a step, in this process."""
    torch.set_num_threads(1)
    spec, found = load_run(spec_file), []
    with tempfile.TemporaryDirectory() as folder:
        task = spec.task_settings.open(spec.data, base=spec.folder, folder=Path(folder), space=spec.space)
        task.prepare()
        for size in SIZES:
            design = design_of(choices(*size), spec=spec.space, name="timed")
            run = Run(
                design.arch, task.data(design.arch).load(), 1e9, 0, Path(folder) / "run", Recipe(**task.recipe),
                clock=lambda: 0.0, counted=True,
            )  # fmt: skip
            for _ in range(FIRST):
                timed(run)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            seconds = [timed(run)[0] for _ in range(STEPS)]
            faults = (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / STEPS
            found.append((summary(design), statistics.median(seconds), faults))
    return found


def main() -> None:
    """Runs the rounds and writes the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--spec", type=Path, default=Path("examples/clinic.yaml"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.out is None:
        print(json.dumps(steps_of(options.spec)))
        return
    rounds: dict[str, list[list[tuple[str, float, float]]]] = {name: [] for name in PAGES}
    for number in range(ROUNDS):
        for name in sorted(PAGES, reverse=bool(number % 2)):
            command = [sys.executable, __file__, "--spec", str(options.spec)]
            environment = os.environ | {HUGE_PAGES: PAGES[name]}
            told = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
            rounds[name].append(json.loads(told.splitlines()[-1]))
    rows = []
    for i, (design, _, _) in enumerate(rounds["usual"][0]):
        ratios = [huge[i][1] / usual[i][1] for huge, usual in zip(rounds["huge"], rounds["usual"], strict=True)]
        for name, made in rounds.items():
            rows.append(
                {
                    "design": design,
                    "pages": name,
                    "rounds": ROUNDS,
                    "cpu_ms": f"{1e3 * statistics.median(one[i][1] for one in made):.2f}",
                    "ratio": f"{statistics.median(ratios) if name == 'huge' else 1:.3f}",
                    "least_ratio": f"{min(ratios) if name == 'huge' else 1:.3f}",
                    "greatest_ratio": f"{max(ratios) if name == 'huge' else 1:.3f}",
                    "faults": f"{statistics.median(one[i][2] for one in made):.0f}",
                }
            )
            print(rows[-1], flush=True)
    write_table(options.out, rows)


if __name__ == "__main__":
    main()
