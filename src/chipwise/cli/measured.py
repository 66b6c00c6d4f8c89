"""Output of ``chipwise measure`` and ``chipwise measurements show``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

from chipwise import api
from chipwise.api import answers
from chipwise.cli.output import print_table, put, say, width
from chipwise.core import units
from chipwise.core.layout import Column, Table, numeric

SHARES = (0.5, 0.9, 0.99)
BARS = " ▁▂▃▄▅▆▇█"
BINS = 48
Interval = tuple[float, float | None, float | None]


def measurement_table(
    found: api.Measurement,
    *,
    promised: Mapping[str, Interval] | None = None,
    limits: Sequence[answers.Constraint] = (),
    used: answers.Efficiency | None = None,
) -> None:
    """Prints percentiles with their intervals, throughput, memory, utilisation, energy, distribution and verdict.

    Args:
        found: The measurement.
        promised: The predicted value of each metric, with the ends of its interval.
        limits: The limits of the run that the model comes from, by metric.
        used: MFU and MBU, if the design and the machine's peaks are known.
    """
    from chipwise.core.statistics import percentile_interval  # imported late because it imports numpy

    request = found.workload
    tokens = "tokens per text" if found.encodes else f"prompt tokens, {request.new_tokens} new tokens"
    asked = f"batch {request.batch}, {request.prompt_tokens} {tokens}"
    if audio_s := found.environment.get("audio_s"):
        asked = f"{request.batch} sound{'s' if request.batch > 1 else ''} of {units.show(audio_s, 'time')}"
    elif image := found.environment.get("image"):
        asked = f"{request.batch} image{'s' if request.batch > 1 else ''} of {' x '.join(map(str, image))}"
    elif inputs := found.environment.get("inputs"):
        asked = ", ".join(f"{name} {' x '.join(map(str, shape))}" for name, shape in inputs.items())
    quantities: tuple[Literal["ttft", "tpot"], ...] = ("ttft",) if found.encodes else ("ttft", "tpot")
    threads = f"{found.threads} thread{'s' if found.threads > 1 else ''}"
    table = Table(
        title=f"{found.name} · measured on {found.device}, {found.runtime} {found.runtime_version}, {threads} · "
        f"{asked}",
        columns=[Column(head="metric"), *numeric("measured (95 %)", "predicted (90 %)", "limit"), Column()],
    )
    row = partial(_row, promised=promised or {}, limits={limit.metric: limit for limit in limits})
    for quantity in quantities:
        for share in SHARES if quantity == "ttft" or found.steps_per_sample == 1 else (0.5,):
            known = percentile_interval(found.ttft_s if quantity == "ttft" else found.tpot_s, share)
            table.add(*row(f"{quantity}_p{share * 100:.0f}", _within(*known, "time"), "time", known))
    if (pace := _pace(found)) is not None:
        table.add(*pace, "", "", "")
    else:
        ttft_s, tpot_s = found.percentile("ttft", 0.5), found.percentile("tpot", 0.5)
        speed = float(answers.throughput(ttft_s, tpot_s, request.new_tokens, request.batch))
        table.add(*row("throughput", units.show(speed, "rate"), "rate", (speed, None, None)))
    peak = found.peak_memory_bytes
    shown = "unavailable" if peak is None else units.show(peak, "bytes")
    table.add(*row("peak_memory", shown, "bytes", None if peak is None else (peak, None, None)))
    if (pass_s := found.environment.get("ttft_cpu_p50")) and "inputs" in found.environment:
        table.add("CPU time of a pass (P50)", units.show(pass_s, "time"), "", "", "")
    table.add("CPU time", units.show(found.cpu_s, "time"), "", "", "")
    if used is not None:
        mfu = "unavailable" if used.mfu is None else units.show(used.mfu, "share", digits=2)
        table.add("MFU of prefill", mfu, "", "", "")
        table.add("MBU of decode", units.show(used.mbu, "share", digits=2), "", f"of {used.ceiling}", "")
    energy = "unavailable" if found.energy_j is None else units.show(found.energy_j, "energy")
    table.add("energy", energy, "", "", "")
    table.add("instruction set", found.instructions, "", "", "")
    print_table(table)
    if not found.encodes:
        say("each TPOT sample is the gap between two tokens (ITL), because requests run one after another")
    for quantity in quantities:
        put(histogram(found, quantity, bins=min(BINS, width() - 45)))
    _verdict(found)


def profile_table(rows: Sequence[Mapping[str, object]], *, most: int = 20) -> None:
    """Prints the slowest operators as the runtime ran them, their shares of the time, and their output shapes."""
    seconds = [float(str(row["seconds"])) for row in rows]
    heads = [Column(head="operator"), Column(head="node", prose=True), Column(head="outputs", prose=True)]
    table = Table(
        title=f"{len(rows)} operators, measured with the runtime's profiler, which adds some microseconds to each",
        columns=[*heads, *numeric("time (P50)", "share")],
    )
    for row, time_s in list(zip(rows, seconds, strict=True))[:most]:
        shapes = ", ".join("x".join(map(str, shape)) for shape in _lists(row["outputs"]))
        share = units.show(time_s / max(sum(seconds), 1e-12), "share")
        table.add(str(row["operator"]), str(row["node"]), shapes, units.show(time_s, "time"), share)
    print_table(table)


def fusions_table(found: answers.Fusions) -> None:
    """Prints how much longer a pass of a graph takes without fusions, and with grouped matrix products split up."""
    columns = [Column(head="the graph"), *numeric("operators", "a pass (P50)", "times as long (90 %)")]
    table = Table(title="a pass without fusions, or with grouped products one by one (timed in turns)", columns=columns)
    table.add("as it is", str(found.operators), units.show(found.seconds, "time"), "1")
    rows = [("without the runtime's optimisations", found.operators_without, found.seconds_without, found.slower)]
    if (alone := found.separate) is not None:
        name = f"its grouped products ({alone.groups}) one by one"
        rows.append((name, alone.operators, alone.seconds, alone.slower))
    for name, operators, seconds, slower in rows:
        table.add(name, str(operators), units.show(seconds, "time"), _ratio(slower))
    print_table(table)


def race_line(found: answers.Race, trials: int) -> None:
    """Prints the times of a graph in TVM and in ONNX Runtime, and their ratio."""
    here, there = (units.show(seconds, "time") for seconds in (found.seconds, found.other_s))
    say(
        f"timed in turns: {here} a pass in TVM after {trials:,} trials, {there} in ONNX Runtime; TVM takes "
        f"{_ratio(found.slower)} times as long; outputs differ by at most {found.difference:.2g} of the largest value"
    )


def _ratio(slower: Interval) -> str:
    """Returns text with a ratio of two times, and the ratio's interval if it is known."""
    value, low, high = slower
    return f"{value:.3g}" + ("" if low is None or high is None else f" ({low:.3g} to {high:.3g})")


def _lists(value: object) -> list[list[int]]:
    return [list(each) for each in value] if isinstance(value, list | tuple) else []


def _pace(found: api.Measurement) -> tuple[str, str] | None:
    """Throughput of a model that generates no tokens, from its median pass; None for a model that generates."""
    request, pass_s = found.workload, found.percentile("ttft", 0.5)
    if audio_s := found.environment.get("audio_s"):
        return "real-time factor", f"{pass_s / (request.batch * audio_s):.3g}"
    if found.environment.get("image"):
        return "images", units.show(request.batch / pass_s, "image_rate")
    if found.environment.get("inputs"):
        return "passes per second", f"{1 / pass_s:.3g}"
    if found.encodes:
        return "tokens read", units.show(request.batch * request.prompt_tokens / pass_s, "rate")
    return None


def _row(
    metric: str,
    shown: str,
    kind: str,
    measured: Interval | None,
    *,
    promised: Mapping[str, Interval],
    limits: Mapping[str, answers.Constraint],
) -> tuple[str, ...]:
    """Returns a metric's measured and predicted values, its limit, and whether the limit is met."""
    promise = units.span(*promised[metric], kind) if metric in promised else ""
    if (limit := limits.get(metric)) is None:
        return metric, shown, promise, "", ""
    if measured is None:
        return metric, shown, promise, limit.text, ""
    value, low, high = measured
    return metric, shown, promise, limit.text, _met(limit, value, high if limit.op == "<=" else low)


def _within(value: float, low: float | None, high: float | None, kind: str) -> str:
    """Returns text with a value and its interval, which may be unbounded."""
    if low is None or high is None:
        ends = " to ".join("unbounded" if end is None else units.show(end, kind) for end in (low, high))
        return f"{units.show(value, kind)} ({ends})"
    return units.span(value, low, high, kind)


def _met(limit: answers.Constraint, value: float, bound: float | None) -> str:
    """Text that says whether a limit is met; "probably" if the interval includes the limit or the P99 is unbounded."""
    if limit.holds(value):
        known = bound is not None or not limit.metric.endswith("_p99")
        return "met" if known and (bound is None or limit.holds(bound)) else "probably met"
    return "broken" if limit.hard else "exceeded, penalised"


def histogram(found: api.Measurement, quantity: Literal["ttft", "tpot"] | str, *, bins: int = BINS) -> str:
    """A histogram in one line, with a logarithmic axis up to P99.5, and the number of samples above P99.5."""
    import numpy as np

    samples = np.asarray(found.ttft_s if quantity == "ttft" else found.tpot_s, np.float64)
    low, high = float(samples.min()), float(np.quantile(samples, 0.995))
    high = max(high, low * 1.0001)
    counts, _ = np.histogram(np.log(samples[samples <= high]), bins=bins, range=(np.log(low), np.log(high)))
    top = max(int(counts.max()), 1)
    bars = "".join(BARS[min(8, -(-8 * int(count) // top))] for count in counts)
    beyond = int((samples > high).sum())
    tail = f", {beyond} up to {units.show(float(samples.max()), 'time')}" if beyond else ""
    return f"{quantity}  {units.show(low, 'time')} |{bars}| {units.show(high, 'time')}{tail}"


def _verdict(found: api.Measurement) -> None:
    steps = "" if found.encodes else f" and {len(found.tpot_s)} decode steps"
    samples = f"{len(found.ttft_s)} {'passes' if found.encodes else 'prefills'}{steps}"
    if found.clean:
        say(f"clean: the machine was quiet; {samples}")
    else:
        say(f"not clean: {'; '.join(found.reasons)}; {samples}")
    if found.drift is not None:
        say(drift_sentence(found))


def drift_sentence(found: api.Measurement) -> str:
    """Compares the machine's speed with that at calibration, and shows corrected medians if the speeds differ."""
    assert found.drift is not None
    phases = [("prefill", "TTFT", found.drift.prefill_slowdown)]
    if not found.encodes:
        phases.append(("decode", "TPOT", found.drift.decode_slowdown))
    speeds = " and ".join(f"{_slower(factor)} in {phase}" for phase, _, factor in phases)
    text = f"the machine is {speeds} than when it was calibrated"
    corrected = [(name, f"{name.lower()}_p50") for _, name, _ in phases]
    if all(found.corrected(metric) == found.metric(metric) for _, metric in corrected):
        return f"{text}, within the scatter of a quiet machine"
    return f"{text}; corrected " + ", ".join(f"{name} P50 {_corrected(found, metric)}" for name, metric in corrected)


def _slower(factor: float) -> str:
    return (
        f"{units.show(factor - 1, 'share', digits=2)} slower"
        if factor >= 1
        else f"{units.show(1 / factor - 1, 'share', digits=2)} faster"
    )


def _corrected(found: api.Measurement, metric: str) -> str:
    value, low, high = found.corrected_interval(metric)
    return _within(value, low, high, "time")


def sustained_lines(found: answers.Sustained, *, kept: bool) -> None:
    """Prints the speed over time and the fitted thermal model."""
    medians = [window.tpot_p50_s for window in found.windows]
    low, high = min(medians), max(medians)
    span = max(high - low, 1e-12)
    bars = "".join(BARS[1 + min(7, int(8 * (value - low) / span))] for value in medians)
    thermal = found.thermal
    shown = units.show(thermal.observed_s, "time")
    put(f"TPOT over {shown}: {units.show(low, 'time')} |{bars}| {units.show(high, 'time')}")
    if thermal.throttle_s is None:
        say("no slowdown: the machine sustains its initial speed")
    else:
        say(
            f"under load the machine keeps {units.show(thermal.sustained_share, 'share', digits=2)} of its speed; "
            f"half of the slowdown occurs within {units.show(thermal.throttle_s, 'time')}"
        )
    if not kept:
        say("predictions do not use these results: this machine is not calibrated in this runtime (chipwise calibrate)")
