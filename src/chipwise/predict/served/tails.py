"""P99 of a request's times, as P50 times a ratio learnt from measured runs (``data/tails.json``).

A ratio depends on what was measured: the kind of runs, the time, and for gaps between tokens the requests, because a
gap is long if the engine also computes another request's prompt in it:

    ln(P99 / P50) = a + b ln(prompt tokens) + c ln(requests in flight / new tokens)

``engine`` are runs of vLLM under load, with queues; ``processor`` are single requests to ONNX Runtime on processors.
Nothing else has a measured tail: its ratio is that of all kinds together, and its interval as wide as they differ.
P99 is never below P50, and neither is its interval.
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
"""P99s of an estimate, and the medians that they are multiples of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TailLaw:
    """Law of ln(P99 / P50) of one time: its terms, the range of its inputs, and its errors.

    ``terms`` are (a, b, c) or (a,); ``inputs`` the least and most of each input that was measured, outside of which the
    nearest one counts; ``below`` and ``above`` what is added to the logarithm at the ends of the 90 % interval.
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
    """Laws by kind of runs and by time (``ttft``, ``tpot``, ``itl``, ``e2e``), and the source of the runs."""

    source: Mapping[str, str]
    laws: Mapping[str, Mapping[str, TailLaw]]

    def law(self, kind: str, time: str) -> TailLaw:
        """The law of a time; that of unmeasured runs if there is none."""
        return self.laws.get(kind, {}).get(time) or self.laws[UNMEASURED]["any"]


@functools.cache
def shipped() -> TailLaws:
    """The laws that chipwise ships."""
    return build(TailLaws, json.loads(DATA.read_text()))


def inputs_of(prompt_tokens: float, new_tokens: float, batch: float) -> tuple[float, float]:
    """The inputs of a law: logarithms of the prompt's tokens, and of requests in flight for each new token."""
    return math.log(max(prompt_tokens, 1)), math.log(max(batch, 1) / max(new_tokens, 1))


def kind_of(runtime: Runtime, device: DeviceProfile, batch: float) -> str:
    """Kind of measured runs that a runtime on a device belongs to, or ``UNMEASURED``."""
    if runtime.stack == CORES and batch == 1:
        return "processor"
    return "engine" if runtime.stack in SERVING and runtime.python and batch > 1 else UNMEASURED


def taught_tails(device: DeviceProfile, runtime: Runtime) -> Mapping[str, TaughtTail]:
    """Tails that were measured on a taught machine in this runtime, by time."""
    known = () if device.taught is None else device.taught.tails
    return {tail.time: tail for tail in known if tail.runtime == runtime.name}


def ratios(
    kind: str, *, prompt_tokens: int, new_tokens: int, batch: int, taught: Mapping[str, TaughtTail]
) -> dict[str, Predicted]:
    """P99 / P50 by name of the P99. On a processor, a gap between tokens is one step, as is its TPOT.

    Args:
        kind: See :func:`kind_of`.
        prompt_tokens: Tokens of a prompt.
        new_tokens: Tokens that a request generates.
        batch: Requests in flight.
        taught: See :func:`taught_tails`; they count before the laws.
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
    """P99 with an interval from the errors of the median and of the ratio, which are independent.

    Args:
        median: P50.
        ratio: P99 / P50.
        halfwidth: Half-width of the median's interval in logarithms, used if it was not validated.
    """
    value = median.value * ratio.value
    own = halfwidth if median.log_halfwidth is None else median.log_halfwidth
    ends = [own if end is None else math.hypot(own, math.log(end / ratio.value)) for end in (ratio.low, ratio.high)]
    low = max(median.value * math.exp(-own), value * math.exp(-ends[0]))  # no P99 is below its P50
    return Predicted(value=value, low=low, high=value * math.exp(ends[1]))


def with_tails(
    metrics: Mapping[str, Predicted],
    kind: str,
    *,
    prompt_tokens: int,
    new_tokens: int,
    batch: int,
    halfwidth: float,
    taught: Mapping[str, TaughtTail],
) -> dict[str, Predicted]:
    """The P99s of an estimate by name, for each median that it has.

    Args:
        metrics: The estimate's metrics.
        kind: See :func:`kind_of`.
        prompt_tokens: Tokens of a prompt.
        new_tokens: Tokens that a request generates.
        batch: Requests in flight at one replica.
        halfwidth: Half-width of the estimate's times in logarithms, for a prompt that was not validated.
        taught: See :func:`taught_tails`.
    """
    found = ratios(kind, prompt_tokens=prompt_tokens, new_tokens=new_tokens, batch=batch, taught=taught)
    unchecked = max(halfwidth, UNCHECKED_PROMPT)
    return {
        name: tail_of(metrics[median], found[name], unchecked) for name, median in TAILS.items() if median in metrics
    }


def said(kind: str, runtime: str, taught: Mapping[str, TaughtTail]) -> str:
    """One line on where the P99s come from."""
    if taught:
        most = max(tail.runs for tail in taught.values())
        return f"P99s are P50s times the ratio in {most} measured run{'s' if most > 1 else ''} of this machine"
    found = shipped()
    if kind == UNMEASURED:
        runs = found.laws[UNMEASURED]["any"].runs
        return (
            f"no tail of such requests was measured in {runtime}: P99s take the ratio of all {runs} measured runs, so "
            "their intervals are wide"
        )
    runs = sum(each.runs for each in found.laws[kind].values())
    return f"P99s are P50s times the ratio in {runs} measured runs ({found.source[kind]})"
