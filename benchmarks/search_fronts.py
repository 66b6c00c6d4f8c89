#!/usr/bin/env python3
"""Strategies compared with the libraries that they adapt, on textbook problems with integer variables.

    python benchmarks/search_fronts.py --strategy evolution --evaluations 1000 --out benchmarks/search-fronts.csv
    python benchmarks/search_fronts.py --strategy gp --evaluations 40 --seeds 2 --out benchmarks/search-fronts.csv

ZDT1, DTLZ2, C1-DTLZ1 and BNH are pymoo's, with every variable cut into equal steps. Objectives and constraints are
black boxes. Ours and theirs begin from the same random rows and have the same number of evaluations:

  gp         Optuna's GPSampler in a study of its own, same seed
  evolution  regularised evolution as in the paper, one child at a time, written out below

The score is the hypervolume up to the worst of the shared start. Columns: problem, strategy, who (ours or theirs),
seed, evaluations, score.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections import deque
from pathlib import Path

import numpy as np

from chipwise.design.strategies.algorithms import make_strategy
from chipwise.design.strategies.pareto import crowding, hypervolume, ranks
from chipwise.design.strategies.strategy import Goal, Limit, Problem
from provenance import COLUMNS as ORIGIN
from provenance import stamp

PROBLEMS = {  # pymoo's name, its arguments, values of every variable
    "zdt1": ({"n_var": 30}, 33),
    "dtlz2": ({"n_var": 12, "n_obj": 3}, 33),
    "c1dtlz1": ({"n_var": 5, "n_obj": 2}, 11),
    "bnh": ({}, 65),
}
START, POPULATION = 40, 40


class Steps:
    """One of pymoo's problems over rows of integers."""

    def __init__(self, name: str) -> None:
        from pymoo.problems import get_problem

        arguments, self.values = PROBLEMS[name]
        self.inner = get_problem(name, **arguments)
        self.variables = self.inner.n_var
        self.low, self.high = (np.broadcast_to(b, self.variables) for b in self.inner.bounds())

    def __call__(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Objectives (n, m) and violations (n, k)."""
        X = self.low + (self.high - self.low) * np.asarray(rows, float) / (self.values - 1)
        out = self.inner.evaluate(X, return_as_dictionary=True)
        G = out.get("G")
        return out["F"], G if self.inner.n_ieq_constr else np.zeros((len(X), 0))

    def described(self) -> Problem:
        """The problem in the form that strategies take."""
        return Problem(
            cardinalities=np.full(self.variables, self.values),
            goals=tuple(Goal(name=f"f{i}") for i in range(self.inner.n_obj)),
            limits=tuple(Limit(name=f"g{i}") for i in range(self.inner.n_ieq_constr)),
        )


def ours(name: str, steps: Steps, start: np.ndarray, evaluations: int, seed: int) -> np.ndarray:
    """Rows that our strategy tried."""
    options = {"gp": {}, "evolution": {"population": POPULATION}}.get(name, {"population": POPULATION})
    strategy = make_strategy(name, steps.described(), seed=seed, **options)
    strategy.tell(start, *steps(start))
    rows = start
    while len(rows) < evaluations:
        new = strategy.ask(1 if name == "gp" else min(10, evaluations - len(rows)))
        strategy.tell(new, *steps(new))
        rows = np.vstack([rows, new])
    return rows


def theirs(name: str, steps: Steps, start: np.ndarray, evaluations: int, seed: int) -> np.ndarray:
    """Rows that the library tried."""
    run = {"gp": _optuna, "evolution": _regularised}[name]
    return run(name, steps, start, evaluations, seed)


def _optuna(name: str, steps: Steps, start: np.ndarray, evaluations: int, seed: int) -> np.ndarray:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.simplefilter("ignore")
    sampler = optuna.samplers.GPSampler(seed=seed, n_startup_trials=10)
    study = optuna.create_study(sampler=sampler, directions=["minimize"] * steps.inner.n_obj)
    space = {f"x{i}": optuna.distributions.IntDistribution(0, steps.values - 1) for i in range(steps.variables)}

    def told(row: np.ndarray) -> None:
        F, G = steps(row[None])
        study.add_trial(
            optuna.trial.create_trial(
                params=dict(zip(space, map(int, row), strict=True)),
                distributions=space,
                values=F[0].tolist(),
                constraints={f"c{i}": float(v) for i, v in enumerate(G[0])},
            )
        )

    for row in start:
        told(row)
    rows = list(start)
    while len(rows) < evaluations:
        trial = study.ask(space)
        rows.append(np.array([trial.params[key] for key in space]))
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        told(rows[-1])
    return np.array(rows)


def _regularised(name: str, steps: Steps, start: np.ndarray, evaluations: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng([seed, 1])
    rows = list(start)
    F, G = (list(part) for part in steps(start))
    alive = deque(range(len(rows)), maxlen=POPULATION)
    while len(rows) < evaluations:
        members = np.array(alive)
        points = np.array([F[i] for i in members])
        excess = np.array([np.maximum(G[i], 0).sum() for i in members])
        order = np.lexsort((-crowding(points), ranks(points, excess)))
        place = np.argsort(order)
        entrants = rng.integers(0, len(members), 10)
        child = rows[members[entrants[place[entrants].argmin()]]].copy()
        column = rng.integers(0, steps.variables)
        child[column] = (child[column] + 1 + rng.integers(0, steps.values - 1)) % steps.values
        rows.append(child)
        f, g = steps(child[None])
        F.append(f[0])
        G.append(g[0])
        alive.append(len(rows) - 1)
    return np.array(rows)


def score(steps: Steps, start: np.ndarray, rows: np.ndarray) -> float:
    """Hypervolume of the feasible rows up to the worst of the start."""
    F, G = steps(rows)
    return hypervolume(F[(G <= 0).all(axis=1)], steps(start)[0].max(axis=0))


def main() -> None:
    """Runs, prints and writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategy", default="evolution", choices=("gp", "evolution"))
    parser.add_argument("--problem", choices=tuple(PROBLEMS), help="all by default")
    parser.add_argument("--evaluations", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--who", choices=("ours", "theirs"), help="both by default; the other's rows are the file's")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    kept: list[tuple[str, ...]] = []
    if options.out and options.out.exists():
        with options.out.open(newline="") as stream:
            kept = [tuple(row) for row in list(csv.reader(stream))[1:]]
    for name in [options.problem] if options.problem else PROBLEMS:
        steps = Steps(name)
        for seed in range(options.seeds):
            shape = (START if options.strategy != "gp" else 10, steps.variables)
            start = np.random.default_rng([seed, 0]).integers(0, steps.values, shape)
            for who, run in (("ours", ours), ("theirs", theirs)):
                if options.who not in (None, who):
                    continue
                rows = run(options.strategy, steps, start, options.evaluations, seed)
                key = (name, options.strategy, who, str(seed))
                kept = [row for row in kept if row[:4] != key]
                kept.append((*key, str(options.evaluations), f"{score(steps, start, rows):.6g}"))
                if options.out:
                    with options.out.open("w", newline="") as stream:
                        head = ("problem", "strategy", "who", "seed", "evaluations", "score", *ORIGIN)
                        csv.writer(stream).writerows([head, *kept])
                    stamp(options.out)
        show(name, options.strategy, kept)


def show(name: str, strategy: str, rows: list[tuple[str, ...]]) -> None:
    """Prints the means of ``rows`` of a problem over the seeds that both methods have."""
    scores = {
        who: {(row[3], row[4]): float(row[5]) for row in rows if row[:3] == (name, strategy, who)}
        for who in ("ours", "theirs")
    }
    both = sorted(scores["ours"].keys() & scores["theirs"].keys())
    mine, other = (float(np.mean([scores[who][key] for key in both])) if both else 0.0 for who in ("ours", "theirs"))
    share = f"{mine / other:.4f}" if other else "none found a feasible row" if not mine else "only ours"
    print(name, strategy, f"ours {mine:.6g} theirs {other:.6g} ours/theirs {share} ({len(both)} seeds)", flush=True)


if __name__ == "__main__":
    main()
