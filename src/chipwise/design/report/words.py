"""Texts for numbers and metrics: labels, units, placeholders for missing numbers, and the terms of a task."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from chipwise.core import units
from chipwise.design.limits import DERIVED, METRICS, PER_TOKEN, TASK_METRICS
from chipwise.training.tasks.metric import Metric
from chipwise.training.tasks.protocol import Task, TaskLabels

UNKNOWN: Final = "unknown"
NOT_MEASURED: Final = "not measured"
_NAMES: Final = {  # metric -> full name, and name for table headers
    "ttft_p50": ("time to first token, P50", "TTFT P50"),
    "ttft_p99": ("time to first token, P99", "TTFT P99"),
    "tpot_p50": ("time per output token, P50", "TPOT P50"),
    "tpot_p99": ("time per output token, P99", "TPOT P99"),
    "itl_p50": ("gap between tokens, P50", "ITL P50"),
    "itl_p99": ("gap between tokens, P99", "ITL P99"),
    **{name: (f"{metric.title}, P50", metric.short) for name, metric in DERIVED.items()},
    "mfu": ("MFU of a prompt's pass", "MFU"),
    "mbu": ("MBU of a decode step", "MBU"),
    "throughput": ("tokens per second, all requests", "tokens/s"),
    "peak_memory": ("peak memory", "memory"),
    "power": ("mean power", "power"),
    "joules_per_token": ("energy of a new token", "energy/token"),
    "usd_per_1k_tokens": ("price of new tokens", "price"),
    "expected_loss": ("expected loss, nats per token of the law's text", "loss, nats/token"),
    "perplexity": ("perplexity per token", "perplexity"),
}
SERVED: Final = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "peak_memory")  # metrics of measurements
QUALITY: Final = ("loss", "test_loss")  # losses of any task, by their names in records
_OF_PASS: Final = ("ttft_p50", "ttft_p99")  # names used for the time of a whole request
_OF_TASKS: Final = {"accuracy": "accuracy", "spearman": "rank correlation"}


@dataclass(frozen=True, slots=True)
class Words:
    """The terms of a task: its metric, and the names of its data and requests."""

    task: Task

    @property
    def metric(self) -> Metric:
        """The task's quality metric."""
        return self.task.metric

    @property
    def labels(self) -> TaskLabels:
        """The task's names for its data and requests."""
        return self.task.labels

    def one_pass(self) -> bool:
        """Whether a request of the task is a single pass that generates no tokens."""
        return self.task.latency_metric not in PER_TOKEN

    def served(self) -> tuple[str, ...]:
        """Names of the metrics that a measurement of the task's requests can have."""
        return (*(name for name in SERVED if not (self.one_pass() and name in PER_TOKEN)), *self.labels.derived)

    def quality(self, loss: float) -> str:
        """A loss converted to the task's metric, as text: ``1.234 bits per byte``, ``92 % accuracy``."""
        metric = self.metric
        return f"{metric.text(loss)} {metric.title}"

    def entries(self, count: int | None = None) -> str:
        """The task's word for entries of data, with their number if given."""
        one, several = self.labels.entry
        return several if count is None else f"{count:,} {one if count == 1 else several}"

    def label(self, metric: str) -> str:
        """The metric's label; its name if it has no label."""
        if (found := of_task(metric)) is not None:
            if found[1] == "original":
                return "rank correlation with the original's cosine similarities, held-out pairs"
            return f"{_OF_TASKS[found[0]]} on {found[1]}, held-out items"
        if metric in QUALITY or metric == self.metric.name:
            part = "test" if metric.startswith("test_") else "validation"
            return f"{self.metric.title}, {part} {self.labels.data}"
        if self.one_pass() and metric in _OF_PASS:
            return f"{self.labels.latency}, {metric[-3:].upper()}"
        return _named(metric, 0)

    def short(self, metric: str) -> str:
        """A short name of the metric for table headers."""
        if (found := of_task(metric)) is not None:
            return f"{found[0]} on {found[1]}"
        if metric in QUALITY or metric == self.metric.name:
            name = self.metric.short or self.metric.title
            return f"{name}, test" if metric.startswith("test_") else name
        if self.one_pass() and metric in _OF_PASS:
            return f"time {metric[-3:].upper()}"
        return _named(metric, 1)

    def show(self, value: float | None, metric: str, *, missing: str = UNKNOWN) -> str:
        """The metric's value in a readable unit, or ``missing``."""
        if value is None or not math.isfinite(value):
            return missing
        if metric in QUALITY:
            return self.metric.text(value)
        if metric in ("perplexity", "expected_loss", self.metric.name) and kind(metric) == "count":
            return f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"
        if (found := of_task(metric)) is not None:
            return units.show(value, "share") if found[0] == "accuracy" else f"{value:.3f}"
        return units.show(value, kind(metric))

    def span(self, value: float | None, low: float | None, high: float | None, metric: str) -> str:
        """A value with its interval, such as ``1.2 ms (1 to 1.4)``."""
        if low is None or high is None:
            return self.show(value, metric)
        if value is None or kind(metric) == "count" or of_task(metric) is not None:
            return f"{self.show(value, metric)} ({self.show(low, metric)} to {self.show(high, metric)})"
        return f"{self.show(value, metric)} ({units.interval(value, low, high, kind(metric))})"


def role(name: str) -> str:
    """The label of a role; records store the reference design as ``baseline``."""
    return "reference design" if name == "baseline" else name


def of_task(metric: str) -> tuple[str, str] | None:
    """Splits a metric such as ``accuracy@organ-system`` into metric and task; None for metrics without a task."""
    name, _, task = metric.partition("@")
    return (name, task) if task and name in TASK_METRICS else None


def _named(metric: str, form: int) -> str:
    name, _, device = metric.partition("@")
    known = _NAMES[name][form] if name in _NAMES else name.replace("_", " ")
    return f"{known} on {device}" if device else known


def kind(metric: str) -> str:
    """The kind of unit that a metric has, such as ``time``."""
    return (TASK_METRICS | METRICS).get(metric.partition("@")[0], "count")


def si_name(metric: str) -> str:
    """The metric's name with its SI unit: ``tpot_p50_s``, ``peak_memory_bytes``."""
    return metric + {"time": "_s", "bytes": "_bytes", "power": "_w"}.get(kind(metric), "")


def quantity(value: float | None, unit_kind: str, *, missing: str = UNKNOWN) -> str:
    """``value`` in a readable unit, or the text ``missing`` if unknown; ``unit_kind`` is a kind in ``core.units``."""
    if value is None or not math.isfinite(value):
        return missing
    return units.show(value, unit_kind)


def count(value: float | None) -> str:
    """A count as text with thousands separators; counts from 1e15 on as ``about 3.2e+15``."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:,.0f}" if abs(value) < 1e15 else f"about {value:.1e}"


def limit(text: str) -> str:
    """A limit as the user wrote it, but with ≤ and ≥ signs."""
    return text.replace("<=", "≤").replace(">=", "≥")


def change(value: float, reference: float) -> str:
    """The difference of ``value`` from ``reference`` in words: ``4.1 % lower``, ``about the same``."""
    if reference == 0:
        return UNKNOWN
    share = value / reference - 1
    if abs(share) < 0.005:
        return "about the same"
    return (
        f"{abs(share) * 100:.2g} % {'higher' if share > 0 else 'lower'}"
        if abs(share) < 1
        else f"{value / reference:.3g} times"
    )


def signed(value: float, reference: float) -> str:
    """The relative difference of ``value`` from ``reference``, with a sign: ``−12 %``."""
    share = (value / reference - 1) * 100 if reference else math.nan
    if not math.isfinite(share):
        return UNKNOWN
    return f"{'−' if share < 0 else '+'}{abs(share):.1f} %"


def times(number: int, thing: str) -> str:
    """A number with a noun in the singular or plural: ``1 thread``, ``2 threads``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
