"""Reads results of load tests (vLLM's ``bench serve``, inference-perf, genai-perf), and compares them with plans."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from chipwise.core import units
from chipwise.core.fields import convert, describe
from chipwise.core.files import read_json
from chipwise.core.results import Result
from chipwise.design.fleet.plan_files import read_plan
from chipwise.design.fleet.question import MOST_RATE
from chipwise.errors import SpecError, short
from chipwise.predict.load.outcome import STATISTICS

_VLLM = {"ttft": "ttft", "tpot": "tpot", "itl": "itl", "e2el": "e2e"}
_INFERENCE_PERF = {
    "time_to_first_token": "ttft", "time_per_output_token": "tpot", "inter_token_latency": "itl",
    "request_latency": "e2e",
}  # fmt: skip
_GENAI_PERF = {  # its inter-token latency is a mean per request
    "time_to_first_token": "ttft", "inter_token_latency": "tpot", "request_latency": "e2e",
}  # fmt: skip
MOST_S = 1e7  # longest plausible request: four months
_UNITS = {"ms": 1e-3, "s": 1.0, "us": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTest:
    """Result of a load test: latencies in seconds by metric, requests per second, and the tool that measured them."""

    tool: str
    times: Mapping[str, float]
    requests_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionCheck:
    """One latency metric: predicted and measured value, in seconds."""

    metric: str
    promised: float
    low: float
    high: float
    measured: float
    limit: float | None

    @property
    def inside(self) -> bool:
        """Whether the measured value lies in the predicted 90 % interval."""
        return self.low <= self.measured <= self.high

    @property
    def meets_limit(self) -> bool | None:
        """Whether the measured value met the limit; None if there was no limit."""
        return None if self.limit is None else self.measured <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Check(Result):
    """Comparison of a plan's best option with a load test, and the corrections derived from the test."""

    tool: str
    option: str
    rows_held: tuple[PredictionCheck, ...]
    rate_planned_per_s: float | None  # None if a trace determined the arrivals
    rate_measured_per_s: float | None
    step_scale: float | None
    request_s: float | None

    def headline(self) -> str:
        """Says how many measured times are in their predicted intervals, and how many limits were met."""
        inside = sum(each.inside for each in self.rows_held)
        limits = [each.meets_limit for each in self.rows_held if each.limit is not None]
        said = f"; {sum(map(bool, limits))} of {len(limits)} limits were met" if limits else ""
        return (
            f"{self.option}, {self.tool}: {inside} of {len(self.rows_held)} measured times are in their predicted "
            f"90 % intervals{said}"
        )

    def rows(self) -> list[Mapping[str, object]]:
        """One row per latency metric."""
        return [
            {
                "metric": each.metric, "promised": each.promised, "low": each.low, "high": each.high,
                "measured": each.measured, "inside": each.inside, "limit": each.limit, "met": each.meets_limit,
            }
            for each in self.rows_held
        ]  # fmt: skip


def read_load_test(path: Path) -> LoadTest:
    """Reads the results of a load test, in seconds.

    Raises:
        SpecError: The file is from none of the three tools, has no times, or a number is out of range.
    """
    data = read_json(path)
    if not isinstance(data, dict):
        raise SpecError("must contain a mapping of results", file=str(path))
    try:
        for reader in (_vllm, _inference_perf, _genai_perf):
            found = reader(data)
            if found is not None and found.times:
                return found
    except SpecError as error:
        raise error.inside(file=str(path)) from None
    raise SpecError(
        "must be a result of vllm bench serve (--save-result), inference-perf (summary_lifecycle_metrics.json) or "
        "genai-perf (profile_export_genai_perf.json)",
        file=str(path),
    )


def _measured(value: object, field: str, *, most: float, what: str) -> float | None:
    """Checks a measured number, which must be above zero; None if ``value`` is missing.

    Raises:
        SpecError: The value is not a number, or out of range.
    """
    if value is None:
        return None
    number: float = convert(float, value, field)
    if not 0 < number <= most:
        raise SpecError(f"{number:g} is not a {what} that a load test can measure", field=field)
    return number


def _times(
    row: Mapping[str, object], measure: str, names: Mapping[str, str], factor: float, field: str = ""
) -> dict[str, float]:
    """Maps the metrics of one latency to seconds; for TTFT, one of these metrics is ``ttft_p99``.

    ``names`` maps statistics, such as ``p99``, to keys of ``row``.
    """
    found = {}
    for statistic, name in names.items():
        value = row.get(name)
        if measure in ("tpot", "itl") and value == 0 and not isinstance(value, bool):
            continue  # no request generated a second token
        time = _measured(value, f"{field}{name}", most=MOST_S / factor, what="time")
        if time is not None:
            found[f"{measure}_{statistic}"] = factor * time
    return found


def _row(data: Mapping[str, object], name: str, field: str = "") -> Mapping[str, object]:
    """The statistics of one quantity, such as TTFT; empty if the quantity is missing.

    Raises:
        SpecError: The quantity's entry is not a mapping.
    """
    row = data.get(name)
    if row is not None and not isinstance(row, Mapping):
        raise SpecError(f"must be a mapping of statistics to numbers, not {describe(row)}", field=f"{field}{name}")
    return row or {}


def _rate(row: Mapping[str, object], name: str, field: str = "") -> float | None:
    """Requests per second; None if missing."""
    return _measured(row.get(name), f"{field}{name}", most=MOST_RATE, what="rate")


def _vllm(data: Mapping[str, object]) -> LoadTest | None:
    times: dict[str, float] = {}
    for name, measure in _VLLM.items():
        names = {statistic: f"{statistic}_{name}_ms" for statistic in STATISTICS}
        if f"median_{name}_ms" in data:
            names["p50"] = f"median_{name}_ms"
        times |= _times(data, measure, names, 1e-3)
    if not times:
        return None
    return LoadTest(tool="vllm bench serve", times=times, requests_per_s=_rate(data, "request_throughput"))


def _inference_perf(data: Mapping[str, object]) -> LoadTest | None:
    part = data.get("successes", data)
    if not isinstance(part, dict) or not isinstance(latency := part.get("latency"), dict):
        return None
    times: dict[str, float] = {}
    for name, measure in _INFERENCE_PERF.items():
        row, names = _row(latency, name, "latency."), {statistic: statistic for statistic in STATISTICS}
        if "p50" not in row:
            names["p50"] = "median"
        times |= _times(row, measure, names, 1.0, f"latency.{name}.")
    rate = _rate(_row(part, "throughput"), "requests_per_sec", "throughput.")
    return LoadTest(tool="inference-perf", times=times, requests_per_s=rate)


def _genai_perf(data: Mapping[str, object]) -> LoadTest | None:
    times: dict[str, float] = {}
    names = {statistic: statistic for statistic in STATISTICS} | {"mean": "avg"}
    for name, measure in _GENAI_PERF.items():
        row = _row(data, name)
        unit = row.get("unit", "ms")
        if not isinstance(unit, str) or unit not in _UNITS:
            raise SpecError(f"{short(unit)} is not a unit of time; known: {', '.join(_UNITS)}", field=f"{name}.unit")
        times |= _times(row, measure, names, _UNITS[unit], f"{name}.")
    rate = _rate(_row(data, "request_throughput") if times else {}, "avg", "request_throughput.")
    return LoadTest(tool="genai-perf", times=times, requests_per_s=rate)


def check(plan: Path, results: Path) -> Check:
    """Compares the best option of the plan in ``plan`` with the load test in ``results``.

    The corrections are the factor ``step_scale``, by which the measured time per token exceeds the predicted one, and
    ``request_s``, the seconds of TTFT that this factor does not explain (HTTP, tokenizer, network).

    Raises:
        SpecError: A file is not of the expected kind, or the plan and the test have no metric in common.
    """
    found = read_plan(plan).plan
    if found is None:
        raise SpecError("this plan is unfinished; finish it with chipwise plan ... --resume", file=str(plan))
    best, test = found.best, read_load_test(results)
    limits = found.question.limits
    held = tuple(
        PredictionCheck(
            metric=name,
            promised=item.value,
            low=item.value if item.low is None else item.low,
            high=item.value if item.high is None else item.high,
            measured=test.times[name],
            limit=limits.get(name),
        )
        for name, item in best.times.items()
        if name in test.times
    )
    if not held:
        raise SpecError("contains no metric that the plan predicts", file=str(results))
    by_name = {each.metric: each for each in held}
    scale = next(
        (
            by_name[name].measured / by_name[name].promised
            for name in ("tpot_mean", "tpot_p50")
            if name in by_name and by_name[name].promised > 0
        ),
        None,
    )
    late = None
    first = by_name.get("ttft_mean") or by_name.get("ttft_p50")
    if first is not None:
        late = max(first.measured - (scale or 1.0) * first.promised, 0.0)
    return Check(
        tool=test.tool,
        option=best.label,
        rows_held=held,
        rate_planned_per_s=found.question.rate_per_s if found.question.trace is None else None,
        rate_measured_per_s=test.requests_per_s,
        step_scale=scale,
        request_s=late,
    )


def verdict(each: PredictionCheck) -> str:
    """Says where the measured value lies relative to the 90 % interval, and whether the limit was met."""
    said = "inside" if each.inside else "below" if each.measured < each.low else "above"
    limit = (
        ""
        if each.limit is None
        else f"; limit {units.show(each.limit, 'time')} {'met' if each.meets_limit else 'broken'}"
    )
    return f"{said} the 90 % interval{limit}"
