#!/usr/bin/env python3
"""Quality of the search strategies on problems with known fronts.

    python benchmarks/search_quality.py --bench-dir DIR --problem s2 --strategy auto --seeds 10 --out search_quality.csv

DIR holds a ``bench.py`` with ``Problem(name)`` and ``Oracle(problem, budget)``. The strategy learns of a problem the
cardinalities, the free costs ``oracle.free(X)`` and, unless ``--prior none``, one stated opinion: quality follows the
parameter count, which a cost model knows. Only ``oracle(X)`` reveals perplexity, and every row of it is counted.

Columns: problem, strategy, seed, evaluations, score (share of the true front's hypervolume, or with one objective the
regret). With ``--out`` the rows of other runs in the file are kept.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import sys
import time
from pathlib import Path

import numpy as np

from chipwise.design.strategies.algorithms import make_strategy
from chipwise.design.strategies.strategy import Goal, Limit, Problem
from provenance import COLUMNS as ORIGIN
from provenance import stamp

CHECKPOINTS = (100, 200, 500)
COLUMNS = ("problem", "strategy", "seed", "evaluations", "score")


def load_bench(folder: Path):
    """The module ``bench.py`` in ``folder``."""
    spec = importlib.util.spec_from_file_location("bench", folder / "bench.py")
    if spec is None or spec.loader is None or not (folder / "bench.py").is_file():
        sys.exit(f"{folder}: holds no bench.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["bench"] = module
    spec.loader.exec_module(module)
    return module


def describe(problem, oracle, *, prior: str) -> Problem:
    """``problem`` in the form that strategies take."""

    def guess(rows):
        return -np.log(problem.surrogate.evaluate(rows, ("params_exact",))[:, 0])

    return Problem(
        cardinalities=problem.cardinality,
        goals=tuple(Goal(name=name, free=i > 0) for i, name in enumerate(problem.objectives)),
        limits=tuple(Limit(name=name, free=True) for name in problem.bounds),
        free=oracle.free,
        prior=guess if prior == "parameters" else None,
    )


def counts_parameters(problem) -> bool:
    """Whether the bench tells the parameter count of a row."""
    try:
        problem.surrogate.evaluate(np.zeros((1, len(problem.cardinality)), int), ("params_exact",))
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    return True


def run(bench, problem, strategy: str, seed: int, *, prior: str, batch: int, most: int) -> tuple[list[float], float]:
    """Scores at the checkpoints up to ``most`` and the seconds that the strategy itself took."""
    oracle = bench.Oracle(problem, most)
    start, spent = time.process_time(), 0.0
    search = make_strategy(strategy, describe(problem, oracle, prior=prior), seed=seed)
    while oracle.left:
        rows = search.ask(min(batch if most - oracle.left >= 100 else max(1, batch // 2), oracle.left))
        if not len(rows):
            break
        began = time.process_time()
        objectives, violations = oracle(rows)
        spent += time.process_time() - began
        search.tell(rows, objectives, violations)
    return [oracle.score(n) for n in CHECKPOINTS if n <= most], time.process_time() - start - spent


def main() -> None:
    """Runs and prints, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench-dir", type=Path, required=True)
    parser.add_argument("--problem", required=True)
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--batch", type=int, default=10, help="rows asked for at once; half of it for the first 100")
    parser.add_argument("--most", type=int, default=CHECKPOINTS[-1], help="evaluations, fewer for a slow strategy")
    parser.add_argument("--prior", choices=("parameters", "none"), default="parameters")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    bench = load_bench(options.bench_dir)
    problem = bench.Problem(options.problem)
    if options.prior == "parameters" and not counts_parameters(problem):
        print(f"{options.bench_dir}: tells no parameter counts, so no prior is stated", file=sys.stderr)
        options.prior = "none"
    name = options.strategy if options.prior == "parameters" else f"{options.strategy} (no prior)"
    scores, found = [], []
    for seed in range(options.first_seed, options.first_seed + options.seeds):
        got, seconds = run(
            bench, problem, options.strategy, seed, prior=options.prior, batch=options.batch, most=options.most
        )
        scores.append(got)
        found += [(options.problem, name, seed, n, f"{value:.5f}") for n, value in zip(CHECKPOINTS, got, strict=False)]
        print(options.problem, name, f"seed {seed}", np.round(got, 4), f"{seconds:.1f} CPU-s", flush=True)
    print(
        options.problem,
        name,
        "mean",
        np.mean(scores, axis=0).round(4),
        "of",
        len(scores),
        "seeds; least",
        np.min(scores, axis=0).round(4),
        "most",
        np.max(scores, axis=0).round(4),
    )
    if options.out:
        write(options.out, found)


def write(path: Path, found: list[tuple]) -> None:
    """``found`` with the rows of other problems, strategies and seeds in ``path``."""
    mine = {tuple(str(item) for item in row[:3]) for row in found}
    kept: list[tuple] = []
    if path.exists():
        with path.open(newline="") as stream:
            kept = [tuple(row) for row in list(csv.reader(stream))[1:] if tuple(row[:3]) not in mine]
    with path.open("w", newline="") as stream:
        csv.writer(stream).writerows([(*COLUMNS, *ORIGIN), *kept, *found])
    stamp(path)


if __name__ == "__main__":
    main()
