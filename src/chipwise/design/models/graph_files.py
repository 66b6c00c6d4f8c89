"""Estimates and explains ONNX files of users: by the law on any chip, by a profile on this machine."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from chipwise.core.extras import require
from chipwise.core.results import ResultTable
from chipwise.core.statistics import percentile_interval
from chipwise.core.workers import answer_of
from chipwise.deploy import graphs as running
from chipwise.design.models.this_machine import is_here
from chipwise.errors import ChipwiseError, InputError, SpecError, Unsupported, counted
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.detect import SATURATING, detect
from chipwise.model import graphs as reading
from chipwise.model.graphs.graph import Graph, GraphOp
from chipwise.predict.cost.model import Predicted, per_second
from chipwise.predict.cost.whole_run import RunEstimate
from chipwise.predict.graphs.explanation import LAYOUT, GraphExplanation, explained
from chipwise.predict.graphs.law import Speeds, law
from chipwise.predict.graphs.npus import Npu, npu_of
from chipwise.predict.graphs.pricing import RUNTIME, Chip, OpTime, by_sheet, estimate_on, setting_of, timed

PROFILE_S = 900.0  # most seconds of the profiling process
COPIES = ("ReorderInput", "ReorderOutput")  # between the runtime's layouts
CONTROL = ("If", "Loop", "Scan")  # nodes whose time in a profile is that of the nodes inside them
FITTED_INSTRUCTIONS = "AVX512-VNNI"  # of the core of the fit
OWN_RUNTIMES = ("onnxruntime", "ort", "onnx")


class GraphTable(ResultTable[RunEstimate]):
    """Estimates of one ONNX file on several devices, fastest first."""


Shapes = Mapping[str, Sequence[int]]
Values = Mapping[str, float]


def as_graph(model: object, shapes: Shapes | None = None, values: Values | None = None) -> Path | None:
    """The path of an ONNX file; None if ``model`` is another model.

    Raises:
        InputError: ``shapes`` or ``values`` are given for another model.
    """
    if isinstance(model, str | Path) and Path(model).suffix.lower() == ".onnx":
        return Path(model)
    if shapes is not None or values is not None:
        raise InputError(f"shapes, values: only apply to .onnx files, not to {model}")
    return None


def refuse_others(file: Path, others: Mapping[str, object]) -> None:
    """Refuses arguments that do not apply to ONNX files.

    Raises:
        InputError: One of ``others`` is set.
    """
    for name, value in others.items():
        if value:
            raise InputError(
                f"{name}: does not apply to {file.name}, whose inputs have shapes of their own; give them with shapes "
                "(--shape)"
            )


def estimate_graph(
    path: str | Path,
    *,
    device: str | Path | DeviceProfile,
    shapes: Shapes | None = None,
    values: Values | None = None,
    runtime: str | None = None,
    weights: str | None = None,
    threads: int = 1,
) -> RunEstimate:
    """Predicts the time of one pass of an ONNX file by the law of its operators' classes.

    Args:
        path: The file.
        device: A data sheet, or ``here``, whose speeds are measured in a second.
        shapes: Sizes of open axes, by input or axis.
        values: Inputs that are fixed to a value.
        runtime: The runtime; the law was fitted to ONNX Runtime.
        weights: The format in which the chip computes. Default: the file's own.
        threads: Threads of this machine's runtime.

    Raises:
        InputError: The file cannot be read, an open axis is not given, or a shape or value does not fit.
        Unsupported: A custom operator, or a chip without a rate for the graph.
    """
    require("onnxruntime")
    graph = reading.read_graph(path, shapes, values)
    return estimate_on(graph, _chip(device, graph, weights=weights, runtime=runtime, threads=threads), runtime=runtime)


def estimate_graph_on(
    path: str | Path,
    devices: Sequence[str] | str,
    *,
    shapes: Shapes | None = None,
    values: Values | None = None,
    runtime: str | None = None,
    weights: str | None = None,
) -> GraphTable:
    """:func:`estimate_graph` on several devices, or on ``all`` that list a rate for the graph; fastest first."""
    require("onnxruntime")
    graph = reading.read_graph(path, shapes, values)
    names = datasheet.names() if devices == "all" else [devices] if isinstance(devices, str) else devices
    if not names:
        raise SpecError("name at least one device", field="devices")
    found = []
    for name in names:
        try:
            chip = _chip(name, graph, weights=weights, runtime=runtime, threads=1)
        except Unsupported:
            if devices != "all":
                raise
            continue
        found.append(estimate_on(graph, chip, runtime=runtime))
    found.sort(key=lambda each: each.latency_s)
    return GraphTable(f"{path} on {counted(len(found), 'device')}", found)


class GraphRows:
    """Answers to the rows of a table whose models are ONNX files; each file is read once for its shapes."""

    def __init__(self) -> None:
        self._graphs: dict[tuple[str, str, str], Graph] = {}

    def __call__(self, row: Mapping[str, str]) -> Mapping[str, object] | None:
        """The answer to a row, or the reason why there is none; None if its model is no ONNX file.

        The columns ``shape`` and ``value`` hold texts as on the command line, with semicolons between them.
        """
        if (file := as_graph(row.get("model", ""))) is None:
            return None
        key = (str(file), row.get("shape", ""), row.get("value", ""))
        try:
            if key not in self._graphs:
                shapes, values = ([part for part in text.split(";") if part.strip()] for text in key[1:])
                given = running.parse_shapes(shapes), running.parse_values(values)
                self._graphs[key] = reading.read_graph(file, *given)
            graph = self._graphs[key]
            runtime, weights = row.get("runtime") or None, row.get("weights") or None
            chip = _chip(row.get("device", ""), graph, weights=weights, runtime=runtime, threads=1)
        except ChipwiseError as error:
            return {"error": str(error)}
        found = estimate_on(graph, chip, runtime=runtime)
        seconds = found.metrics["latency_s"]
        ends = {"ttft_s": seconds.value, "low_s": seconds.low or "", "high_s": seconds.high or ""}
        return ends | {"provenance": "; ".join([found.provenance, *found.notes])}


def explain_graph(
    path: str | Path,
    *,
    device: str | Path | DeviceProfile,
    shapes: Shapes | None = None,
    values: Values | None = None,
    runtime: str | None = None,
    weights: str | None = None,
    threads: int = 1,
) -> GraphExplanation:
    """Explains where the time of a pass of an ONNX file goes. The arguments are those of :func:`estimate_graph`.

    On this machine the operators are measured, with the axes and values fixed.
    """
    require("onnxruntime")
    if not is_here(device):
        graph = reading.read_graph(path, shapes, values)
        chip = _chip(device, graph, weights=weights, runtime=runtime, threads=threads)
        return explained(graph, chip, estimate_on(graph, chip, runtime=runtime))
    with tempfile.TemporaryDirectory(prefix="chipwise-") as room:
        fixed = Path(room) / "fixed.onnx"
        graph = reading.read_graph(path, shapes, values, fixed_to=fixed)
        chip = _own_chip(graph, weights=weights, runtime=runtime, threads=threads)
        feed = Path(room) / "feed.npz"
        running.write_arrays(feed, running.feed_for(fixed, {}, {}, None))
        request = {"model": str(fixed), "feed": str(feed), "threads": threads, "folder": room, "timed": True}
        request["external"] = str(Path(path).absolute().parent)
        told = answer_of("chipwise.deploy.graphs.sessions", request, timeout_s=PROFILE_S, name="profile")
    pass_s = percentile_interval(told["pass_s"], 0.5, confidence=0.9)
    operators = measured_operators(graph, chip, told["rows"], pass_s.value)
    latency = Predicted(value=pass_s.value, low=pass_s.low, high=pass_s.high)
    predicted = estimate_on(graph, chip)
    shares: dict[str, float] = {}
    for each in operators:
        shares[each.kind] = shares.get(each.kind, 0.0) + (each.seconds or 0.0) / pass_s.value
    clock = "CPU time of the thread" if threads == 1 else f"{threads} threads"
    found = RunEstimate(
        model=str(path),
        setting=setting_of(graph, graph.dtype),
        device=chip.name,
        runtime=RUNTIME,
        metrics={"latency_s": latency, "runs_per_s": per_second(latency)},
        provenance=f"measured ({clock}; operators by the runtime's profile)",
        notes=(*_predicted(predicted), *graph.notes),
        parameters=predicted.parameters,
        shares=dict(sorted(shares.items(), key=lambda item: -item[1])),
    )
    return explained(graph, chip, found, operators)


def _predicted(found: RunEstimate) -> tuple[str, ...]:
    seconds = found.metrics["latency_s"]
    inside = (
        "" if seconds.low is None or seconds.high is None else f", {1e3 * seconds.low:.3g} to {1e3 * seconds.high:.3g}"
    )
    return (f"predicted without measuring: {1e3 * seconds.value:.3g} ms{inside}",)


def measured_operators(
    graph: Graph, chip: Chip, rows: Sequence[Mapping[str, object]], pass_s: float
) -> tuple[OpTime, ...]:
    """Operators with the seconds of a profile, scaled so that their sum is the time of a pass without the profiler.

    The profiler adds about the same to each node, so what the profile has too much is taken off evenly first.

    Args:
        graph: The graph.
        chip: This machine.
        rows: Nodes of the profile, with ``node``, ``operator`` and ``seconds``.
        pass_s: Seconds of a pass.
    """
    by_name: dict[str, GraphOp] = {}
    for op in graph.ops:
        by_name |= {op.output: op, op.name: op}
    rows = [row for row in rows if row["operator"] not in CONTROL]
    raw = [float(str(row["seconds"])) for row in rows]
    extra = min(max(0.0, (sum(raw) - pass_s) / max(1, len(raw))), law().node_s(chip.speeds))
    own = [max(each - extra, each / 10) for each in raw]
    scale = pass_s / sum(own) if sum(own) else 0.0
    found = []
    for row, seconds in zip(rows, own, strict=True):
        node = str(row["node"])
        known = by_name.get(node) or by_name.get(re.sub(r"_nchwc(_token_\d+)?$", "", node))
        if known is not None:
            found.append(timed(known, chip, seconds * scale))
            continue
        kind = LAYOUT if row["operator"] in COPIES else "unknown"
        found.append(
            OpTime(
                name=node,
                op_type=str(row["operator"]),
                kind=kind,
                module="",
                seconds=seconds * scale,
                flops=None,
                bytes=None,
                limit_s=None,
                bound=None,
            )
        )
    return tuple(found)


def _chip(
    device: str | Path | DeviceProfile, graph: Graph, *, weights: str | None, runtime: str | None, threads: int
) -> Chip | Npu:
    """The chip as the law sees it."""
    if not is_here(device):
        if threads != 1:
            raise InputError("threads: only applies to this machine; name cores, such as core-i7-13700k:4-cores")
        named = device if isinstance(device, DeviceProfile) else str(device)
        npu = npu_of(named, graph, runtime=runtime, weights=weights)
        if npu is not None:
            return npu
        return by_sheet(datasheet.load(named) if isinstance(named, str) else named, graph, weights)
    return _own_chip(graph, weights=weights, runtime=runtime, threads=threads)


def _own_chip(graph: Graph, *, weights: str | None, runtime: str | None, threads: int) -> Chip:
    """This machine as the law sees it; its speeds are measured."""
    if weights is not None and weights != graph.dtype:
        raise SpecError(f"this file computes in {graph.dtype} here; chipwise quantize writes others", field="weights")
    if runtime is not None and runtime.lower() not in OWN_RUNTIMES:
        raise SpecError(f"files are priced and measured here in {RUNTIME}, not in {runtime}", field="runtime")
    machine, found = detect(), running.probe(threads)
    reference = law().reference
    peak = found.peak("fp32")
    times = 1.0 if machine.instructions in SATURATING else reference.peak("int8") / reference.peak("fp32")
    speeds = Speeds(
        flops_per_s={"fp32": peak, "int8": times * peak}, bytes_per_s=found.bytes_per_s, call_s=found.call_s
    )
    cores = f"{threads} thread{'s' if threads > 1 else ''}"
    fitted = threads == 1 and machine.instructions == FITTED_INSTRUCTIONS
    return Chip(name=f"this machine ({machine.cpu}, {cores})", speeds=speeds, fitted=fitted, dtype=graph.dtype)
