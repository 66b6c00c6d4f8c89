"""P99 of a request's times: the P50, multiplied by a ratio that was learnt from measured runs (``data/tails.json``).

The ratio depends on the kind of runs and on which time is predicted. For gaps between tokens, it also depends on the
sizes of the requests, because a gap is long if the engine processes another request's prompt during the gap:

    ln(P99 / P50) = a + b ln(prompt tokens) + c ln(requests in flight / new tokens)

There are two kinds of measured runs: ``engine`` (vLLM under load, with queues) and ``processor`` (single requests to
ONNX Runtime on processors). For all other runs, no tail was measured: the law is fitted to both kinds together, and the
interval is so wide that it covers the difference between the kinds. Neither a P99 nor its interval is below the P50.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from chipwise.core.files import build
from chipwise.core.statistics import Z90
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import CORES, SERVING, Runtime
from chipwise.hardware.taught import TaughtTail
from chipwise.predict.cost.model import Predicted
from chipwise.predict.served.intervals import UNCHECKED_PROMPT

DATA = Path(__file__).parent / "data" / "tails.json"
UNMEASURED = "unmeasured"
TAILS = {"ttft_p99": "ttft_p50", "tpot_p99": "tpot_p50", "itl_p99": "itl_p50"}
"""The P99 metrics of an estimate, each with the median that is multiplied by a ratio to predict it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailLaw:
    """The law of ln(P99 / P50) for one kind of time: its terms, the range of its inputs, and its errors.

    ``terms`` are (a, b, c) or (a,). ``inputs`` are the smallest and the largest measured value of each input; other
    values are clipped to this range. To get the ends of the 90 % interval, ``below`` and ``above`` are added to
    ln(P99 / P50).
    """

    terms: tuple[float, ...]
    inputs: tuple[tuple[float, float], ...] = ()
    below: float
    above: float
    runs: int
    devices: tuple[str, ...]

    def log_ratio(self, inputs: Sequence[float]) -> float:
        """ln(P99 / P50) of requests with these inputs, at least 0."""
        clipped = [min(max(x, low), high) for x, (low, high) in zip(inputs, self.inputs, strict=False)]
        return max(0.0, self.terms[0] + sum(b * x for b, x in zip(self.terms[1:], clipped, strict=True)))

    def ratio(self, inputs: Sequence[float]) -> Predicted:
        """P99 / P50 with its 90 % interval; no end is below 1."""
        middle = self.log_ratio(inputs)
        low, high = (math.exp(max(0.0, middle + end)) for end in (self.below, self.above))
        return Predicted(value=math.exp(middle), low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True)
class TailLaws:
    """The law for each kind of runs and of time (``ttft``, ``tpot``, ``itl``, ``e2e``), and the sources of the runs."""

    source: Mapping[str, str]
    laws: Mapping[str, Mapping[str, TailLaw]]

    def law(self, kind: str, time: str) -> TailLaw:
        """The law for the kind of time ``time`` in runs of the kind ``kind``.

        If such times were not measured, it is the law that was fitted to all kinds together.
        """
        return self.laws.get(kind, {}).get(time) or self.laws[UNMEASURED]["any"]


@functools.cache
def shipped() -> TailLaws:
    """The bundled laws."""
    return build(TailLaws, json.loads(DATA.read_text()))


def inputs_of(prompt_tokens: float, new_tokens: float, batch: float) -> tuple[float, float]:
    """The inputs of a law: logarithms of the number of prompt tokens, and of requests in flight per new token."""
    return math.log(max(prompt_tokens, 1)), math.log(max(batch, 1) / max(new_tokens, 1))


def kind_of(runtime: Runtime, device: DeviceProfile, batch: float) -> str:
    """The kind of measured runs that is most like a runtime on a device; ``UNMEASURED`` if there is none."""
    if runtime.stack == CORES and batch == 1:
        return "processor"
    return "engine" if runtime.stack in SERVING and runtime.python and batch > 1 else UNMEASURED


def taught_tails(device: DeviceProfile, runtime: Runtime) -> Mapping[str, TaughtTail]:
    """Maps each kind of time to its P99 / P50 as ``chipwise teach`` measured it on this device in this runtime."""
    known = () if device.taught is None else device.taught.tails
    return {tail.time: tail for tail in known if tail.runtime == runtime.name}


def ratios(
    kind: str, *, prompt_tokens: int, new_tokens: int, batch: int, taught: Mapping[str, TaughtTail]
) -> dict[str, Predicted]:
    """Maps each P99 metric to its P99 / P50.

    Outside of serving engines, gaps between tokens have the same ratio as TPOT.

    Args:
        kind: See :func:`kind_of`.
        prompt_tokens: Tokens of a prompt.
        new_tokens: Tokens that a request generates.
        batch: Requests in flight.
        taught: See :func:`taught_tails`; these tails take precedence over the laws.
    """
    inputs = inputs_of(prompt_tokens, new_tokens, batch)
    times = {name: name.partition("_")[0] for name in TAILS}
    if kind != "engine":
        times["itl_p99"] = "tpot"
    return {
        name: _measured(taught[time]) if time in taught else shipped().law(kind, time).ratio(inputs)
        for name, time in times.items()
    }


def _measured(tail: TaughtTail) -> Predicted:
    half = Z90 * tail.deviation
    value, low, high = (math.exp(max(0.0, tail.mean + end)) for end in (0.0, -half, half))
    return Predicted(value=value, low=low, high=high)


def tail_of(median: Predicted, ratio: Predicted, halfwidth: float) -> Predicted:
    """P99 with its interval, if the errors of the median and of the ratio are independent.

    Args:
        median: P50.
        ratio: P99 / P50.
        halfwidth: Log half-width that is used if the median has no validated interval.
    """
    value = median.value * ratio.value
    own = halfwidth if median.log_halfwidth is None else median.log_halfwidth
    ends = [own if end is None else math.hypot(own, math.log(end / ratio.value)) for end in (ratio.low, ratio.high)]
    low = max(median.value * math.exp(-own), value * math.exp(-ends[0]))  # no P99 is below its P50
    return Predicted(value=value, low=low, high=value * math.exp(ends[1]))


def with_tails(
    metrics: Mapping[str, Predicted], found: Mapping[str, Predicted], halfwidth: float
) -> dict[str, Predicted]:
    """The P99 metrics of an estimate, for those medians that it has.

    Args:
        metrics: The estimate's metrics.
        found: The ratios from :func:`ratios`.
        halfwidth: Log half-width of the estimate's times, which is used if prefill was not validated.
    """
    unchecked = max(halfwidth, UNCHECKED_PROMPT)
    return {
        name: tail_of(metrics[median], found[name], unchecked) for name, median in TAILS.items() if median in metrics
    }


def said(kind: str, runtime: str, taught: Mapping[str, TaughtTail]) -> str:
    """One line on where the P99 metrics come from."""
    if taught:
        most = max(tail.runs for tail in taught.values())
        return f"each P99 is the P50 times a ratio from {most} measured run{'s' if most > 1 else ''} of this machine"
    found = shipped()
    if kind == UNMEASURED:
        runs = found.laws[UNMEASURED]["any"].runs
        return (
            f"no tail of such requests was measured in {runtime}: each P99 is the P50 times a ratio from all {runs} "
            "measured runs, so its interval is wide"
        )
    runs = sum(each.runs for each in found.laws[kind].values())
    return f"each P99 is the P50 times a ratio from {runs} measured runs ({found.source[kind]})"
