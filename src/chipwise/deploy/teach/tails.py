"""P99s of a taught machine: the ratio of P99 to P50 in its measured runs, for each runtime."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

from chipwise.core.statistics import Z90
from chipwise.deploy.measure.measurement import Measurement
from chipwise.deploy.teach.observations import MeasuredRow
from chipwise.errors import MeasurementError
from chipwise.hardware.taught import TaughtTail
from chipwise.predict.served.tails import UNMEASURED, shipped

LEAST_SAMPLES = 30  # with fewer samples the highest one says little about a P99
PRIOR_RUNS = 2  # weight of the spread of all shipped runs, in runs of the machine


def tail_ratio(found: Measurement, name: str) -> float | None:
    """P99 / P50 of ``ttft`` or ``tpot``; None if the machine was busy, or samples are few or are means of steps."""
    if not found.clean or len(found.ttft_s if name == "ttft" else found.tpot_s) < LEAST_SAMPLES:
        return None
    try:
        return found.metric(f"{name}_p99") / found.metric(f"{name}_p50")
    except MeasurementError:
        return None


def tails_of(rows: Sequence[MeasuredRow]) -> tuple[TaughtTail, ...]:
    """ln(P99 / P50) of the machine's next run, for each runtime and for TTFT and TPOT.

    The uncertainty combines the standard error of the mean of n runs and the standard deviation between runs. The
    variance between runs combines the variance of chipwise's shipped runs, weighted like ``PRIOR_RUNS`` runs, and the
    variance of the runs in ``rows``.
    """
    law = shipped().law(UNMEASURED, "any")
    prior = ((law.above - law.below) / (2 * Z90)) ** 2
    logs: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        for name, ratio in (("ttft", row.ttft_tail), ("tpot", row.tpot_tail)):
            if row.runtime is not None and ratio is not None:
                logs[row.runtime, name].append(math.log(max(ratio, 1.0)))
    found = []
    for (runtime, name), each in logs.items():
        n, mean = len(each), sum(each) / len(each)
        variance = (PRIOR_RUNS * prior + sum((x - mean) ** 2 for x in each)) / (PRIOR_RUNS + n - 1)
        deviation = math.sqrt(variance * (1 + 1 / n))
        found.append(TaughtTail(runtime=runtime, time=name, mean=mean, deviation=deviation, runs=n))
    return tuple(found)
