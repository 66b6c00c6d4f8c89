"""The published scaling law refitted to its published points: constants, what they vary together, and the scatter.

    python benchmarks/scaling_law.py --points svg_extracted_data.csv --out scaling-law.csv

The points (columns ``Model Size``, ``Training FLOP``, ``loss``) are those that Besiroglu et al. 2024
(arXiv:2404.10102) read off figure 4 of Hoffmann et al. 2022: https://github.com/epoch-research/analyzing-chinchilla,
data/. As in the paper the five largest losses are left out, Huber's loss of the logarithm (δ = 0.001) is least, and the
points are drawn anew with replacement. The paper prints each constant's standard error, not how they vary together,
which is most of what an interval needs: ``chipwise.optim.laws`` holds the covariance that this prints.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
from scipy.optimize import minimize

NAMES = ("ln_size", "ln_text", "ln_floor", "size_exponent", "text_exponent")
PUBLISHED = (6.17795598, 7.64273236, 0.59711196, 0.34781303, 0.36585412)
DELTA = 1e-3


def read(path: Path) -> np.ndarray:
    """Rows of ln parameters, ln tokens and ln loss, without the five largest losses."""
    with path.open(newline="") as stream:
        rows = [(float(r["Model Size"]), float(r["Training FLOP"]), float(r["loss"])) for r in csv.DictReader(stream)]
    size, flops, loss = np.array(rows).T
    keep = loss < np.sort(loss)[-5]
    return np.log(np.column_stack([size, flops / (6 * size), loss])[keep])


def expected(theta: np.ndarray, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ln loss of the points and its gradient by the constants, (n,) and (n, 5)."""
    a, b, e, alpha, beta = theta
    parts = np.column_stack([a - alpha * points[:, 0], b - beta * points[:, 1], np.full(len(points), e)])
    top = parts.max(axis=1, keepdims=True)
    share = np.exp(parts - top)
    total = share.sum(axis=1, keepdims=True)
    share /= total
    gradient = np.column_stack([share, -share[:, 0] * points[:, 0], -share[:, 1] * points[:, 1]])
    return (top + np.log(total))[:, 0], gradient


def huber(theta: np.ndarray, points: np.ndarray) -> tuple[float, np.ndarray]:
    """The sum that is least, and its gradient."""
    mean, gradient = expected(theta, points)
    off = mean - points[:, 2]
    near = np.abs(off) <= DELTA
    value = np.where(near, 0.5 * off**2, DELTA * (np.abs(off) - 0.5 * DELTA)).sum()
    return 1e6 * float(value), 1e6 * (np.clip(off, -DELTA, DELTA) @ gradient)


def fit(points: np.ndarray) -> np.ndarray:
    """The constants that fit best, begun at the published ones."""
    scale = np.array([1.0, 1.0, 0.1, 0.05, 0.05])

    def scaled(z: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = huber(PUBLISHED + z * scale, points)
        return value, gradient * scale

    return PUBLISHED + minimize(scaled, np.zeros(5), jac=True, method="BFGS", options={"maxiter": 500}).x * scale


def main() -> None:
    """Fits, draws, prints, writes."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="the draws, one a row")
    options = parser.parse_args()
    points = read(options.points)
    best = fit(points)
    off = points[:, 2] - expected(best, points)[0]
    size, text = np.exp(points[:, 0]), np.exp(points[:, 1])
    print(f"{len(points)} points, {size.min():.3g} to {size.max():.3g} parameters, {text.min():.3g} to", end=" ")
    print(f"{text.max():.3g} tokens; relative scatter {off.std():.4f}, half of them within {np.median(abs(off)):.4f}")
    rng = np.random.default_rng(options.seed)
    draws = np.array([fit(points[rng.integers(0, len(points), len(points))]) for _ in range(options.draws)])
    spread = np.column_stack([np.exp(draws[:, :3]), draws[:, 3:]]).std(axis=0)
    for name, value, error in zip(
        ("A", "B", "E", "alpha", "beta"), [*np.exp(best[:3]), *best[3:]], spread, strict=True
    ):
        print(f"{name} {value:.5f} ({error:.5f})")
    print("covariance of", ", ".join(NAMES))
    for row in np.cov(draws.T):
        print("  (" + ", ".join(f"{value:.6g}" for value in row) + "),")
    if options.out:
        with options.out.open("w", newline="") as stream:
            csv.writer(stream).writerows([NAMES, *draws.tolist()])


if __name__ == "__main__":
    main()
