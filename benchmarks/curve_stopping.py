"""CPU time that early stopping would have saved in a finished run, and the finalists it would have dropped.

    python benchmarks/curve_stopping.py --run runs/clinic --out curve-stopping.csv

A replay over the stored curves of the first trainings, in the order in which they ran. At each share of its budget a
training is extrapolated to its end by a straight line through those that ended before (bits per byte of the training
text so far against the final ones), with the 99 % interval of a new value. It is stopped where even the lower end is
worse, by ``margin``, than what ``keep`` earlier trainings reached. Lost is a training that the run itself took to a
longer one, or that was the best of all after the longest; the same is counted over 200 random orders.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy import stats

from chipwise.core.fields import losses_renamed
from provenance import stamp

SHARES = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
MARGINS = (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3)
FEWEST = 6  # trainings that ended before any is stopped
SURE = 0.99


@dataclass(frozen=True)
class Training:
    """One first training: its curve (CPU seconds, bits per byte of training text), its end, and what became of it."""

    number: int
    curve: list[tuple[float, float]]
    cpu_s: float
    bits_per_byte: float
    longer: bool
    best_of_all: bool

    def at(self, cpu_s: float) -> float:
        """The last value of the curve before a time."""
        return [value for second, value in self.curve if second <= cpu_s][-1]


def trainings(run: Path) -> list[Training]:
    """First trainings of a run in the order of their trials."""
    record = json.loads((run / "record.json").read_text())
    ended = {}
    for path in run.glob("trainings/*/result-*.json"):
        ended.setdefault(path.parent.name, []).append(losses_renamed(json.loads(path.read_text())))
    last_s = max(result["cpu_s"] for results in ended.values() for result in results)
    full = [r for results in ended.values() for r in results if r["cpu_s"] > 0.9 * last_s]
    best = min(result["loss"] for result in full)
    found = []
    for results in ended.values():
        results.sort(key=lambda result: result["cpu_s"])
        first, final = results[0], results[-1]
        number = next(
            trial["number"]
            for trial in map(losses_renamed, record["trials"])
            if math.isclose(trial["loss"] or 0, final["loss"])
        )
        found.append(
            Training(
                number=number,
                curve=[(point[0], point[2]) for point in first["curve"]],
                cpu_s=first["cpu_s"],
                bits_per_byte=first["loss"],
                longer=len(results) > 1,
                best_of_all=final["loss"] == best,
            )
        )
    return sorted(found, key=lambda item: item.number)


def lower_end(ended: list[Training], now: Training, share: float) -> float:
    """The 99 % interval of the final loss of ``now``, predicted at ``share`` of its budget."""
    x = np.array([item.at(share * item.cpu_s) for item in ended])
    y = np.array([item.bits_per_byte for item in ended])
    slope, level = np.polyfit(x, y, 1)
    degrees = len(x) - 2
    error = math.sqrt(float(((y - level - slope * x) ** 2).sum()) / degrees)
    here = now.at(share * now.cpu_s)
    wide = math.sqrt(1 + 1 / len(x) + (here - x.mean()) ** 2 / float(((x - x.mean()) ** 2).sum()))
    return float(level + slope * here - stats.t.ppf(SURE, degrees) * error * wide)


def replay(items: list[Training], *, keep: int, margin: float) -> dict[str, object]:
    """Decisions of the rule; trainings that it stops are not used for later decisions."""
    ended: list[Training] = []
    stopped: list[Training] = []
    saved_s = 0.0
    for item in items:
        at = None
        if len(ended) >= FEWEST:
            bar = sorted(one.bits_per_byte for one in ended)[keep - 1] + margin
            at = next((share for share in SHARES if lower_end(ended, item, share) > bar), None)
        if at is None:
            ended.append(item)
            continue
        stopped.append(item)
        saved_s += (1 - at) * item.cpu_s
    return {
        "keep": keep,
        "margin": margin,
        "trainings": len(items),
        "stopped": len(stopped),
        "saved_s": round(saved_s, 1),
        "spent_s": round(sum(item.cpu_s for item in items), 1),
        "lost_longer": sum(item.longer for item in stopped),
        "lost_best": sum(item.best_of_all for item in stopped),
    }


def over_orders(items: list[Training], *, keep: int, margin: float, orders: int) -> dict[str, object]:
    """The same for other orders of the trainings: means, and the number of orders that lost a finalist."""
    random = np.random.default_rng(0)
    runs = [
        replay([items[int(i)] for i in random.permutation(len(items))], keep=keep, margin=margin) for _ in range(orders)
    ]
    return {
        "orders": orders,
        "mean_stopped": round(float(np.mean([run["stopped"] for run in runs])), 2),
        "mean_saved_s": round(float(np.mean([run["saved_s"] for run in runs])), 1),
        "orders_that_lost_longer": sum(run["lost_longer"] > 0 for run in runs),
        "orders_that_lost_best": sum(run["lost_best"] > 0 for run in runs),
    }


def main() -> None:
    """Prints and writes a row for every margin."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, default=Path("runs/clinic"))
    parser.add_argument("--keep", type=int, default=4, help="trainings that go on")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    items = trainings(args.run)
    rows = [
        replay(items, keep=args.keep, margin=margin) | over_orders(items, keep=args.keep, margin=margin, orders=200)
        for margin in MARGINS
    ]
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    if args.out is not None:
        with args.out.open("w", newline="") as stream:
            writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)
        stamp(args.out)


if __name__ == "__main__":
    main()
