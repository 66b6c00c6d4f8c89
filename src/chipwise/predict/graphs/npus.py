"""Predicts ONNX files on Qualcomm's NPUs, and says whether the chip, the runtime and the format were in the fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from chipwise.errors import UnknownName
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.taught import Teaching
from chipwise.model.graphs.graph import Graph, GraphOp
from chipwise.predict.cost.model import Bound
from chipwise.predict.graphs import npu_law
from chipwise.predict.graphs.chips import NPU
from chipwise.predict.graphs.npu_chips import CHIPS, Chip, chip_named
from chipwise.predict.graphs.taught import RESULTS, models_in, taught_by, terms_by_results

RUNTIMES: Mapping[str, str] = {
    **dict.fromkeys(("qnn", "qnn_dlc", "qnn_context_binary", "onnxruntime-qnn", "precompiled_qnn_onnx"), "qnn"),
    **dict.fromkeys(("onnx", "onnxruntime", "ort"), "onnx"),
    **dict.fromkeys(("tflite", "litert"), "tflite"),
}
"""For each common name of a runtime, the law's name for it."""
PRECISIONS: Mapping[str, str] = {
    **dict.fromkeys(("float", "fp16", "fp32", "bf16", "fp64"), "float"),
    **dict.fromkeys(("w8a8", "int8", "uint8"), "w8a8"),
    **dict.fromkeys(("w4a16", "int4"), "w4a16"),
    "w8a16": "w8a16",
}
"""For each common name of a number format, the format in ``npu_law.WIDTHS``."""
BOUNDS = {"flops": Bound.COMPUTE, "values": Bound.COMPUTE, "bytes": Bound.MEMORY, "calls": Bound.LAUNCH}


@dataclass(frozen=True, slots=True, kw_only=True)
class Npu:
    """An NPU, and the runtime and the number format in which a graph runs. The law needs all three."""

    chip: Chip
    title: str  # title of the device, with its part
    runtime: str
    precision: str
    teaching: Teaching | None = None  # measured files that correct the law's terms of the chip

    @property
    def rates(self) -> Mapping[str, float]:
        """Maps the name of each kind of work to its rate: seconds per FLOP, byte, value or call."""
        terms = npu_law.law().terms
        if self.teaching is not None:
            terms = {**terms, **terms_by_results(self.chip, self.teaching.files, terms)}
        return npu_law.rates(terms, self.chip, self.runtime, self.precision)

    @property
    def fitted(self) -> bool:
        """Whether published runs of the chip are in the fit."""
        return self.chip.name in npu_law.law().chips

    @property
    def results(self) -> int:
        """Number of models that were measured on the chip in this number format to correct the law."""
        return 0 if self.teaching is None else models_in(self.precision, self.teaching.files)

    @property
    def halfwidth(self) -> float:
        """Half-width of the 90 % interval in logarithms."""
        situation = "family" if self.fitted else "taught" if self.results >= RESULTS else "chip"
        widths = npu_law.law().halfwidths
        return widths.get(f"{situation}|{self.precision}", max(widths.values()))

    @property
    def note(self) -> str:
        """Text on the runs in the fit, and on whether the chip and the number format are among them."""
        law = npu_law.law()
        few = self.results < RESULTS
        absent = [] if self.fitted or not few else [f"the chip ({self.title})"]
        absent += [] if f"family|{self.precision}" in law.halfwidths else [f"the format ({self.precision})"]
        told = f"the law was fitted to {law.source}"
        if self.teaching is not None:
            told += taught_by(self.teaching.label, self.teaching.files, self.precision)
        if absent:
            return f"{told}; not fitted: {', '.join(absent)}, so the interval is wide"
        if self.teaching is not None:
            return told
        return f"{told}; the chip, the runtime ({self.runtime}) and the format ({self.precision}) were fitted"


class NpuPrices:
    """Seconds of operators on one NPU."""

    def __init__(self, npu: Npu) -> None:
        self.npu, self._rates = npu, npu.rates

    def causes(self, op: GraphOp) -> dict[Bound, float]:
        """Seconds of all runs of an operator in a pass, split into computing, moving bytes, and calls."""
        found: dict[Bound, float] = {}
        for name, amount in npu_law.amounts_of(op, self.npu.precision).items():
            cause = BOUNDS[name.rpartition(" ")[2]]
            found[cause] = found.get(cause, 0.0) + amount * self._rates[name]
        return found

    def pass_s(self) -> float:
        """Seconds of a pass without any operators."""
        return self._rates[npu_law.PASS]

    def graph_s(self, graph: Graph) -> float:
        """Seconds of one pass of ``graph``."""
        return self.pass_s() + sum(sum(self.causes(op).values()) for op in graph.ops)


def npu_of(device: str | DeviceProfile, graph: Graph, *, runtime: str | None, weights: str | None) -> Npu | None:
    """The NPU that runs ``graph`` on a device.

    None if the device has no Qualcomm NPU, or if ``device`` names a part of the chip that is not the NPU. If ``device``
    names no part, the result is also None for a chip on which ``chipwise teach`` measured files on other parts only.

    Args:
        device: A data sheet, a data sheet's name, or the name of a device in AI Hub's list.
        graph: The graph.
        runtime: One of ``RUNTIMES``. Default: QNN.
        weights: One of ``PRECISIONS``. Default: the graph's own format.

    Raises:
        UnknownName: The runtime or the number format is unknown.
    """
    name = device if isinstance(device, str) else device.name
    whole, _, part = name.partition(":")
    if part.strip().lower() not in ("", "npu"):
        return None
    sheet = device if not isinstance(device, str) else None
    title = whole.strip()
    if sheet is None and title.lower() not in CHIPS:
        sheet = datasheet.load(whole)
    if sheet is not None:
        if sheet.vendor != "Qualcomm" or not any(engine.part == "npu" for engine in sheet.engines):
            return None
        title = sheet.name.partition(":")[0]
    files = () if sheet is None or sheet.taught is None else sheet.taught.files
    results = tuple(each for each in files if each.part == NPU)
    if files and not results and not part:
        return None  # the files that taught the chip ran on a different part
    stack = RUNTIMES.get((runtime or "qnn").strip().lower())
    if stack is None:
        raise UnknownName("runtime of NPUs", runtime or "", RUNTIMES)
    precision = PRECISIONS.get((weights or graph.dtype).strip().lower())
    if precision is None:
        raise UnknownName("number format of NPUs", weights or graph.dtype, PRECISIONS)
    teaching = replace(sheet.taught, files=results) if results and sheet and sheet.taught else None
    own = title if teaching is None else teaching.name
    return Npu(chip=chip_named(title), title=f"{own}:npu", runtime=stack, precision=precision, teaching=teaching)
