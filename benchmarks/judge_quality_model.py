"""The quality model of the ranking benchmark, and Kendall's tau of each predictor, with intervals."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chipwise.core.statistics import nnls, weighted_kendall_taus
from chipwise.design.phases.choosing import make_problem
from chipwise.design.run.spec import RunSpec
from chipwise.design.strategies.encoding import Encoder
from chipwise.design.strategies.quality_model import QualityModel
from chipwise.design.targets.cost_model import CostModel
from chipwise.model.space.search_space import SearchSpace
from judge_draw import Subnet

Floats = NDArray[np.float64]
LEAST_CANDIDATES, LEAST_PAIRS = 5, 8  # fewest candidates for a rank correlation
RESAMPLINGS = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Kendall's rank correlation between a predictor and trainings; ``tau`` is None with too little data."""

    candidates: int
    pairs: int
    tau: float | None = None
    low: float | None = None  # lower end of the 95 % interval over candidates
    high: float | None = None


class AllFidelities:
    """A quality model of all predictors cheaper than a full training, evaluated leave-one-out.

    Each fidelity (rows of ``known``: scores with shared weights, short trainings, the law) is put on the scale of full
    trainings by non-negative least squares in logarithms, and ``optim.quality_model`` learns from the design what
    that leaves over. What is said of a candidate comes from a fit that has not seen its full training.
    """

    def __init__(self, spec: RunSpec, space: SearchSpace, costing: CostModel, seed: int) -> None:
        self.problem = make_problem(space, costing.metrics, spec.goals, spec.limits)
        self.encoder = Encoder(self.problem, seed=seed)
        self.seed = seed

    def leave_one_out(self, subnets: list[Subnet], known: Floats, truth: Floats) -> Floats:
        """Bits per byte of every sub-network, from the full trainings of the others alone, (n,)."""
        rows = np.array([subnet.row for subnet in subnets])
        said = []
        for i in range(len(subnets)):
            others = np.arange(len(subnets)) != i
            scale = calibration(known[:, others], truth[others])
            left_over = np.log(truth[others]) - scale(known[:, others])
            model = QualityModel(self.problem, seed=self.seed, encoder=self.encoder, prior=False)
            model.fit(rows[others], left_over)
            said.append(np.exp(scale(known[:, [i]]) + model.predict(rows[[i]])[0])[0])
        return np.array(said)


def calibration(known: Floats, truth: Floats):
    """A function from fidelities (f, n) to the logarithm of full bits per byte, fitted to (f, n) and (n,)."""
    logs, target = np.log(known), np.log(truth)
    middle, level = logs.mean(axis=1, keepdims=True), target.mean()
    slopes = nnls((logs - middle).T, target - level)
    return lambda values: slopes @ (np.log(values) - middle) + level


def table(judges: dict[str, Floats], truth: Floats, band: NDArray[np.bool_]) -> list[str]:
    """Kendall's τ of each judge (the lower, the better) with 95 % intervals, overall and within the band."""
    pairs = band[:, None] & band
    lines = [f"{'':34} {'overall':>22} {'equal latency':>22}"]
    for name, values in judges.items():
        both = (agreement(values, truth), agreement(values, truth, pairs=pairs))
        lines.append(f"{name:34} " + " ".join(f"{shown(one):>22}" for one in both))
    return lines


def agreement(judged: ArrayLike, truth: ArrayLike, *, pairs: NDArray[np.bool_] | None = None) -> Agreement:
    """Kendall's τ-b between two columns, with the 95 % interval over resampled candidates.

    Args:
        judged: Scores of a predictor, lower is better; NaN if a candidate has none, (n,).
        truth: Results of longer trainings, lower is better, (n,).
        pairs: Which pairs count, (n, n). Default: all.

    References:
        τ-b: Kendall 1945, Biometrika 33:239. The interval: percentiles of the bootstrap, Efron 1979.
    """
    x, y = np.asarray(judged, float), np.asarray(truth, float)
    keep = np.isfinite(x) & np.isfinite(y)
    x, y = x[keep], y[keep]
    count = len(x)
    wanted = np.ones((count, count), bool) if pairs is None else np.asarray(pairs)[np.ix_(keep, keep)]
    wanted = wanted & ~np.eye(count, dtype=bool)
    number = int(wanted.sum()) // 2
    if count < LEAST_CANDIDATES or number < LEAST_PAIRS:
        return Agreement(candidates=count, pairs=number)
    value = float(weighted_kendall_taus(x, y, np.ones((1, count)), pairs=wanted)[0])
    if not np.isfinite(value):
        return Agreement(candidates=count, pairs=number)
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLINGS).astype(float)
    low, high = np.nanpercentile(weighted_kendall_taus(x, y, drawn, pairs=wanted), [2.5, 97.5])
    return Agreement(candidates=count, pairs=number, tau=value, low=float(low), high=float(high))


def shown(found) -> str:
    """τ with its interval."""
    return "too few" if found.tau is None else f"{found.tau:.2f} ({found.low:.2f} to {found.high:.2f})"
