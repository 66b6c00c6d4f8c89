"""Results of a replay: throughput, engine utilisation, and statistics of TTFT, TPOT, end-to-end time and queue time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.predict.load.disturbances import UNDISTURBED, Disturbances, mixed, weighted_quantiles
from chipwise.predict.load.engine import Served

MEASURES = ("ttft", "tpot", "itl", "e2e", "queue")
SHARES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}
STATISTICS = ("mean", *SHARES)
NETWORKED = ("ttft", "e2e")  # measures that include the delay of the network
METRICS = tuple(f"{measure}_{statistic}" for measure in MEASURES for statistic in STATISTICS)
"""Metrics, named by measure and statistic, such as ``ttft_p99``. The measures are: time to first token, a request's
mean time per token after the first, gaps between the tokens of all requests, end-to-end time, and time in the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Figures of one replay: seconds by metric name, throughput, and utilisation of the engine.

    ``metrics`` cover all answered requests; ``failed`` is the number of requests that were not answered.
    """

    metrics: dict[str, float]
    requests: int
    failed: int
    requests_per_s: float
    output_tokens_per_s: float
    mean_in_flight: float
    preemptions: int
    busy_share: float
    reading_share: float  # share of the busy time that goes to prompts


def times_of(served: Served) -> dict[str, Float64Array]:
    """For each measure, the seconds of each answered request. Requests with only one new token have no TPOT."""
    done = served.done
    first, last, arrival = served.first_s[done], served.last_s[done], served.arrival_s[done]
    after = served.load.new_tokens[done] - 1
    return {
        "ttft": first - arrival,
        "tpot": ((last - first) / np.maximum(after, 1))[after > 0],
        "e2e": last - arrival,
        "queue": np.maximum(served.scheduled_s[done] - arrival, 0.0),
    }


def metrics_of(*replays: Served, by: Disturbances = UNDISTURBED) -> dict[str, float]:
    """Mean and percentiles of each measure; a measure for which no request has a value is left out.

    Args:
        replays: The replay at the usual speed and, with neighbours, a second replay at the slow speed.
        by: The disturbances by neighbours and by the network.
    """
    found: dict[str, float] = {}
    parts = list(zip(replays, (1 - by.slow_share, by.slow_share), strict=False))
    times = [(times_of(part), share) for part, share in parts]
    for measure in times[0][0]:
        seconds, weights = mixed([(each[measure], np.full(len(each[measure]), share)) for each, share in times])
        if not len(seconds):
            continue
        alone = len(parts) == 1
        if measure in NETWORKED and by.network_p50_s:
            (seconds, weights), alone = by.delayed(seconds, weights), False
        found |= _statistics(measure, seconds, weights, alone=alone)
    gaps = [(part.spans.gaps(part.done), share) for part, share in parts]
    seconds, weights = mixed([(lengths, share * counts.astype(np.float64)) for (lengths, counts), share in gaps])
    if len(seconds):
        found |= _statistics("itl", seconds, weights, alone=False)
    return found


def _statistics(measure: str, seconds: Float64Array, weights: Float64Array, *, alone: bool) -> dict[str, float]:
    """Mean and percentiles of weighted times; ``alone`` says that all weights are equal."""
    shares = list(SHARES.values())
    values = np.quantile(seconds, shares) if alone else weighted_quantiles(seconds, weights, shares)
    mean = {f"{measure}_mean": float(np.average(seconds, weights=weights))}
    return mean | {f"{measure}_{name}": float(value) for name, value in zip(SHARES, values, strict=True)}


def outcome(served: Served, *, lanes: int = 1) -> Outcome:
    """The figures of a replay.

    Args:
        served: The replay.
        lanes: Number of lanes that shared the requests. Busy seconds and requests in flight are averaged over lanes.
    """
    done = served.done
    span = _span(served)
    after = np.maximum(served.last_s - served.arrival_s, 0.0)[done]
    tokens = int(served.load.new_tokens[done].sum())
    return Outcome(
        metrics=metrics_of(served),
        requests=int(done.sum()),
        failed=int((~done).sum()),
        requests_per_s=done.sum() / span,
        output_tokens_per_s=tokens / span,
        mean_in_flight=float(after.sum() / span / lanes),
        preemptions=int(served.preemptions.sum()),
        busy_share=min(served.busy_s / (span * lanes), 1.0),
        reading_share=served.reading_s / served.busy_s if served.busy_s else 0.0,
    )


def _span(served: Served) -> float:
    """Seconds from the first arrival to the last token."""
    arrivals = served.arrival_s[served.arrival_s >= 0]
    return max(float(served.last_s.max() - arrivals.min()), 1e-9)


def steady(served: Served, share: float = 0.15) -> Served:
    """The outcome without the first requests, which arrived while the engine was still nearly empty."""
    return served.taken(np.arange(int(share * len(served.load)), len(served.load)))


def over_time(served: Served, points: int = 200) -> dict[str, npt.NDArray[np.float64]]:
    """Running sequences, waiting sequences and the used share of the cache, at ``points`` evenly spaced times.

    Raises:
        ValueError: The replay recorded no timeline.
    """
    kept = served.timeline
    if kept is None:
        raise ValueError("the replay recorded no timeline")
    at = np.linspace(kept.at_s[0], kept.at_s[-1], points)
    place = np.searchsorted(kept.at_s, at, side="right") - 1
    return {
        "at_s": at,
        "running": kept.running[place].astype(np.float64),
        "waiting": kept.waiting[place].astype(np.float64),
        "cache_share": kept.cache_share[place],
    }
