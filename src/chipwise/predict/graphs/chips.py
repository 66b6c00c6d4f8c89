"""What the law for graphs needs of a chip that is known by its data sheet."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from chipwise.core.dtypes import DType
from chipwise.errors import Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.taught import FileResult
from chipwise.predict.graphs.law import Speeds, law

RUNTIME = "onnxruntime"  # of the fit
OWN_RUNTIMES = ("onnxruntime", "ort", "onnx")
NPU = "npu"
CALL_S = {"gpu": 5e-6, "cpu": 2e-6, "soc": 3e-6, "npu": 3e-6, "tpu": 5e-6, "accelerator": 3e-6}
"""Seconds to start an operator, for sheets without a figure: typical launches of runtimes."""
INSTEAD = {
    "fp64": ("fp64",), "fp32": ("fp32", "tf32", "fp16", "bf16", "int8"), "fp16": ("fp16", "bf16", "fp32", "int8"),
    "bf16": ("bf16", "fp16", "fp32"), "int8": ("int8", "fp16", "fp32"), "int4": ("int4", "int8", "fp16", "fp32"),
}  # fmt: skip
"""Formats in which a chip may compute a graph of a format, best first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SheetSpeeds:
    """Speeds of a chip, the format in which it computes the graph, and what was assumed."""

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
            f"{sheet.name} has no throughput for a graph in {dtype} (its sheet lists {listed}); name another part of "
            f"the chip, such as {sheet.name.partition(':')[0]}:gpu or :cpu, or a device file with a peak"
        )
    notes = []
    if used != dtype:
        notes.append(f"{sheet.name} lists no rate in {dtype}; the graph is priced in {used}")
    if any(engine.part == "npu" for engine in sheet.engines) and len({engine.part for engine in sheet.engines}) > 1:
        notes.append(f"priced on {sheet.name}'s GPU or CPU, not on its NPU, whose rates for files are not fitted")
    if sheet.launch_overhead is None:
        notes.append(f"the cost of starting an operator is assumed to be {1e6 * CALL_S[sheet.kind]:.0f} us")
    call_s = CALL_S[sheet.kind] if sheet.launch_overhead is None else sheet.launch_overhead_s
    narrow = peaks.get("int8", peaks[used])
    rates = {"fp32": peaks[used], "int8": narrow, "int4": peaks.get("int4", narrow), dtype: peaks[used]}
    speeds = Speeds(flops_per_s=rates, bytes_per_s=sheet.mem_bandwidth_bytes_per_s, call_s=law().call_s(call_s))
    return SheetSpeeds(speeds=speeds, dtype=used, notes=tuple(notes))


def runtime_key(name: str | None) -> str:
    """A runtime's name in results; the fit's if none is named.

    >>> runtime_key("ORT"), runtime_key("TensorRT"), runtime_key(None)
    ('onnxruntime', 'tensorrt', 'onnxruntime')
    """
    key = (name or RUNTIME).strip().lower()
    return RUNTIME if key in OWN_RUNTIMES else key


def measured_part(sheet: DeviceProfile) -> DeviceProfile:
    """The part of a taught chip, other than its NPU, on which most files ran; ``sheet`` if none did or it is a part."""
    files = () if sheet.taught is None or sheet.name != sheet.taught.base else sheet.taught.files
    parts = Counter(each.part for each in files if each.part != NPU).most_common(1)
    if not parts or not parts[0][0]:
        return sheet
    return replace(datasheet.load(f"{sheet.name.partition(':')[0]}:{parts[0][0]}"), taught=sheet.taught)


def results_on(sheet: DeviceProfile, runtime: str | None) -> tuple[FileResult, ...]:
    """The measured files of a part of a taught chip in one runtime. Default: the runtime of most of them."""
    part = sheet.name.partition(":")[2]
    files = [] if sheet.taught is None else [each for each in sheet.taught.files if each.part == part]
    usual = Counter(each.runtime for each in files).most_common(1)
    chosen = usual[0][0] if usual and runtime is None else runtime_key(runtime)
    return tuple(each for each in files if each.runtime == chosen)


def share_of_bytes(stored: str, used: str) -> float:
    """Bytes of a tensor in the format ``used`` over those in ``stored``.

    >>> share_of_bytes("fp32", "fp16")
    0.5
    """
    return DType.named(used).bits / DType.named(stored).bits
