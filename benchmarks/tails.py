"""P99s of measured runs, predicted from their P50s with the device left out of the fit: errors and coverage.

python benchmarks/tails.py --truth ATLAS --out benchmarks/tails-2026-11-26.csv

ATLAS holds the tables that ``chipwise validate tails`` reads. A row is a subset of the runs: its errors as shares, the
share of P99s inside their 90 % interval, and the median error of a constant ratio, fitted without the device too.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import provenance
from chipwise.core.csvfile import write_rows
from chipwise_fitting.score import Row, scores
from chipwise_fitting.tails import rows

COLUMNS = ("subset", "runs", "mean_error", "median_error", "constant_ratio_median_error", "inside_90")


def main() -> None:
    """Scores all runs of public tables together, those of this repository, and each subset."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--truth", type=Path, required=True, help="the folder of the tables")
    parser.add_argument("--out", type=Path, required=True, help="the CSV file to write")
    given = parser.parse_args()
    every = rows(given.truth, "device")["p99_s"]
    public = [row for row in every if not row.subset.startswith("own")]
    answers = []
    for name, own in (("public tables", public), ("all", every)):
        answers.append(scores([replace(row, subset=name) for row in own])[0])
        answers[-1] = replace(answers[-1], subset=name)
    by_time: dict[str, list[Row]] = {}
    for row in public:
        by_time.setdefault(f"public tables, {row.subset.rsplit(', ', 1)[1]}", []).append(row)
    answers += [replace(scores(own)[0], subset=name) for name, own in sorted(by_time.items())]
    answers += scores(every)[1:]
    write_rows(
        given.out,
        [
            {
                "subset": each.subset, "runs": each.rows, "mean_error": round(each.mape, 4),
                "median_error": round(each.median, 4),
                "inside_90": None if each.inside is None else round(each.inside, 4),
                "constant_ratio_median_error": None if each.rival_median is None else round(each.rival_median, 4),
            }
            for each in answers
        ],
        COLUMNS,
    )  # fmt: skip
    provenance.stamp(given.out)
    print(given.out.read_text())


if __name__ == "__main__":
    main()
