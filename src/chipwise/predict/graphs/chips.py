"""Reads from a chip's data sheet the speeds from which the time of a graph is predicted (:mod:`.law`)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from chipwise.core.dtypes import DType
from chipwise.errors import Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.taught import FileResult
from chipwise.predict.graphs.law import Speeds, law

RUNTIME = "onnxruntime"  # the runtime of the runs to which the law was fitted
OWN_RUNTIMES = ("onnxruntime", "ort", "onnx")
NPU = "npu"
CALL_S = {"gpu": 5e-6, "cpu": 2e-6, "soc": 3e-6, "npu": 3e-6, "tpu": 5e-6, "accelerator": 3e-6}
"""Seconds to start an operator, by kind of device, for data sheets that list no launch overhead; typical values."""
INSTEAD = {
    "fp64": ("fp64",), "fp32": ("fp32", "tf32", "fp16", "bf16", "int8"), "fp16": ("fp16", "bf16", "fp32", "int8"),
    "bf16": ("bf16", "fp16", "fp32"), "int8": ("int8", "fp16", "fp32"), "int4": ("int4", "int8", "fp16", "fp32"),
}  # fmt: skip
"""For each number format of a graph, the formats in which a chip may compute the graph, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetSpeeds:
    """Speeds of a chip, the format in which it computes the graph, and notes on assumptions."""

    speeds: Speeds
    dtype: str
    notes: tuple[str, ...]


def speeds_of(sheet: DeviceProfile, dtype: str) -> SheetSpeeds:
    """The speeds of ``sheet`` for a graph in ``dtype``.

    Raises:
        Unsupported: The sheet has no rate in any format that could compute the graph.
    """
    peaks = {str(name.value): rate for name, rate in sheet.peak_flops_per_s.items()}
    order = INSTEAD.get(dtype, INSTEAD["fp32"])
    used = next((name for name in order if name in peaks), None)
    if used is None:
        listed = ", ".join(peaks) or "no format"
        raise Unsupported(
            f"{sheet.name} has no rate for a graph in {dtype} (its data sheet lists {listed}); name another part of "
            f"the chip, such as {sheet.name.partition(':')[0]}:gpu or :cpu, or a device file that states a peak"
        )
    notes = []
    if used != dtype:
        notes.append(f"{sheet.name} lists no rate in {dtype}; the graph is computed in {used}")
    if any(engine.part == "npu" for engine in sheet.engines) and len({engine.part for engine in sheet.engines}) > 1:
        notes.append(f"estimated for {sheet.name}'s GPU or CPU, not for its NPU, for which no rates were fitted")
    if sheet.launch_overhead is None:
        notes.append(f"the cost of starting an operator is assumed to be {1e6 * CALL_S[sheet.kind]:.0f} us")
    call_s = CALL_S[sheet.kind] if sheet.launch_overhead is None else sheet.launch_overhead_s
    narrow = peaks.get("int8", peaks[used])
    rates = {"fp32": peaks[used], "int8": narrow, "int4": peaks.get("int4", narrow), dtype: peaks[used]}
    speeds = Speeds(flops_per_s=rates, bytes_per_s=sheet.mem_bandwidth_bytes_per_s, call_s=law().call_s(call_s))
    return SheetSpeeds(speeds=speeds, dtype=used, notes=tuple(notes))


def runtime_key(name: str | None) -> str:
    """The runtime's name in measured results.

    If ``name`` is ``None``, it is ``onnxruntime``: the law's constants were fitted to runs in ONNX Runtime.

    >>> runtime_key("ORT"), runtime_key("TensorRT"), runtime_key(None)
    ('onnxruntime', 'tensorrt', 'onnxruntime')
    """
    key = (name or RUNTIME).strip().lower()
    return RUNTIME if key in OWN_RUNTIMES else key


def measured_part(sheet: DeviceProfile) -> DeviceProfile:
    """The part of a chip, such as its GPU, on which most files were measured by ``chipwise teach``.

    Files that ran on an NPU do not count. The result is ``sheet`` itself if it already describes one part, if no other
    files were measured, or if most of these files name no part.
    """
    files = () if sheet.taught is None or sheet.name != sheet.taught.base else sheet.taught.files
    parts = Counter(each.part for each in files if each.part != NPU).most_common(1)
    if not parts or not parts[0][0]:
        return sheet
    return replace(datasheet.load(f"{sheet.name.partition(':')[0]}:{parts[0][0]}"), taught=sheet.taught)


def results_on(sheet: DeviceProfile, runtime: str | None) -> tuple[FileResult, ...]:
    """The results of ``chipwise teach`` for files that ran in ``runtime`` on this part of the chip.

    ``sheet`` describes the part, such as ``NAME:gpu``. If it describes the whole chip, these are the files for which no
    part was named. The default runtime is the one in which most of this part's files were measured.
    """
    part = sheet.name.partition(":")[2]
    files = [] if sheet.taught is None else [each for each in sheet.taught.files if each.part == part]
    usual = Counter(each.runtime for each in files).most_common(1)
    chosen = usual[0][0] if usual and runtime is None else runtime_key(runtime)
    return tuple(each for each in files if each.runtime == chosen)


def share_of_bytes(stored: str, used: str) -> float:
    """Size of a tensor in the format ``used``, divided by its size in the format ``stored``.

    >>> share_of_bytes("fp32", "fp16")
    0.5
    """
    return DType.named(used).bits / DType.named(stored).bits
