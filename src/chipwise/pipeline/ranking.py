"""How well early judgements of a run's candidates agreed with what longer training found.

Judged before a training: by parameters, FLOPs, the scaling law's word before anything was trained, shared weights, what
the quality model believed, and shorter trainings. The truth of a table is one length of training; candidates that had
other lengths are in other tables, for the two do not compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from chipwise.blocks.lowering import lower
from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import weighted_kendall_taus
from chipwise.ops import Phase, Workload
from chipwise.reporting.scores import Agreement, Fidelity, Ranking
from chipwise.run.trials import Candidate

LEAST_CANDIDATES = 5
LEAST_PAIRS = 8
BAND = 1.05 / 0.95  # the most by which two latencies within ± 5 % of one value differ
_DRAWS = 2_000


def rankings(items: Sequence[Candidate], workload: Workload) -> tuple[Ranking, ...]:
    """A table for every length of training, the longest first; without rows where too few candidates had it."""
    found = []
    for rung in sorted({one["rung"] for item in items for one in item.rungs}, reverse=True):
        trained = [item for item in items if item.after(rung) is not None and item.format_of is None]
        cpu_s = float(np.median([(item.after(rung) or {})["cpu_s"] for item in trained]))
        if len(trained) < LEAST_CANDIDATES:
            found.append(Ranking(cpu_s=cpu_s, candidates=len(trained)))
            continue
        truth = np.array([_bits(item, rung) for item in trained])
        latency = np.array([item.trial.notes["predicted"]["tpot_p50"][0] for item in trained])
        judged = [(name, _column(trained, judge)) for name, judge in _judges(trained, rung, workload).items()]
        fidelities = tuple(
            Fidelity(
                name=name,
                overall=agreement(values, truth),
                equal_latency=agreement(values, truth, pairs=equal(latency)),
            )
            for name, values in judged
            if np.isfinite(values).sum() >= 2
        )
        found.append(Ranking(cpu_s=cpu_s, candidates=len(trained), fidelities=fidelities))
    return tuple(found)


def agreement(judged: ArrayLike, truth: ArrayLike, *, pairs: NDArray[np.bool_] | None = None) -> Agreement:
    """Kendall's τ-b between two columns, with the 95 % interval over resampled candidates.

    Args:
        judged: The lower, the better; NaN where a candidate was not judged, (n,).
        truth: Likewise, (n,).
        pairs: Which pairs count, (n, n); all unless given.

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
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=_DRAWS).astype(float)
    low, high = np.nanpercentile(weighted_kendall_taus(x, y, drawn, pairs=wanted), [2.5, 97.5])
    return Agreement(candidates=count, pairs=number, tau=value, low=float(low), high=float(high))


def equal(latency_s: ArrayLike) -> NDArray[np.bool_]:
    """Which pairs lie within 5 % of one value, (n, n)."""
    values = np.asarray(latency_s, float)
    ratio = values[:, None] / values
    return np.asarray(np.maximum(ratio, 1 / ratio) <= BAND)


Judge = Callable[[Candidate], float | None]


def _judges(trained: Sequence[Candidate], rung: int, workload: Workload) -> Mapping[str, Judge]:
    """What judged candidates before they had the training of ``rung``; the lower, the better."""
    judges: dict[str, Judge] = {
        "parameters": lambda item: -float(item.design.arch.parameters()),
        "FLOPs of a prompt": lambda item: -_flops(item, workload),
        "scaling law, before any training": lambda item: item.trial.notes.get("law"),
        "shared weights": lambda item: item.trial.notes.get("supernet"),
    }
    for shorter in range(rung):
        lengths = [one["cpu_s"] for item in trained if (one := item.after(shorter)) is not None]
        if lengths:
            name = f"training of {float(np.median(lengths)):.0f} s"
            judges[name] = lambda item, shorter=shorter: _bits(item, shorter)  # type: ignore[misc]
    judges["quality model's belief before it"] = lambda item: _belief(item, rung)
    return judges


def _column(items: Sequence[Candidate], judge: Judge) -> Float64Array:
    values = [judge(item) for item in items]
    return np.array([np.nan if value is None else value for value in values])


def _bits(item: Candidate, rung: int) -> float | None:
    result = item.after(rung)
    return None if result is None else float(result["quantised_bits_per_byte"])


def _belief(item: Candidate, rung: int) -> float | None:
    held = item.trial.notes.get("believed", {}).get(str(rung))
    return None if held is None else float(held[0])


def _flops(item: Candidate, workload: Workload) -> float:
    return float(sum(placed.op.work().flops for placed in lower(item.design, workload, Phase.PREFILL)))
