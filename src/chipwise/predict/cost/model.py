"""The estimate of a design's cost: time and memory with intervals, the time of each operator, and provenance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from chipwise.core import units
from chipwise.core.fields import later
from chipwise.core.results import Result
from chipwise.errors import UnknownName
from chipwise.model.ops.work import Work


class Bound(StrEnum):
    """What limits the speed of an operator."""

    COMPUTE = "compute"
    MEMORY = "memory"
    LINK = "link"  # communication between devices
    LAUNCH = "launch"  # overhead of the runtime per node


@dataclass(frozen=True, slots=True, kw_only=True)
class OpCost:
    """The cost of one operator in a pass. Times are totals over ``count`` calls; ``work`` is the work of one call."""

    place: str
    kind: str
    latency_s: float
    bound: Bound
    work: Work
    count: int = 1
    compute_s: float | None = None  # from a data sheet: at the dense peak; if calibrated: the computing part
    memory_s: float | None = None  # from a data sheet: at the memory bandwidth; if calibrated: the streaming part
    launch_s: float | None = None
    doubt: float = 0.0  # log half-width for costs that were not timed; all operators have this error in common
    saved_s: float = later(0.0)  # seconds already subtracted from ``latency_s`` because a cache keeps the pass's bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """A value and its 90 % interval; ``low`` and ``high`` are None if the value has no validated interval."""

    value: float
    low: float | None = None
    high: float | None = None

    @classmethod
    def around(cls, value: float, log_halfwidth: float | None) -> Predicted:
        """``value`` with an interval of a factor exp(±``log_halfwidth``); no interval if ``log_halfwidth`` is None."""
        if log_halfwidth is None:
            return cls(value=value)
        factor = math.exp(log_halfwidth)
        return cls(value=value, low=value / factor, high=value * factor)

    @property
    def log_halfwidth(self) -> float | None:
        """Logarithm of the ratio of the interval's upper end to the value; None if there is no interval."""
        return None if self.high is None else math.log(self.high / self.value)


def combined(of: Callable[..., float], *parts: Predicted) -> Predicted:
    """Applies ``of`` to the values of ``parts``, to the lower ends of their intervals, and to the upper ends.

    This assumes that the errors of the parts are fully correlated. The result has no interval if a part has none.
    """
    value = of(*(part.value for part in parts))
    if any(part.low is None or part.high is None for part in parts):
        return Predicted(value=value)
    return Predicted(value=value, low=of(*(part.low for part in parts)), high=of(*(part.high for part in parts)))


def per_second(seconds: Predicted) -> Predicted:
    """Events per second if each event takes ``seconds``. Given TPOT, this is the tokens per second of one user."""
    low, high = (None if end is None else 1 / end for end in (seconds.high, seconds.low))
    return Predicted(value=1 / seconds.value, low=low, high=high)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CostEstimate(Result):
    """Predicted cost of one design under one workload, on one device or on several devices that share the model.

    ``memory_bytes`` maps each purpose to the bytes that it needs. For data sheets, these are bytes on the device that
    needs the most memory. For a calibrated machine, they are bytes of the serving process.
    Energy and price are missing if the facts that they need are not published; ``notes`` then name the missing facts.
    """

    ttft_s: float  # median
    tpot_s: float  # median
    peak_memory_bytes: float
    metrics: dict[str, Predicted]  # by name, such as ttft_p50, tpot_p50, peak_memory
    prefill: tuple[OpCost, ...]
    decode: tuple[OpCost, ...]
    model: str  # the cost model and its version
    profile: str | None = None  # digest of the machine profile
    device: str
    runtime: str
    devices: int = 1
    memory_bytes: dict[str, float] = field(default_factory=dict)
    bound: Bound | None = None  # limit of the whole decode step
    mfu: dict[str, float] = field(default_factory=dict)  # by phase: share of the dense peak
    mbu: dict[str, float] = field(default_factory=dict)  # by phase: share of the memory bandwidth
    provenance: str = "predicted"
    notes: tuple[str, ...] = ()
    weights: str = ""  # format of the matrices; in a mixture, of its experts
    defaults: tuple[str, ...] = ()  # those of "runtime" and "weights" that are the device's defaults
    decode_step_s: float | None = None  # for all requests in flight; ``tpot_s`` also has the wait for others' prompts
    parameters: int | None = None  # number in the whole model, including towers that the request does not use
    active_parameters: int | None = None  # number that one token uses; fewer than all in a mixture of experts
    on_card: str = later("")  # the part of the model on the card, if the host holds the rest
    does_not_fit: str = ""  # missing memory, and what would fit; the times assume that the model fits

    def __str__(self) -> str:
        """The cost of a request, and a tree of operators, each with its share of the time and its bound."""
        return text(self)

    def headline(self) -> str:
        """The device, the runtime and the times."""
        times = ", ".join(
            f"{name.upper()} {units.show(value, 'time')}"
            for name, value in (("ttft", self.ttft_s), ("tpot", self.tpot_s))
            if value
        )
        several = f"{self.devices} x " if self.devices > 1 else ""
        short = "does not fit; as if it did: " if self.does_not_fit else ""
        return f"{several}{self.device}, {self.served_as}: {short}{times}; {self.provenance}"

    @property
    def parameters_said(self) -> str:
        """Total and active parameters as text; empty if not counted."""
        return "" if self.parameters is None else parameters_said(self.parameters, self.active_parameters)

    @property
    def served_as(self) -> str:
        """The runtime and the weights' format, with defaults marked."""
        if not self.weights:
            return self.runtime
        if len(self.defaults) == 2:
            return f"{self.runtime}, {self.weights} (defaults for this chip)"
        runtime, weights = (
            f"{value} (default for this chip)" if name in self.defaults else value
            for name, value in (("runtime", self.runtime), ("weights", self.weights))
        )
        return f"{runtime}, {weights}"

    @property
    def prompts_wait_s(self) -> float:
        """The part of ``tpot_s`` during which a request waits while the prompts of other requests are processed."""
        return 0.0 if self.decode_step_s is None else max(0.0, self.tpot_s - self.decode_step_s)

    def rows(self) -> list[dict[str, object]]:
        """One row per metric, with its 90 % interval."""
        return [
            {"metric": name, "value": item.value, "low": item.low, "high": item.high}
            for name, item in self.metrics.items()
        ]

    def metric(self, name: str) -> Predicted:
        """A metric with its interval, found by its usual name.

        Raises:
            UnknownName: The metric is not predicted.
        """
        if name not in self.metrics:
            raise UnknownName("predicted metric", name, self.metrics)
        return self.metrics[name]


def text(found: CostEstimate) -> str:
    """The estimate as text: the costs of a request, then the operators of each pass."""
    several = f"{found.devices} x " if found.devices > 1 else ""
    times = f"TTFT {units.show(found.ttft_s, 'time')}"
    if found.decode:
        times += f", TPOT {units.show(found.tpot_s, 'time')}"
    memory = units.show(found.peak_memory_bytes, "bytes")
    lines = [found.does_not_fit] if found.does_not_fit else []
    lines += [f"{several}{found.device}, {found.served_as}: {times}, {memory}: {found.provenance}", *passes(found)]
    return "\n".join([*lines, *(f"note: {note}" for note in found.notes)])


def parameters_said(whole: int, active: int | None) -> str:
    """Text on the number of parameters and, if it differs, on the number of parameters that one token uses.

    >>> parameters_said(8_030_261_248, 8_030_261_248), parameters_said(30_532_122_624, 3_353_432_064)
    ('8.03 B', '30.5 B, of which a token uses 3.35 B')
    """
    said = units.show(whole, "count")
    return said if active in (None, whole) else f"{said}, of which a token uses {units.show(active, 'count')}"


def passes(found: CostEstimate) -> Iterator[str]:
    """The lines of text that show each pass as a tree of operators."""
    yield from tree("prefill" if found.decode else "the pass", found.prefill)
    yield from tree("decode step", found.decode)


def tree(name: str, costs: Sequence[OpCost]) -> Iterator[str]:
    """Yields the lines that show one pass as a tree of layers and operators; none if ``costs`` is empty."""
    if not costs:
        return
    total = sum(cost.latency_s for cost in costs)
    yield f"{name}: kernels {units.show(total, 'time')}"
    groups: dict[str, list[OpCost]] = {}
    for cost in costs:
        groups.setdefault(cost.place.split(".")[0], []).append(cost)
    for number, (group, members) in enumerate(groups.items(), start=1):
        last = number == len(groups)
        spent = sum(cost.latency_s for cost in members)
        yield f"{'└' if last else '├'}── {group}  {_spent(spent, total)}"
        for place, cost in enumerate(members, start=1):
            line = f"{' ' if last else '│'}   {'└' if place == len(members) else '├'}── "
            line += f"{cost.place.partition('.')[2] or cost.place}  {_spent(cost.latency_s, total)}  {cost.bound.value}"
            yield line + (f"  x{cost.count}" if cost.count > 1 else "")


def _spent(seconds: float, total: float) -> str:
    return f"{units.show(seconds, 'time')}  {units.show(seconds / total, 'share')}"
