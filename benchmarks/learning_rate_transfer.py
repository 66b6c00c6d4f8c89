"""Whether the best learning rate depends on width: with the recipe's scaling, unscaled, and with AdamW alone.

    python benchmarks/learning_rate_transfer.py --tokens runs/clinic/corpus --out learning-rate-transfer.csv

Models of one depth and several widths are trained for equal steps at five rates, the usual one times 1/4 … 4; a
parabola in log₂ of the factor gives each width's best factor with its standard error (of the residuals; five points,
three constants), a line through those says by how many powers of two the best factor moves when the width doubles.
Steps are counted by a clock that ticks once a step, so a busy machine changes nothing. Rows that the file holds are
not trained again.

  scaled    Muon for the layers' matrices and AdamW for all else, both rates times the factor and √(128 / width)
  unscaled  the same without the root
  tables    unscaled, AdamW's rate alone times the factor
  adamw     AdamW for everything, one rate of 0.006, unscaled

Columns: optimiser, width, factor, seed, steps, bits_per_byte, cpu_s.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch

import resumable_rows
from chipwise.training.data.recipe import Recipe
from chipwise.training.data.text import load_corpus
from chipwise.training.data.tokenizer import TokenStore
from chipwise.training.loop import trainer
from training_recipe import SIZES, AdamWOnly, shape

COLUMNS = ("optimiser", "width", "factor", "seed", "steps", "bits_per_byte", "cpu_s")
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
ADAMW_RATE = 0.006
WIDTH = 128  # at which the recipe's rates hold
OPTIMISERS = ("scaled", "unscaled", "tables", "adamw")


def recipe_of(optimiser: str, factor: float) -> Recipe:
    """The recipe with the rates that ``optimiser`` names times ``factor``."""
    usual = replace(Recipe(), rate_width=WIDTH if optimiser == "scaled" else None)
    if optimiser == "adamw":
        return replace(usual, matrix_rate=ADAMW_RATE * factor, table_rate=ADAMW_RATE * factor)
    matrices = usual.matrix_rate * (1 if optimiser == "tables" else factor)
    return replace(usual, matrix_rate=matrices, table_rate=usual.table_rate * factor)


def trained(optimiser: str, width: int, factor: float, seed: int, steps: int, depth: int, store: TokenStore) -> dict:
    """One row."""
    arch = shape(d=width, depth=depth)
    kind = AdamWOnly if optimiser == "adamw" else trainer.Optimiser
    began = time.process_time()
    with tempfile.TemporaryDirectory() as room, mock.patch.object(trainer, "Optimiser", kind):
        result = trainer.train(
            arch,
            store.tokens(arch.vocab_size),
            cpu_budget_s=steps,
            seed=seed,
            folder=room,
            recipe=recipe_of(optimiser, factor),
            max_validation_bytes=150_000,
            checkpoint_every_s=float("inf"),
            clock=itertools.count().__next__,
        )
    spent = time.process_time() - began
    values = (optimiser, width, factor, seed, result.steps, f"{result.loss:.5f}", f"{spent:.1f}")
    return dict(zip(COLUMNS, map(str, values), strict=True))


def best(factors: np.ndarray, losses: np.ndarray) -> tuple[float, float]:
    """Log₂ of the best factor by a parabola through (factors, losses), and its standard error; NaN without a least."""
    x = np.log2(factors)
    columns = np.column_stack([x**2, x, np.ones_like(x)])
    (a, b, _), *_ = np.linalg.lstsq(columns, losses, rcond=None)
    if a <= 0:
        return float("nan"), float("nan")
    residuals = losses - columns @ np.linalg.lstsq(columns, losses, rcond=None)[0]
    variance = residuals @ residuals / max(1, len(x) - 3) * np.linalg.inv(columns.T @ columns)
    slope = np.array([b / (2 * a**2), -1 / (2 * a), 0.0])  # of −b/2a by a, b and the constant
    return float(-b / (2 * a)), float(np.sqrt(slope @ variance @ slope))


def moves(widths: list[int], optima: list[tuple[float, float]]) -> tuple[float, float]:
    """Shift of log₂ of the best factor when the width doubles, and its standard error."""
    x, y, error = np.log2(widths), np.array([o[0] for o in optima]), np.array([o[1] for o in optima])
    weight = 1 / np.maximum(error, 0.05) ** 2
    columns = np.column_stack([x - x.mean(), np.ones_like(x)])
    covariance = np.linalg.inv(columns.T * weight @ columns)
    return float((covariance @ (columns.T * weight) @ y)[0]), float(covariance[0, 0] ** 0.5)


def report(rows: list[dict]) -> None:
    """Prints each width's best factor and how it moves."""
    for optimiser in dict.fromkeys(row["optimiser"] for row in rows):
        widths, optima = [], []
        for width in sorted({int(row["width"]) for row in rows if row["optimiser"] == optimiser}):
            mine = [r for r in rows if r["optimiser"] == optimiser and int(r["width"]) == width]
            factors = np.array([float(row["factor"]) for row in mine])
            losses = np.array([float(row["bits_per_byte"]) for row in mine])
            if len(set(factors)) < 4:
                continue
            found = best(factors, losses)
            widths.append(width)
            optima.append(found)
            shown = "  ".join(f"{f:g}: {v:.3f}" for f, v in sorted(zip(factors, losses, strict=True)))
            print(f"{optimiser} d {width}: best factor 2^({found[0]:+.2f} ± {found[1]:.2f})   {shown}")
        if len(widths) > 1 and np.isfinite(optima).all():
            move, error = moves(widths, optima)
            print(f"{optimiser}: with twice the width the best rate is times 2^({move:+.2f} ± {error:.2f})")


def main() -> None:
    """Trains what the file lacks, writes after each training, prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--optimisers", nargs="*", default=list(OPTIMISERS), choices=OPTIMISERS)
    parser.add_argument("--widths", nargs="*", type=int, default=[64, 128, 256])
    parser.add_argument("--factors", nargs="*", type=float, default=list(FACTORS))
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0])
    parser.add_argument("--tokens", type=Path, help="folder that keeps the tokenised text")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = resumable_rows.read(options.out)
    held = {tuple(row[name] for name in COLUMNS[:5]) for row in rows}
    with tempfile.TemporaryDirectory() as scratch:
        store = TokenStore(load_corpus({}), options.tokens or scratch, SIZES)
        cases = itertools.product(options.optimisers, options.widths, options.factors, options.seeds)
        for optimiser, width, factor, seed in cases:
            if tuple(map(str, (optimiser, width, factor, seed, options.steps))) in held:
                continue
            same = ("unscaled", str(width), str(factor), str(seed), str(options.steps))
            if optimiser == "scaled" and width == WIDTH and same in held:  # the very same training
                twin = next(row for row in rows if tuple(row[name] for name in COLUMNS[:5]) == same)
                row = twin | {"optimiser": "scaled"}
            else:
                row = trained(optimiser, width, factor, seed, options.steps, options.depth, store)
            resumable_rows.add(rows, row, options.out, COLUMNS)
    report(rows)


if __name__ == "__main__":
    main()
