"""Predicts the seconds of each operator of a graph and of the whole pass, and what bounds each operator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.graphs.graph import Graph, GraphOp
from chipwise.predict.cost.model import Bound, Predicted, per_second
from chipwise.predict.cost.whole_run import RunEstimate
from chipwise.predict.graphs import image_transformers
from chipwise.predict.graphs.chips import RUNTIME, measured_part, results_on, runtime_key, share_of_bytes, speeds_of
from chipwise.predict.graphs.law import Speeds, law
from chipwise.predict.graphs.npus import Npu, NpuPrices
from chipwise.predict.graphs.taught import RESULTS, models_in, speeds_by_results, taught_by


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime:
    """The time of an operator: seconds of all its runs in one pass, and the least time that the chip's limits allow."""

    name: str
    op_type: str
    kind: str  # class of the law; "layout" for copies that the runtime adds, "unknown" if it cannot be counted
    module: str
    seconds: float | None  # None if the operator is neither counted nor measured
    flops: int | None
    bytes: int | None
    limit_s: float | None  # seconds at the chip's peak or at its bandwidth, whichever is longer
    bound: Bound | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chip:
    """The speeds and other facts of a chip that the law needs."""

    name: str
    speeds: Speeds
    fitted: bool  # whether the chip's speeds were measured, so that the fit's interval holds
    dtype: str  # number format of the arithmetic
    shrink: float = 1.0  # bytes of a tensor on the chip over those in the file
    notes: tuple[str, ...] = ()
    runtime: str = RUNTIME
    limits: Speeds | None = None  # speeds on the data sheet, if measured files correct ``speeds``
    results: int = 0  # number of measured files in the graph's format that correct ``speeds``
    taught: str = ""  # which results correct ``speeds``, as half a sentence
    scale: float = 1.0  # factor on all seconds, so that their sum is the time that the law for whole passes gives
    whole: float | None = None  # log half-width of the law for whole passes in PyTorch, where that law is used

    @property
    def halfwidth(self) -> float:
        """Half-width of the 90 % interval in logarithms."""
        if self.whole is not None:
            return self.whole
        taught = law().taught_halfwidth if self.results >= RESULTS else law().unfitted_halfwidth
        return law().halfwidth if self.fitted else taught


def by_sheet(sheet: DeviceProfile, graph: Graph, weights: str | None, runtime: str | None = None) -> Chip:
    """The chip of a data sheet, for a graph in its own format or in the format ``weights``.

    If files were measured on the chip (``chipwise teach``), they correct its speeds.

    Raises:
        Unsupported: The sheet has no rate for the graph.
    """
    sheet, wanted = measured_part(sheet), weights or graph.dtype
    found, results = speeds_of(sheet, wanted), results_on(sheet, runtime)
    stored = graph.dtype if graph.dtype in ("fp32", "fp16", "bf16", "fp64") else found.dtype
    shrink = share_of_bytes(stored, found.dtype) if found.dtype != "tf32" else 1.0
    chip = Chip(
        name=sheet.label,
        speeds=found.speeds,
        fitted=False,
        dtype=found.dtype,
        shrink=min(1.0, shrink),
        notes=found.notes,
        runtime=runtime or (results[0].runtime if results else RUNTIME),
    )
    if not results or sheet.taught is None:
        return _by_whole(chip, sheet, graph, wanted)
    listed = {name: speeds_of(sheet, name).speeds for name in {wanted, *(each.precision for each in results)}}
    return replace(
        chip,
        speeds=speeds_by_results(law(), results, listed, wanted),
        limits=found.speeds,
        results=models_in(wanted, results),
        taught=taught_by(sheet.taught.label, results, wanted),
    )


def _by_whole(chip: Chip, sheet: DeviceProfile, graph: Graph, wanted: str) -> Chip:
    """Scales the times on ``chip`` so that they sum to the prediction of the law for whole passes.

    Returns ``chip`` unchanged if that law does not cover the graph, or if its interval is not narrower than that
    of ``chip``.
    """
    pass_s = image_transformers.pass_s(graph, sheet, chip.runtime, wanted)
    if pass_s is None or pass_s.log_halfwidth is None or pass_s.log_halfwidth >= chip.halfwidth:
        return chip
    summed = law().pass_s(chip.speeds) + sum(_seconds(op, chip) or 0.0 for op in graph.ops)
    return replace(chip, scale=pass_s.value / summed, whole=pass_s.log_halfwidth)


def operators_on(graph: Graph, chip: Chip | Npu) -> tuple[OpTime, ...]:
    """Each operator with its predicted seconds, in the graph's order."""
    if isinstance(chip, Npu):
        prices = NpuPrices(chip)
        return tuple(_op_time(op, causes := prices.causes(op), _seconds_of(op, causes), None) for op in graph.ops)
    return tuple(timed(op, chip, _seconds(op, chip)) for op in graph.ops)


def timed(op: GraphOp, chip: Chip, seconds: float | None) -> OpTime:
    """Returns an operator with its ``seconds`` on a chip, and with what limits its speed."""
    limit_s = None
    causes: dict[Bound, float] = {}
    if op.flops is not None and op.kind != "view":
        limits = chip.limits or chip.speeds
        compute_s = op.runs * op.flops / limits.peak(op.dtype)
        memory_s = op.runs * op.bytes * chip.shrink / limits.bytes_per_s
        launch_s = op.runs * law().node_s(chip.speeds)
        limit_s = max(compute_s, memory_s)
        causes = {Bound.COMPUTE: compute_s, Bound.MEMORY: memory_s, Bound.LAUNCH: launch_s}
    return _op_time(op, causes, seconds, limit_s)


def _seconds_of(op: GraphOp, causes: Mapping[Bound, float]) -> float | None:
    return None if op.flops is None else sum(causes.values())


def _op_time(op: GraphOp, causes: Mapping[Bound, float], seconds: float | None, limit_s: float | None) -> OpTime:
    return OpTime(
        name=op.name,
        op_type=op.op_type,
        kind=op.kind,
        module=op.module,
        seconds=seconds,
        flops=None if op.flops is None else op.flops * op.runs,
        bytes=None if op.flops is None else op.bytes * op.runs,
        limit_s=limit_s,
        bound=max(causes, key=lambda cause: causes[cause]) if causes else None,
    )


def _seconds(op: GraphOp, chip: Chip) -> float | None:
    speeds = chip.speeds
    if chip.shrink != 1.0:
        speeds = Speeds(
            flops_per_s=speeds.flops_per_s, bytes_per_s=speeds.bytes_per_s / chip.shrink, call_s=speeds.call_s
        )
    seconds = law().seconds_of(op, speeds)
    return None if seconds is None else seconds * chip.scale


def estimate_on(graph: Graph, chip: Chip | Npu) -> RunEstimate:
    """Estimate of one pass of ``graph`` on a chip, with the 90 % interval of its time."""
    operators = operators_on(graph, chip)
    notes: tuple[str, ...]
    if isinstance(chip, Npu):
        name, dtype, pass_s, notes = chip.title, chip.precision, NpuPrices(chip).pass_s(), (chip.note,)
    else:
        name, dtype, pass_s, notes = (
            chip.name,
            chip.dtype,
            chip.scale * law().pass_s(chip.speeds),
            (_fitted(chip), *chip.notes),
        )
    seconds = pass_s + sum(each.seconds or 0.0 for each in operators)
    # what cannot be counted takes time as well, so there is no interval
    latency = Predicted.around(seconds, None if graph.uncounted else chip.halfwidth)
    return RunEstimate(
        model=graph.path,
        setting=setting_of(graph, dtype),
        device=name,
        runtime=chip.runtime,
        metrics={"latency_s": latency, "runs_per_s": per_second(latency)},
        provenance=f"predicted ({_law_of(chip)})",
        notes=(*notes, *graph.notes),
        parameters={"all": graph.parameters},
        shares=_shares(operators, seconds),
    )


def setting_of(graph: Graph, dtype: str) -> str:
    """Text on the shapes of the inputs, the fixed input values, and the number format."""
    sizes = [f"{each.name} {' x '.join(map(str, each.shape)) or 'a number'}" for each in graph.inputs]
    sizes += [f"{name} = {value}" for name, value in graph.values.items()]
    return ", ".join([*sizes, dtype])


def _law_of(chip: Chip | Npu) -> str:
    whole = isinstance(chip, Chip) and chip.whole is not None
    return "rates of image models in PyTorch" if whole else "law by class of operator"


def _fitted(chip: Chip) -> str:
    """Text on the runs in the fit, and on whether the chip, the runtime and the format are among them."""
    if chip.whole is not None:
        return "a plain vision transformer: one law predicts whole passes, another divides their time among operators"
    told = f"the law was fitted to {law().source}{chip.taught}"
    if chip.results >= RESULTS:
        return told
    absent = [] if chip.fitted else [f"the chip ({chip.name})"]
    absent += [] if runtime_key(chip.runtime) == RUNTIME else [f"the runtime ({chip.runtime})"]
    absent += [] if chip.dtype in ("fp32", "int8") else [f"the format ({chip.dtype})"]
    if not absent:
        return f"{told}; this machine's speeds were measured"
    return f"{told}; not fitted: {', '.join(absent)}, so the interval is wide"


def _shares(operators: Sequence[OpTime], seconds: float) -> dict[str, float]:
    """Maps each class of operators to its share of the time, largest share first."""
    found: dict[str, float] = {}
    for each in operators:
        found[each.kind] = found.get(each.kind, 0.0) + (each.seconds or 0.0) / seconds
    return dict(sorted(((name, share) for name, share in found.items() if share > 0), key=lambda item: -item[1]))
