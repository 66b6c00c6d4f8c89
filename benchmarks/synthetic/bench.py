#!/usr/bin/env python3
"""Search problems of 51 and 75 variables whose every number is made here, with near-exact fronts and a counted budget.

The shape is that of larger GPT spaces: width, depth, bias, then an FFN ratio and a number of heads for each of 24 or 36
layers, those past the depth without effect. Perplexity is *invented*: a saturating function of what the layers add,
with weights that differ by layer, a partner for every layer, and a fixed random network as roughness. Costs
are counted by pencil. Nothing here was fitted to anything; it is for comparing search methods on spaces of this size.

    oracle = Oracle(Problem("m2"), budget=500)
    F, G = oracle(X)              # spends evaluations; F (n, m) to minimise, G (n, k), feasible where <= 0
    costs, G = oracle.free(X)     # every objective but perplexity, and G; spends nothing
    oracle.score(100)             # share of the front's hypervolume, or with one objective the perplexity regret

    python bench.py               # writes the fronts anew (minutes)
"""

import pathlib
import sys

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "src"))
WIDTH, MLP, HEADS = (512, 768, 1024), (2, 3, 4), (8, 12, 16)
SIZES = {"m": 24, "l": 36}  # the most layers: 51 and 75 variables
PROBLEMS = {  # size, objectives to minimise, upper bounds as shares of the largest design
    "m2": ("m", ("ppl", "memory"), {}),
    "m2c": ("m", ("ppl", "flops"), {"memory": 0.6, "params": 0.42}),
    "m1c": ("m", ("ppl",), {"memory": 0.6, "flops": 0.45}),
    "l2": ("l", ("ppl", "memory"), {}),
    "l2c": ("l", ("ppl", "flops"), {"memory": 0.6, "params": 0.42}),
    "l1c": ("l", ("ppl",), {"memory": 0.6, "flops": 0.45}),
}


class Surrogate:
    """Perplexity, TFLOP and MB of 8 x 1024 tokens, and parameters in millions, of integer rows."""

    def __init__(self, size):
        rng = np.random.default_rng([ord(size), 2026])
        self.n = n = SIZES[size]
        self.depths = (n - 2, n - 1, n)
        self.cardinality = np.array([3, 3, 2] + [3] * n + [3] * n)
        self._mlp, self._heads = (share * rng.gamma(4.0, 0.25, n) for share in (1.0, 0.6))
        self._partner, self._pull = rng.permutation(n), 0.25 * rng.standard_normal(n)
        self._in, self._out = rng.standard_normal((2 * n + 3, 32)) / np.sqrt(2 * n + 3), rng.standard_normal(32)

    def evaluate(self, X, metrics):
        """Values of ``metrics`` for integer rows ``X`` (n, d), as (n, len(metrics))."""
        X = np.atleast_2d(np.asarray(X, int))
        return np.stack([getattr(self, f"_{'params' if m == 'params_exact' else m}")(X) for m in metrics], axis=1)

    def _decoded(self, X):
        n = self.n
        active = np.arange(n)[None] < np.asarray(self.depths)[X[:, 1]][:, None]
        width = np.asarray(WIDTH, float)[X[:, 0]][:, None]
        bias = (X[:, 2] == 0).astype(float)[:, None]
        return width, bias, np.asarray(MLP, float)[X[:, 3 : 3 + n]], np.asarray(HEADS, float)[X[:, 3 + n :]], active

    def _params(self, X):
        width, bias, ratio, heads, active = self._decoded(X)
        attention = 64 * heads
        layer = 4 * attention * width + 2 * ratio * width**2 + bias * (3 * attention + ratio * width + 2 * width)
        return ((layer * active).sum(1) + 50304 * width[:, 0]) / 1e6

    def _flops(self, X):
        width, _, ratio, heads, active = self._decoded(X)
        tokens, length = 8 * 1024, 1024
        layer = 2 * tokens * (4 * 64 * heads * width + 2 * ratio * width**2) + 4 * tokens * length * 64 * heads
        return ((layer * active).sum(1) + 2 * tokens * 50304 * width[:, 0]) / 1e12

    def _memory(self, X):
        width, _, ratio, heads, active = self._decoded(X)
        cache = (2 * 2 * 8 * 1024 * 64 * heads * active).sum(1)
        scratch = 2 * 8 * 1024 * (width * (ratio * active).max(1, keepdims=True) + 2 * width)[:, 0]
        return (2e6 * self._params(X) + cache + scratch) / 1e6

    def _ppl(self, X):
        width, bias, ratio, heads, active = self._decoded(X)
        mlp, head = np.log2(ratio) - 1, np.log2(heads / 8)
        own = self._mlp * mlp + self._heads * head
        pair = self._pull * mlp * head[:, self._partner]
        layers = ((own + pair) * active).sum(1) / self.n + 0.02 * active.sum(1)
        scaled = np.concatenate([X[:, :3] - 1.0, (mlp - 0.5) * active, (head - 0.5) * active], axis=1)
        rough = np.tanh(scaled @ self._in) @ self._out
        wide = np.log2(width[:, 0] / 512)
        return 14 + 16 * np.exp(-0.55 * wide - 0.45 * (1 + 0.3 * wide) * layers) + 0.03 * rough + 0.1 * bias[:, 0]


class Problem:
    """One search problem with its near-exact front."""

    def __init__(self, name, *, front=True):
        size, self.objectives, shares = PROBLEMS[name]
        self.name, self.surrogate = name, Surrogate(size)
        self.cardinality = self.surrogate.cardinality
        largest = np.r_[2, 2, 0, self.cardinality[3:] - 1]
        self.bounds = {m: share * self.surrogate.evaluate(largest, (m,))[0, 0] for m, share in shares.items()}
        if front:
            self.front = np.loadtxt(HERE / f"front_{name}.csv", delimiter=",", ndmin=2)
            self._low, self._high = self.front.min(0), self.front.max(0)
            self._best = self._volume(self.front) if len(self.objectives) > 1 else None

    def evaluate(self, X):
        """Objectives (n, m) and violations (n, k) as shares of the bounds."""
        values = self.surrogate.evaluate(X, (*self.objectives, *self.bounds))
        F, raw = values[:, : len(self.objectives)], values[:, len(self.objectives) :]
        return F, raw / np.array(list(self.bounds.values()) or [1.0])[: raw.shape[1]] - 1.0

    def score(self, F, G):
        """Share of the front's hypervolume, or, with one objective, the regret of the best feasible row."""
        feasible = F[(G <= 0).all(1)] if G.shape[1] else F
        if len(self.objectives) == 1:
            return float(feasible.min() - self._low[0]) if len(feasible) else float("nan")
        return self._volume(feasible) / self._best if len(feasible) else 0.0

    def _volume(self, F):
        from chipwise.design.strategies.pareto import hypervolume

        return hypervolume((F - self._low) / (self._high - self._low), np.full(F.shape[1], 1.1))


class Oracle:
    """Evaluates rows and counts them, repeats included; ``left`` is the remaining number."""

    def __init__(self, problem, budget):
        self.problem, self.budget = problem, budget
        self.F, self.G = np.zeros((0, len(problem.objectives))), np.zeros((0, len(problem.bounds)))

    @property
    def left(self):
        """Number of evaluations that are left."""
        return self.budget - len(self.F)

    def __call__(self, X):
        """Objectives and violations of the rows ``X``, which are counted."""
        if len(np.atleast_2d(X)) > self.left:
            raise ValueError(f"{len(np.atleast_2d(X))} rows asked for, {self.left} evaluations left of {self.budget}")
        F, G = self.problem.evaluate(X)
        self.F, self.G = np.vstack([self.F, F]), np.vstack([self.G, G])
        return F, G

    def free(self, X):
        """Metrics that a cost model predicts without training."""
        F, G = self.problem.evaluate(X)
        return F[:, 1:], G

    def score(self, evaluations):
        """Score of the first ``evaluations`` rows."""
        return self.problem.score(self.F[:evaluations], self.G[:evaluations])


def near_front(problem, *, children=400, seed=0):
    """The near-exact front, found by a long evolution on all values, (n, m)."""
    from chipwise.design.strategies.pareto import crowding, non_dominated, ranks

    rng, cards = np.random.default_rng(seed), problem.cardinality
    generations = 1500 if len(problem.objectives) > 1 else 4000
    level = rng.random((2000, 1))
    X = np.vstack([(rng.random((2000, len(cards))) * cards), np.clip(np.rint((cards - 1) * level), 0, cards - 1)])
    X = X.astype(int)
    F, G = problem.evaluate(X)
    for _ in range(generations):
        parents, mates = X[rng.integers(0, len(X), children)], X[rng.integers(0, len(X), children)]
        born = np.where(rng.random(parents.shape) < 0.5, parents, mates)
        moved = rng.random(born.shape) < rng.choice([1, 2, 4], (children, 1)) / len(cards)
        born = np.where(moved, (rng.random(born.shape) * cards).astype(int), born)
        swap = rng.integers(0, len(cards), (2, children))
        step = rng.random(children) < 0.3
        born[np.arange(children)[step], swap[0, step]] += 1
        born[np.arange(children)[step], swap[1, step]] -= 1
        born = np.clip(born, 0, cards - 1)
        X = np.unique(np.vstack([X, born]), axis=0)
        F, G = problem.evaluate(X)
        excess = np.maximum(G, 0).sum(1)
        order = (-crowding(F), ranks(F, excess, most=3)) if F.shape[1] > 1 else (F[:, 0], excess)
        keep = np.lexsort(order)[: 400 if F.shape[1] > 1 else 60]
        X, F, G = X[keep], F[keep], G[keep]
    F = F[(G <= 0).all(1)]
    return F[non_dominated(F)]


if __name__ == "__main__":
    for problem_name in sys.argv[1:] or PROBLEMS:
        made = Problem(problem_name, front=False)
        found = [near_front(made, seed=seed) for seed in range(2)]
        from chipwise.design.strategies.pareto import non_dominated

        both = np.vstack(found)
        both = np.unique(both[non_dominated(both)], axis=0)
        np.savetxt(HERE / f"front_{problem_name}.csv", both, delimiter=",", fmt="%.6f")
        print(problem_name, len(both), "points", both.min(0), both.max(0), flush=True)
