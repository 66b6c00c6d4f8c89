#!/usr/bin/env python3
"""Whether four workers find as good a front as one worker with the same number of evaluations.

    python benchmarks/search_workers.py --bench-dir DIR --problem s2 --seeds 3 --out benchmarks/search-workers.csv

One worker asks for one row and tells it before the next. Four ask for one row each and tell whenever they are done,
in an order drawn at random, so a strategy always decides with up to three results outstanding. Columns: problem,
strategy, workers, seed, evaluations, score. The speed of four workers is another question (evaluations that sleep).
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np

from chipwise.design.strategies.algorithms import make_strategy
from provenance import COLUMNS as ORIGIN
from provenance import stamp
from search_quality import counts_parameters, describe, load_bench

CHECKPOINTS = (100, 200)


def run(bench, problem, strategy: str, workers: int, seed: int, prior: str) -> list[float]:
    """Scores at the checkpoints, in the order in which trials were reported."""
    oracle = bench.Oracle(problem, CHECKPOINTS[-1])
    search = make_strategy(strategy, describe(problem, oracle, prior=prior), seed=seed)
    rng = np.random.default_rng([seed, workers])
    out: list[np.ndarray] = []
    while oracle.left:
        while len(out) < min(workers, oracle.left):
            out.append(search.ask(1))
        row = out.pop(int(rng.integers(len(out))))
        search.tell(row, *oracle(row))
    return [oracle.score(n) for n in CHECKPOINTS]


def main() -> None:
    """Runs, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench-dir", type=Path, required=True)
    parser.add_argument("--problem", default="s2")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    bench = load_bench(options.bench_dir)
    problem = bench.Problem(options.problem)
    prior = "parameters" if counts_parameters(problem) else "none"
    found, means = [], {}
    for workers in (1, 4):
        scores = []
        for seed in range(options.seeds):
            scores.append(run(bench, problem, options.strategy, workers, seed, prior))
            print(
                options.problem, options.strategy, workers, "workers, seed", seed, np.round(scores[-1], 4), flush=True
            )
            found += [
                (options.problem, options.strategy, workers, seed, n, f"{value:.5f}")
                for n, value in zip(CHECKPOINTS, scores[-1], strict=True)
            ]
        means[workers] = np.mean(scores, axis=0)
    print(options.problem, options.strategy, "four / one", (means[4] / means[1]).round(4))
    if options.out:
        mine = {row[:2] for row in found}
        kept = []
        if options.out.exists():
            with options.out.open(newline="") as stream:
                kept = [tuple(row) for row in list(csv.reader(stream))[1:] if tuple(row[:2]) not in mine]
        with options.out.open("w", newline="") as stream:
            head = ("problem", "strategy", "workers", "seed", "evaluations", "score", *ORIGIN)
            csv.writer(stream).writerows([head, *kept, *found])
        stamp(options.out)


if __name__ == "__main__":
    main()
