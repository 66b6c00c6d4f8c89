"""The arithmetic of benchmarks whose figures the documents quote, by pencil; and the figures against their rows."""

from __future__ import annotations

import csv
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    before = set(sys.modules)
    yield importlib.import_module("learning_rate_transfer")
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(ROOT / "benchmarks")):
            del sys.modules[name]


def test_the_best_factor_of_an_exact_parabola_is_exact(benchmark: ModuleType) -> None:
    factors = np.array([0.25, 0.5, 1.0, 2.0, 4.0])
    found, error = benchmark.best(factors, 1.7 + 0.03 * (np.log2(factors) - 0.5) ** 2)
    assert found == pytest.approx(0.5)
    assert error == pytest.approx(0.0, abs=1e-6)
    assert np.isnan(benchmark.best(factors, -((np.log2(factors)) ** 2))).all()


def test_scatter_makes_the_best_factor_unsure(benchmark: ModuleType) -> None:
    factors, rng = np.array([0.25, 0.5, 1.0, 2.0, 4.0]), np.random.default_rng(0)
    truth = 1.7 + 0.03 * (np.log2(factors) - 0.5) ** 2
    draws = [benchmark.best(factors, truth + 0.005 * rng.normal(size=5)) for _ in range(400)]
    optima, errors = np.array(draws).T
    assert np.sqrt((errors**2).mean()) == pytest.approx(optima.std(), rel=0.2)


def test_optima_that_halve_with_each_doubling_move_by_minus_one(benchmark: ModuleType) -> None:
    move, error = benchmark.moves([64, 128, 256], [(1.0, 0.1), (0.0, 0.1), (-1.0, 0.1)])
    assert move == pytest.approx(-1.0)
    assert error == pytest.approx(0.1 / np.sqrt(2))  # x - mean = -1, 0, 1: variance 0.01 / 2


def test_the_document_says_what_the_rows_give(benchmark: ModuleType) -> None:
    text = (ROOT / "docs" / "notes" / "training.md").read_text(encoding="utf-8")
    with (ROOT / "benchmarks" / "learning-rate-transfer.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    for optimiser in benchmark.OPTIMISERS:
        widths, optima = [], []
        for width in (64, 128, 256):
            mine = [row for row in rows if (row["optimiser"], row["width"]) == (optimiser, str(width))]
            if not mine:
                continue
            columns = [np.array([float(row[name]) for row in mine]) for name in ("factor", "bits_per_byte")]
            widths.append(width)
            optima.append(benchmark.best(*columns))
            assert f"2^({optima[-1][0]:.2f} ± {optima[-1][1]:.2f})" in text, (optimiser, width)
        move, error = benchmark.moves(widths, optima)
        assert f"× 2^({move:.2f} ± {error:.2f})" in text, optimiser
