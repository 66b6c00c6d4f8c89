"""Parses the limits and objectives of a run file, such as ``tpot_p99: "<= 3 ms"``.

The name of a metric may end in ``@`` and a device or task. ``tpot_p50@h100-sxm`` limits the metric on a device other
than the run's target; ``accuracy@organ-system`` sets a lower bound on a task's score.

A limit is hard or soft. The soft limit ``tpot_p99: {limit: "<= 3 ms", penalty: 10 %}`` may be exceeded; for each 100 %
of excess, 10 % are added to a design's bits per byte.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from chipwise.core import units
from chipwise.core.arrays import Float64Array
from chipwise.errors import SpecError, UnitError, nearest
from chipwise.training.tasks.metric import BITS_PER_BYTE, Metric, Request

T = TypeVar("T")


def _real_time(costs: Mapping[str, Any], request: Request) -> Any | None:
    """Seconds of computation per second of sound in the request."""
    ttft_s = costs.get("ttft_p50")
    return None if ttft_s is None or request.sound_s is None else ttft_s / request.sound_s


def _frames_per_s(costs: Mapping[str, Any], request: Request) -> Any | None:
    """Images per second of a single stream: a request's images divided by the seconds of its pass."""
    ttft_s = costs.get("ttft_p50")
    return None if ttft_s is None or request.frames is None else request.frames / ttft_s


DERIVED = {
    each.name: each
    for each in (
        Metric(name="rtf", title="real-time factor", short="RTF", of=_real_time, requires="sound"),
        Metric(name="fps", title="frames per second", short="frames/s", of=_frames_per_s, requires="image"),
    )
}
"""Metrics derived from other costs of a request."""
METRICS: dict[str, str] = {  # costs: name -> kind of unit; a task's own metric is not a cost
    "ttft_p50": "time",
    "ttft_p99": "time",
    "tpot_p50": "time",
    "tpot_p99": "time",
    "itl_p50": "time",  # gaps between a request's tokens, including those in which other requests' prompts run
    "itl_p99": "time",
    "tpot_sustained": "time",  # the median after minutes of load
    **{name: metric.unit for name, metric in DERIVED.items()},
    "mfu": "share",  # FLOPs per second of a prompt's pass, as a share of the dense peak
    "mbu": "share",  # bytes per second of a decode step, as a share of the memory bandwidth
    "throughput": "rate",  # new tokens of all requests / median seconds of a whole request
    "peak_memory": "bytes",
    "parameters": "count",
    "expected_loss": "count",  # nats per token that the scaling law expects
    "power": "power",  # mean watts while requests follow one another
    "joules_per_token": "energy",  # of a new token, including its share of prefill
    "usd_per_1k_tokens": "token_price",  # price of 1,000 new tokens, including their share of prefill
}
POWER_METRICS = ("power", "joules_per_token")
USED = ("mfu", "mbu")
"""Shares of the device's peak (FLOPs, memory bandwidth) that are used; the peak is from its data sheet or
calibration.
"""
GAPS = {"itl_p50": "tpot_p50", "itl_p99": "tpot_p99"}
"""Metrics of gaps between tokens -> the metric of decode steps that they equal if requests are served one at a time."""
SPENDING = (*POWER_METRICS, "usd_per_1k_tokens")
PER_TOKEN = (
    "tpot_p50",
    "tpot_p99",
    "itl_p50",
    "itl_p99",
    "tpot_sustained",
    *USED,
    "throughput",
    "joules_per_token",
    "usd_per_1k_tokens",
)
TIMED = frozenset({"ttft_p50", "ttft_p99", *PER_TOKEN, *DERIVED, *SPENDING})
"""Metrics whose measurement other processes on the machine disturb."""
MEASURED_METRICS = frozenset({"ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "peak_memory"})
MORE_IS_BETTER = frozenset({"throughput", "fps", *USED})
_LESS_IS_BETTER = ("time", "bytes", "energy", "token_price")  # kinds of units for which lower is better
LIMITS_ONLY = {"tpot_sustained": "tpot_p50: minimize"}  # metric -> the objective to use instead
TASK_METRICS: dict[str, str] = {"accuracy": "share", "spearman": "count"}  # metrics of tasks: ``metric@task``
Direction = Literal["minimize", "maximize"]
_DIRECTIONS: dict[object, Direction] = {
    "minimize": "minimize",
    "down": "minimize",
    "maximize": "maximize",
    "up": "maximize",
}
_LIMIT = re.compile(r"^\s*(<=|>=|<|>|≤|≥)\s*(.+)$")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """``metric`` must be at most (or at least) ``limit``, in SI units; ``text`` is the limit as the user wrote it.

    A ``penalty`` makes the limit soft: it is the share added to bits per byte for each 100 % of excess. ``limit`` is
    ``margin`` times tighter than the user's limit, so that designs predicted to meet ``limit`` meet the user's limit
    with the run's confidence.
    """

    metric: str
    op: Literal["<=", ">="]
    limit: float
    text: str
    penalty: float | None = None
    margin: float = 1.0

    @property
    def hard(self) -> bool:
        """Whether a design must meet the limit; a soft limit may be exceeded."""
        return self.penalty is None

    def holds(self, value: float) -> bool:
        """Whether ``value`` meets the limit."""
        return value <= self.limit if self.op == "<=" else value >= self.limit

    def excess(self, value: float) -> float:
        """Excess of ``value`` over the limit, as a share of the limit; at most 0 if the limit is met."""
        return (value / self.limit - 1.0) * (1 if self.op == "<=" else -1)

    def show(self, value: float) -> str:
        """``value`` as text, in a readable unit of the metric."""
        return units.show(value, unit_of(self.metric))

    def nearest(self, value: float) -> str:
        """Text of the tightest limit that ``value`` meets, rounded up for ``<=`` and down for ``>=``: ``<= 11.5 W``."""
        met = value * self.margin if self.op == "<=" else value / self.margin
        return f"{self.op} {self.show(met * (1.005 if self.op == '<=' else 0.995))}"

    @property
    def task(self) -> str | None:
        """The task whose score has this limit; None if the limit is on another metric."""
        metric, _, task = self.metric.partition("@")
        return (task or None) if metric in TASK_METRICS else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """A metric and whether to minimize or maximize it."""

    metric: str
    direction: Direction


def unit_of(metric: str) -> str:
    """The kind of a metric's unit; the metric's name may contain a device or a task."""
    name = metric.partition("@")[0]
    return TASK_METRICS.get(name) or METRICS.get(name, "count")


def is_cost(metric: str) -> bool:
    """Whether a metric is a cost, which is known without training; its name may contain a device."""
    return metric.partition("@")[0] in METRICS


def parse_constraints(
    data: Mapping[str, object],
    *,
    field: str = "constraints",
    tasks: Iterable[str] | None = (),
    quality: Metric = BITS_PER_BYTE,
) -> tuple[Constraint, ...]:
    """Parses limits: ``metric -> "<= quantity"``, ``{limit, penalty}`` for a soft limit, or a list for several limits.

    Args:
        data: The limits.
        field: Name of the field that holds the limits, for messages.
        tasks: Tasks that may have a limit; if it is None, every task may.
        quality: The task's quality metric.

    Raises:
        SpecError: A metric or task is unknown, a limit cannot be read, or limits contradict each other.
    """
    if not isinstance(data, Mapping):
        raise SpecError(f"must be a mapping of metrics to limits, not {data!r:.40}", field=field)
    found: list[Constraint] = []
    for metric, value in data.items():
        where = f"{field}.{metric}"
        limits = value if isinstance(value, list) else [value]
        if not limits:
            raise SpecError("the list is empty; write a limit, or leave the metric out", field=f"{field}.{metric}")
        if metric.partition("@")[0] in TASK_METRICS and metric != quality.name:
            _known_task(metric, where, tasks)
            found += [_floor(metric, item, where) for item in limits]
            continue
        _known(metric, where, quality)
        kind = quality.unit if metric == quality.name else METRICS[metric]
        if metric == quality.name and any(isinstance(item, Mapping) for item in limits):
            raise SpecError(
                f"penalties are added to the loss that {quality.title} is computed from, so a limit on it must be "
                "hard: write only the limit, without a penalty",
                field=where,
            )
        found += [
            _soft(metric, item, kind, where) if isinstance(item, Mapping) else _limit(metric, item, kind, where)
            for item in limits
        ]
    for metric in {item.metric for item in found}:
        _require_consistent(found, metric, metric, f"{field}.{metric}")
        _require_payable(found, metric, f"{field}.{metric}")
    for shorter, longer in (("ttft_p50", "ttft_p99"), ("tpot_p50", "tpot_p99"), ("itl_p50", "itl_p99")):
        _require_consistent(found, shorter, longer, field)
    return tuple(found)


def _require_consistent(constraints: Sequence[Constraint], least: str, most: str, field: str) -> None:
    """Refuses limits that no value meets: a lower bound on metric ``least`` above an upper bound on metric ``most``.

    By definition, ``most`` is never below ``least``, as P99 is never below P50; both may be the same metric.
    """
    for low in (item for item in constraints if item.metric == least and item.op == ">="):
        for high in (item for item in constraints if item.metric == most and item.op == "<="):
            if low.limit > high.limit:
                said = f"{low.text!r} contradicts {high.text!r}: no value meets both"
                if least != most:
                    said = f"{least} {low.text!r} contradicts {most} {high.text!r}: P50 is never above P99"
                raise SpecError(said, field=field)


def _soft(metric: str, data: Mapping[str, object], kind: str, field: str) -> Constraint:
    """Parses a soft limit."""
    example = 'such as {limit: "<= 3 ms", penalty: 10 %}'
    for name in data:
        if name not in ("limit", "penalty"):
            raise SpecError(f"unknown field {name!r}; a soft limit has limit and penalty, {example}", field=field)
    if "limit" not in data or "penalty" not in data:
        raise SpecError(
            f"a soft limit needs both `limit` and `penalty`, {example}; write a hard limit without them, such as "
            "'<= 3 ms'",
            field=field,
        )
    try:
        penalty = units.parse(data["penalty"], "share")
    except UnitError:
        raise SpecError(
            f"{data['penalty']!r} is not a share: write how much is added to bits per byte for each 100 % of excess, "
            "such as 10 %",
            field=f"{field}.penalty",
        ) from None
    if penalty <= 0:
        raise SpecError(
            f"must be above zero, not {data['penalty']}: a limit without a penalty has no effect",
            field=f"{field}.penalty",
        )
    hard = _limit(metric, data["limit"], kind, f"{field}.limit")
    return replace(hard, penalty=penalty, text=f"{hard.text} (soft, {100 * penalty:.4g} %)")


def _require_payable(constraints: Sequence[Constraint], metric: str, field: str) -> None:
    """Refuses a soft limit that has no effect, because a hard limit on the same metric is at least as tight."""
    mine = [item for item in constraints if item.metric == metric]
    for soft in (item for item in mine if not item.hard):
        for hard in (item for item in mine if item.hard and item.op == soft.op):
            if soft.holds(hard.limit):
                raise SpecError(
                    f"the hard limit {hard.text!r} is at least as tight as the soft limit {soft.text!r}, which "
                    "then has no effect; remove one of them",
                    field=field,
                )


def _known(metric: str, field: str, quality: Metric) -> None:
    if metric not in METRICS and metric != quality.name:
        name, sign, _ = metric.partition("@")
        raise SpecError(
            f"unknown metric; {nearest(name, TASK_METRICS if sign else [quality.name, *METRICS])}", field=field
        )


def _known_task(metric: str, field: str, tasks: Iterable[str] | None) -> None:
    name, _, task = metric.partition("@")
    known = None if tasks is None else list(tasks)
    if not task:
        example = known[0] if known else "organ-system"
        raise SpecError(f"name the task, such as {name}@{example}", field=field)
    if known == []:
        raise SpecError(f"this run has no tasks; list {task!r} under `tasks`", field=field)
    if known is not None and task not in known:
        raise SpecError(f"{task!r} is not listed under `tasks`; {nearest(task, known)}", field=field)


def _floor(metric: str, value: object, field: str) -> Constraint:
    """Parses a minimum score on a task (a share or a correlation)."""
    if isinstance(value, Mapping):
        raise SpecError(
            "tasks are evaluated only for the finalists, so their limits must be hard: write only the limit, without a "
            "penalty",
            field=field,
        )
    match = _LIMIT.match(str(value))
    example = "'>= 85 %'" if metric.startswith("accuracy") else "'>= 0.6'"
    if not match:
        raise SpecError(f"{value!r} is not a limit; write one such as {example}", field=field)
    if match[1] not in (">=", ">", "≥"):
        raise SpecError(f"{value!r} is not a lower bound; write the least value, such as {example}", field=field)
    try:
        limit = units.parse(match[2], "share")
    except UnitError:
        raise SpecError(
            f"{match[2]!r} is neither a percentage nor a share; write a lower bound such as {example}", field=field
        ) from None
    if not 0 < limit <= 1:
        percent = f"; for percent write '>= {match[2].strip()} %'" if 1 < limit <= 100 else ""
        raise SpecError(f"must be above 0 and at most 1 (100 %), not {match[2]}{percent}", field=field)
    return Constraint(metric=metric, op=">=", limit=limit, text=f">= {match[2].strip()}")


def _limit(metric: str, value: object, kind: str, field: str) -> Constraint:
    match = _LIMIT.match(str(value))
    if not match:
        raise SpecError(f"{value!r} is not a limit; write one such as '<= 3 ms'", field=field)
    op: Literal["<=", ">="] = "<=" if match[1] in ("<=", "<", "≤") else ">="
    limit = units.parse_field(match[2], kind, field)
    if limit <= 0:
        raise SpecError(f"the limit must be positive, not {match[2]}", field=field)
    if metric in USED and limit > 1:
        raise SpecError(f"a share of the device's peak is at most 100 %, not {match[2]}", field=field)
    return Constraint(metric=metric, op=op, limit=limit, text=f"{op} {match[2].strip()}")


def parse_objectives(
    data: Mapping[str, str], *, field: str = "objectives", quality: Metric = BITS_PER_BYTE
) -> tuple[Objective, ...]:
    """Parses objectives: ``metric -> minimize|maximize`` (or ``down`` and ``up``).

    Raises:
        SpecError: There is no objective, a metric is unknown, or a direction is unknown or wrong.
    """
    if not data:
        raise SpecError(f"name at least one, such as {quality.name}: {quality.direction}", field=field)
    found = []
    for metric, written in data.items():
        _known(metric, f"{field}.{metric}", quality)
        if metric in LIMITS_ONLY:
            raise SpecError(
                f"can only be a limit; use {LIMITS_ONLY[metric]} as the objective", field=f"{field}.{metric}"
            )
        direction = _DIRECTIONS.get(written)
        if direction is None:
            raise SpecError(f"{written!r} is not a direction; write minimize or maximize", field=f"{field}.{metric}")
        if metric in MORE_IS_BETTER and direction == "minimize":
            raise SpecError("more is better; write maximize", field=f"{field}.{metric}")
        less = METRICS.get(metric) in _LESS_IS_BETTER or metric in DERIVED.keys() - MORE_IS_BETTER
        if less and direction == "maximize":
            raise SpecError("less is better; write minimize", field=f"{field}.{metric}")
        found.append(Objective(metric=metric, direction=direction))
    return tuple(found)


def shares_asked(wanted: Iterable[Constraint | Objective]) -> set[str]:
    """Which of the metrics MFU and MBU appear in limits or objectives."""
    return {item.metric for item in wanted} & set(USED)


def with_gaps(values: Mapping[str, T], wanted: Container[str]) -> dict[str, T]:
    """Adds those metrics of gaps between tokens that are in ``wanted``.

    If requests run one at a time, the gap between two tokens is the time of a decode step.

    >>> with_gaps({"tpot_p50": 2.0, "tpot_p99": 3.0}, {"itl_p99"})
    {'tpot_p50': 2.0, 'tpot_p99': 3.0, 'itl_p99': 3.0}
    """
    return {**values, **{gap: values[step] for gap, step in GAPS.items() if gap in wanted and step in values}}


def derived(costs: Mapping[str, Any], request: Request) -> dict[str, Any]:
    """Metrics of :data:`DERIVED` that can be computed from a request's costs."""
    found = {name: metric.of(costs, request) for name, metric in DERIVED.items() if metric.of is not None}
    return {name: value for name, value in found.items() if value is not None}


def derived_intervals(intervals: Mapping[str, Sequence[float | None]], request: Request) -> dict[str, Any]:
    """Metrics of :data:`DERIVED` with the ends of their intervals; an unknown end is None.

    The low end of a rate follows from the high end of the time.
    """
    ends = [derived(dict(zip(intervals, each, strict=True)), request) for each in zip(*intervals.values(), strict=True)]
    found = {name: [each.get(name) for each in ends] for name in DERIVED if any(name in each for each in ends)}
    return {name: each[:-2] + each[:-3:-1] if name in MORE_IS_BETTER else each for name, each in found.items()}


def broken(constraints: Iterable[Constraint], values: Mapping[str, float]) -> list[Constraint]:
    """The hard constraints that ``values`` break; constraints on metrics without a value are not broken."""
    return [item for item in constraints if item.hard and item.metric in values and not item.holds(values[item.metric])]


def relative_excess(item: Constraint, value: Float64Array) -> Float64Array:
    """:meth:`Constraint.excess` for an array of values, (n,)."""
    over: Float64Array = (value / item.limit - 1.0) * (1 if item.op == "<=" else -1)
    return over


def soft_limit_on_latency(constraints: Iterable[Constraint]) -> bool:
    """Whether a soft limit applies to the time per token or to a metric that depends on it."""
    return any(not item.hard and item.metric in PER_TOKEN for item in constraints)


def total_penalty(constraints: Iterable[Constraint], values: Mapping[str, float]) -> float:
    """Penalty of all soft limits that ``values`` exceed, as a share of bits per byte; 0 if none is exceeded."""
    paid = 0.0
    for item in constraints:
        if item.penalty is not None and item.metric in values:
            paid += item.penalty * max(0.0, item.excess(values[item.metric]))
    return paid
