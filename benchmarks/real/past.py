"""What earlier trainings tell about a design before it is trained: rank correlation of expected and real losses.

    python benchmarks/real/past.py --out benchmarks/real/past.csv

Designs of the tables of real trainings (whole length, ``table.py``) are divided at random, ``DRAWS`` times: some are
what earlier runs trained, the others are ranked by :class:`Chooser` as the first candidates of a search, which has
trained nothing. A run's trainings share one recipe but a table's do not, so what a regression on sizes, operators and
recipe (``operators.py``) attributes to the recipe is first taken from the losses. Columns: task, past (number of
earlier trainings), designs ranked, Kendall's tau (mean and standard deviation over draws).
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import kendalltau

sys.path.insert(0, str(Path(__file__).parents[1]))

from operators import operators_of, rest_of, rows_of
from table import run_file

from chipwise.core.arrays import Float64Array
from chipwise.design.limits import Objective
from chipwise.design.phases.choosing import Chooser
from chipwise.design.phases.screening import Screened
from chipwise.design.run.spec import RunSpec, load_run
from chipwise.errors import SpecError
from chipwise.model.space.search_space import Rows, SearchSpace
from provenance import COLUMNS as ORIGIN
from provenance import here

TASKS = ("text", "images", "words")  # too few of the drawn designs are in spaces of today
PAST = (0, 4, 8, 16, 32)
DRAWS, SEED = 10, 3
COLUMNS = ("task", "past", "ranked", "tau", "tau_std")


RECIPE = {"rate", "rate2", "batch", "batch2", "both", "decay", "weight_decay"}


def without_recipe(rows: list[dict[str, Any]]) -> Float64Array:
    """Losses of trainings as they would be with one recipe, (n,)."""
    found = [rest_of(row) | operators_of(row["choices"]) for row in rows]
    names = [name for name in found[0] if any(one[name] for one in found)]
    x = np.array([[one[name] for name in names] for one in found])
    y = np.log([float(row["loss"]) for row in rows])
    weights = np.linalg.lstsq(x, y, rcond=None)[0]
    recipe = np.array([name in RECIPE for name in names])
    return np.asarray(np.exp(y - x[:, recipe] @ weights[recipe]))


def holds(space: SearchSpace, choices: Mapping[str, Any]) -> bool:
    """Whether a space holds a design; some kinds of training in the tables are no longer choices."""
    try:
        space.row(choices)
    except SpecError:
        return False
    return True


class Table:
    """The finished trainings of a task, as rows of its space."""

    def __init__(self, task: str, folder: Path) -> None:
        self.spec: RunSpec = load_run(run_file(task))
        self.space = SearchSpace(self.spec.space)
        kept = [one for one in rows_of(task, "1") if holds(self.space, one["choices"])]
        self.rows: Rows = np.array([self.space.row(one["choices"]) for one in kept])
        self.tokens = np.array([float(one["tokens"]) for one in kept])
        self.losses = without_recipe(kept)
        self.parameters: dict[tuple[int, ...], float] = {}
        self.data = self.spec.task_settings.open(
            self.spec.data, base=Path(self.spec.folder), folder=folder, space=self.spec.space
        )
        self.data.prepare()

    def metrics(self, rows: Rows) -> dict[str, Any]:
        """Parameters of designs."""
        for key in map(tuple, rows.tolist()):
            if key not in self.parameters:
                self.parameters[key] = float(self.space.design(key).arch.parameters())
        return {"parameters": np.array([self.parameters[key] for key in map(tuple, rows.tolist())])}

    def tau(self, past: list[int], others: list[int]) -> float:
        """Rank correlation of expected and real losses of ``others`` after trainings of ``past``."""
        chooser = Chooser(
            self.space,
            Screened(rows=self.rows, metrics=self.metrics(self.rows), priced=0, priced_per_s=0.0, feasible_share=1.0),
            self.metrics,
            (Objective(metric=self.spec.task_settings.metric.name, direction="minimize"),),
            (),
            final=float(np.median(self.tokens)),
            in_tokens=True,
            bytes_per_token=lambda rows: self.data.bytes_per_token(self.space, rows),
            law=self.spec.task_settings.law,
            operators=self.spec.operators,
            past=[(self.rows[i].tolist(), int(self.tokens[i]), float(self.losses[i])) for i in past],
            seed=SEED,
        )
        loss = [
            chooser.expected([], row, budget=tokens)[0][0] if past else chooser.law(row, budget=tokens)[0]
            for row, tokens in zip(self.rows[others][:, None], self.tokens[others].tolist(), strict=True)
        ]  # each after its own training, since designs read an example in different numbers of positions
        return float(kendalltau(loss, self.losses[others]).statistic)


def main() -> None:
    """Ranks the designs of every table, writes the result and prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    found = []
    for task in TASKS:
        with tempfile.TemporaryDirectory() as folder:
            table = Table(task, Path(folder))
        for count in PAST:
            random = np.random.default_rng(SEED)
            taus = []
            for _ in range(DRAWS):
                order = random.permutation(len(table.rows)).tolist()
                taus.append(table.tau(order[:count], order[max(PAST) :]))  # the same designs are ranked every time
            mean, deviation = np.mean(taus), np.std(taus, ddof=1)
            print(f"{task}, {count} earlier trainings: tau {mean:.2f} ± {deviation:.2f}", flush=True)
            ranked = len(table.rows) - max(PAST)
            row = (task, count, ranked, f"{mean:.3f}", f"{deviation:.3f}")
            found.append(dict(zip(COLUMNS, row, strict=True)) | here())
    with options.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, (*COLUMNS, *ORIGIN), lineterminator="\n")
        writer.writeheader()
        writer.writerows(found)


if __name__ == "__main__":
    main()
