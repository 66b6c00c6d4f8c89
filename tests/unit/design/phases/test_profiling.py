"""Where a measurement is worth its time."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from chipwise.design.limits import parse_constraints
from chipwise.design.phases.measurement_choice import next_to_measure, worth_measuring

LIMITS = parse_constraints({"tpot_p99": "<= 10 ms"})
REFERENCE = np.array([10.0, 10.0])
FREE = np.array([np.inf, np.inf])


def why(mode: str, low: float, high: float, *, novelty: float = 0.0) -> str | None:
    promise = {"tpot_p99": [1e-3 * (low + high) / 2, 1e-3 * low, 1e-3 * high]}
    return worth_measuring(mode, promise, LIMITS, novelty=novelty, headroom=1.0)


def test_hybrid_measures_what_lies_across_a_limit() -> None:
    assert why("hybrid", 8, 9) is None
    assert why("hybrid", 11, 12) is None
    assert why("hybrid", 9, 11) == "its interval straddles tpot_p99 <= 10 ms"
    assert worth_measuring(
        "hybrid", {"tpot_p99": [9e-3, 8e-3, 9.5e-3]}, LIMITS, novelty=0.0, headroom=0.85
    )  # 8.0 / 0.85 = 9.4 ms keeps it, 9.5 / 0.85 = 11.2 ms does not


def test_hybrid_measures_what_nothing_like_it_was() -> None:
    assert why("hybrid", 1, 2, novelty=0.9) == "nothing like it was measured"


def test_the_other_modes_always_or_never() -> None:
    assert why("measured", 1, 2) is not None
    assert why("simulated", 9, 11, novelty=1.0) is None


def test_the_candidate_that_may_add_most_is_next() -> None:
    """Measured (5, 5). Low ends (4, 4) and (4.9, 4.9) may add 36 - 25 = 11 and 1.01; (6, 6) nothing."""
    low = np.array([[5.0, 5.0], [4.0, 4.0], [4.9, 4.9], [6.0, 6.0]])
    measured = np.full((4, 2), np.nan)
    measured[0] = 5.0
    assert next_to_measure(low, low + 2, measured, FREE, REFERENCE) == 1
    measured[1] = 5.5
    assert next_to_measure(low, low + 2, measured, FREE, REFERENCE) == 2
    measured[2] = 5.5
    assert next_to_measure(low, low + 2, measured, FREE, REFERENCE) is None


def test_what_cannot_keep_a_limit_is_not_measured() -> None:
    low = np.array([[1.0, 6.0], [2.0, 4.0]])
    assert next_to_measure(low, low + 3, np.full((2, 2), np.nan), np.array([np.inf, 5.0]), REFERENCE) == 1


def test_a_slow_best_does_not_count_as_a_front() -> None:
    """The measured (1, 9) broke the limit of 5: (3, 4) still has everything to add."""
    low = np.array([[1.0, 4.0], [3.0, 4.0]])
    measured = np.array([[1.0, 9.0], [np.nan, np.nan]])
    assert next_to_measure(low, low, measured, np.array([np.inf, 5.0]), REFERENCE) == 1


@pytest.mark.slow
def test_a_quarter_of_the_measurements_find_the_front(tmp_path) -> None:
    """The published comparison on a fake device of known truth, smaller: within 1 % of measuring everything."""
    script = Path(__file__).parents[4] / "benchmarks" / "hybrid_profiling.py"
    spec = script.parents[1] / "examples" / "clinic.yaml"
    command = [sys.executable, script, "--n", "120", "--seeds", "3", "--spec", spec, "--out", tmp_path / "rows.csv"]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    with (tmp_path / "rows.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 3
    for row in rows:
        assert int(row["measured"]) <= 0.25 * int(row["candidates"])
        assert float(row["hypervolume_share"]) >= 0.99
