"""Estimates and explains users' ONNX files and PyTorch modules, by a fitted formula or by profiling on this machine."""

from __future__ import annotations

import contextlib
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from chipwise.core.extras import require
from chipwise.core.results import ResultTable
from chipwise.core.statistics import percentile_interval
from chipwise.core.workers import answer_of
from chipwise.deploy import graphs as running
from chipwise.deploy.graphs.modules import Inputs, ModelFile, Module, is_module, name_of, on_disk
from chipwise.design.models.this_machine import is_here
from chipwise.errors import ChipwiseError, InputError, SpecError, Unsupported, counted
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.detect import SATURATING, detect
from chipwise.model import graphs as reading
from chipwise.model.graphs.graph import CONTROL, Graph, GraphOp
from chipwise.predict.cost.model import Predicted, per_second
from chipwise.predict.cost.whole_run import RunEstimate
from chipwise.predict.graphs.chips import RUNTIME, runtime_key
from chipwise.predict.graphs.explanation import LAYOUT, GraphExplanation, explained
from chipwise.predict.graphs.law import Speeds, law
from chipwise.predict.graphs.npus import Npu, npu_of
from chipwise.predict.graphs.pricing import Chip, OpTime, by_sheet, estimate_on, setting_of, timed

PROFILE_S = 900.0  # most seconds of the profiling process
COPIES = ("ReorderInput", "ReorderOutput")  # operators that copy between the runtime's layouts
FITTED_INSTRUCTIONS = "AVX512-VNNI"  # instruction set of the core that the law was fitted on
COUNTS = ("batch", "tp", "pp", "ep", "dp")


class GraphTable(ResultTable[RunEstimate]):
    """Estimates of ONNX files or modules: sorted by time for one model, grouped by device for several models."""


Shapes = Mapping[str, Sequence[int]]
Values = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphQuestion:
    """A user's graph, with the inputs and settings for which its time is estimated.

    Attributes:
        model: The path of an ONNX file, a PyTorch module, or the name of a module. For any other model, only
            :meth:`applies` may be called.
        inputs: Examples of a module's inputs.
        shapes: Maps inputs to their shapes, or open axes (axes without a fixed size) to their sizes. For a module
            without ``inputs``: maps inputs to their shapes.
        values: Maps the names of inputs to constants that replace these inputs.
        runtime: The runtime. It must be ONNX Runtime if times come from the formula for operator times, which was
            fitted to measurements in ONNX Runtime.
        weights: The number format in which the chip computes. Default: that of the graph.
        threads: Threads of the runtime on this machine.
    """

    model: object
    inputs: Inputs | None = None
    shapes: Shapes | None = None
    values: Values | None = None
    runtime: str | None = None
    weights: str | None = None
    threads: int = 1

    def applies(self) -> bool:
        """Whether the model is an ONNX file or a PyTorch module.

        Raises:
            InputError: The model is something else, but ``inputs``, ``shapes`` or ``values`` are given.
        """
        if is_module(self.model) or (isinstance(self.model, str | Path) and is_onnx(self.model)):
            return True
        if self.inputs is not None or self.shapes is not None or self.values is not None:
            raise InputError(
                f"inputs, shapes, values: only apply to .onnx files and PyTorch modules; leave them out for {self.name}"
            )
        return False

    @property
    def name(self) -> str:
        """The model's name: the path of a file, the name of a module to import, or the class of a module object."""
        return name_of(self.model)

    @contextlib.contextmanager
    def opened(self, fixed_to: Path | None = None) -> Iterator[tuple[Graph, ModelFile]]:
        """Context manager that yields the graph and its ONNX file; the file may be temporary.

        Args:
            fixed_to: Path to which a copy of the graph is written. In the copy, open axes have fixed sizes, and the
                inputs in ``values`` are constants.

        Raises:
            InputError: The model cannot be read, the size of an open axis is missing, or a shape or value does not fit.
            Unsupported: The graph has a custom operator.
        """
        require("onnxruntime")
        with on_disk(self.model, inputs=self.inputs, shapes=self.shapes, values=self.values) as file:
            graph = reading.read_graph(file.path, file.shapes, file.values, fixed_to=fixed_to)
            yield replace(graph, path=file.name), file

    def read(self) -> Graph:
        """Reads the graph; see :meth:`opened`."""
        with self.opened() as (graph, _):
            return graph

    def refuse(self, **others: object) -> None:
        """Refuses arguments that do not apply to graphs. Numbers of chips or requests are accepted if they are 1.

        Raises:
            InputError: One of the arguments ``others`` is set.
        """
        for name, value in others.items():
            if value and not (name in COUNTS and value == 1):
                raise InputError(
                    f"{name}: does not apply to {self.name}, whose inputs have their own shapes; give shapes instead "
                    "(--shape)"
                )


def is_onnx(model: str | Path) -> bool:
    """Whether ``model`` is the path of an ONNX file."""
    return Path(model).suffix.lower() == ".onnx"


def estimate_graph(asked: GraphQuestion, device: str | Path | DeviceProfile) -> RunEstimate:
    """Predicts the time of one pass of a graph by a formula for operator times, which was fitted to measurements.

    Args:
        asked: The graph, with its inputs and settings.
        device: A data sheet, or ``here`` for this machine, whose speeds are then measured for about a second.

    Raises:
        InputError: The model cannot be read, the size of an open axis is missing, or a shape or value does not fit.
        Unsupported: The graph has a custom operator, or the chip lacks a rate that the graph needs.
    """
    graph = asked.read()
    return estimate_on(graph, _chip(device, graph, asked))


def estimate_graph_on(asked: GraphQuestion, devices: Sequence[str] | str) -> GraphTable:
    """Runs :func:`estimate_graph` for several devices, or for all supported ones (``all``); fastest first."""
    graph = asked.read()
    names = datasheet.names() if devices == "all" else [devices] if isinstance(devices, str) else devices
    if not names:
        raise SpecError("name at least one device", field="devices")
    found = []
    for name in names:
        try:
            chip = _chip(name, graph, asked)
        except Unsupported:
            if devices != "all":
                raise
            continue
        found.append(estimate_on(graph, chip))
    found.sort(key=lambda each: each.latency_s)
    return GraphTable(f"{asked.name} on {counted(len(found), 'device')}", found)


def asked_of_each(
    models: Sequence[str | Path | Module], asked: GraphQuestion, inputs: Inputs | None
) -> list[GraphQuestion]:
    """One :class:`GraphQuestion` per model if all models are ONNX files or modules; empty if none is.

    Args:
        models: The models.
        asked: The settings, which are the same for all models.
        inputs: Examples of the modules' inputs; ``asked.shapes`` then applies to the ONNX files only.

    Raises:
        InputError: Some models are ONNX files or modules and others are not; or no model is one of these, but
            ``inputs`` or shapes are given.
    """
    files = [model for model in models if GraphQuestion(model=model).applies()]
    if files and len(files) < len(models):
        other = next(model for model in models if model not in files)
        raise InputError(f"models: {other} is no ONNX file or module, but {files[0]} is; compare models of one kind")
    modules = [is_module(model) for model in models]
    found = []
    for model, module in zip(models, modules, strict=True):
        own = inputs if module or not any(modules) else None  # ONNX files take only shapes
        shapes = None if module and inputs is not None else asked.shapes
        found.append(replace(asked, model=model, inputs=own, shapes=shapes))
    return [each for each in found if each.applies()]


def compare_graphs(asked: Sequence[GraphQuestion], devices: Sequence[str] | None) -> GraphTable:
    """Runs :func:`estimate_graph_on` for several graphs; rows are grouped by device, fastest graph first."""
    found = [each for one in asked for each in estimate_graph_on(one, "all" if devices is None else devices)]
    order = list(dict.fromkeys(each.device for each in found))
    found.sort(key=lambda each: (order.index(each.device), each.latency_s))
    return GraphTable(f"{counted(len(asked), 'model')} on {counted(len(order), 'device')}", found)


class GraphRows:
    """Estimates the rows of a table whose models are ONNX files. A file is read only once for the same shapes."""

    def __init__(self) -> None:
        self._graphs: dict[tuple[str, str, str], Graph] = {}

    def __call__(self, row: Mapping[str, str]) -> Mapping[str, object] | None:
        """Columns with the estimate for a row, or with the error; None if the row's model is not an ONNX file.

        The columns ``shape`` and ``value`` have the syntax of the command line's options, separated by semicolons.
        """
        if not is_onnx(file := row.get("model", "")):  # not modules: reading a table must not run code
            return None
        key = (file, row.get("shape", ""), row.get("value", ""))
        try:
            if key not in self._graphs:
                shapes, values = ([part for part in text.split(";") if part.strip()] for text in key[1:])
                given = running.parse_shapes(shapes), running.parse_values(values)
                self._graphs[key] = reading.read_graph(file, *given)
            graph = self._graphs[key]
            runtime, weights = row.get("runtime") or None, row.get("weights") or None
            chip = _chip(row.get("device", ""), graph, GraphQuestion(model=file, runtime=runtime, weights=weights))
        except ChipwiseError as error:
            return {"error": str(error)}
        found = estimate_on(graph, chip)
        seconds = found.metrics["latency_s"]
        ends = {"ttft_s": seconds.value, "low_s": seconds.low or "", "high_s": seconds.high or ""}
        return ends | {"provenance": "; ".join([found.provenance, *found.notes])}


def explain_graph(asked: GraphQuestion, device: str | Path | DeviceProfile) -> GraphExplanation:
    """Explains where the time of a graph's pass goes. The arguments are those of :func:`estimate_graph`.

    On this machine, the operators are measured; for other devices, their times are predicted.
    """
    if not is_here(device):
        graph = asked.read()
        chip = _chip(device, graph, asked)
        return explained(graph, chip, estimate_on(graph, chip))
    with tempfile.TemporaryDirectory(prefix="chipwise-") as room:
        fixed, feed = Path(room) / "fixed.onnx", Path(room) / "feed.npz"
        with asked.opened(fixed_to=fixed) as (graph, file):
            chip = _own_chip(graph, asked)
            running.write_arrays(feed, running.feed_for(fixed, {}, {}, file.data))
            request = {"model": str(fixed), "feed": str(feed), "threads": asked.threads, "folder": room, "timed": True}
            request["external"] = str(file.path.absolute().parent)
            told = answer_of("chipwise.deploy.graphs.profiling", request, timeout_s=PROFILE_S, name="profile")
    pass_s = percentile_interval(told["pass_s"], 0.5, confidence=0.9)
    operators = measured_operators(graph, chip, told["rows"], pass_s.value)
    latency = Predicted(value=pass_s.value, low=pass_s.low, high=pass_s.high)
    predicted = estimate_on(graph, chip)
    shares: dict[str, float] = {}
    for each in operators:
        shares[each.kind] = shares.get(each.kind, 0.0) + (each.seconds or 0.0) / pass_s.value
    clock = "CPU time of the thread" if asked.threads == 1 else f"{asked.threads} threads"
    found = RunEstimate(
        model=asked.name,
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
    """A profile's operators with their seconds, corrected so that they add up to a pass without the profiler.

    The profiler adds about the same time to every node. This excess is first subtracted evenly from all nodes; then all
    times are multiplied by one factor.

    Args:
        graph: The graph.
        chip: This machine.
        rows: The profile's nodes, each with the keys ``node``, ``operator`` and ``seconds``.
        pass_s: Seconds of a pass without the profiler.
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


def _chip(device: str | Path | DeviceProfile, graph: Graph, asked: GraphQuestion) -> Chip | Npu:
    """The chip, with the speeds from which the fitted formula predicts operator times."""
    if not is_here(device):
        if asked.threads != 1:
            raise InputError(
                "threads: only applies to this machine; for others, name cores in the device: core-i7-13700k:4-cores"
            )
        named = device if isinstance(device, DeviceProfile) else str(device)
        npu = npu_of(named, graph, runtime=asked.runtime, weights=asked.weights)
        if npu is not None:
            return npu
        sheet = datasheet.load(named) if isinstance(named, str) else named
        return by_sheet(sheet, graph, asked.weights, asked.runtime)
    return _own_chip(graph, asked)


def _own_chip(graph: Graph, asked: GraphQuestion) -> Chip:
    """This machine as a chip; measures the speeds from which the fitted formula predicts operator times."""
    weights, runtime, threads = asked.weights, asked.runtime, asked.threads
    if weights is not None and weights != graph.dtype:
        raise SpecError(
            f"this file computes in {graph.dtype}; convert it to another format with chipwise quantize", field="weights"
        )
    if runtime_key(runtime) != RUNTIME:
        raise SpecError(f"on this machine, graphs are supported only in {RUNTIME}, not in {runtime}", field="runtime")
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
