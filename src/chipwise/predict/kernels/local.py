"""Times of kernels in single-user runtimes (llama.cpp, MLX, ExLlamaV2, OpenVINO and others) on a GPU, CPU, NPU or TPU.

A kernel's time is the smooth maximum of the times for its bytes and for its arithmetic, plus a fixed cost:

    t = ((bytes / B · e^a)³ + (FLOPs / P · e^g)³)^(1/3) + e^c

B is the memory bandwidth on the data sheet, and P is the FP32 rate of the engine's vector units; an engine is the GPU,
CPU, NPU or TPU that computes. The logarithms a, g and c are sums of named terms for the engine's class (NVIDIA's GPUs,
x86 CPUs, …), the format of the weights, the runtime and the chip's architecture. There are also slopes, which multiply
the logarithm of a figure of the chip, such as its bandwidth (chips with more bandwidth reach a smaller share of it) or
the ratio of the rates of matrix and vector units (the speed of prompt processing grows with a power of this ratio). A
chip whose architecture was not in the fit has only the terms of its class. ``g`` has one sum for matrix products of a
few rows (in decode, where weights are unpacked for each row) and another for matrix products of many rows (prompts).
Each pass also has a fixed cost, which is counted in the kernel that chooses the token.

The terms are fitted to published whole runs, to decode and prompts together: ``chipwise fit --from edge``.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import Size
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.ops.matmul import GroupedMatmul
from chipwise.model.ops.op import Op
from chipwise.model.ops.routing import ExpertsOp
from chipwise.predict.kernels.local_engines import (
    clock_hz,
    cores,
    driver_of,
    engine_architecture,
    engine_class,
    format_group,
    format_layout,
    gpu_units,
    integer_share,
    interval_class,
    market_of,
    part_of,
    product_gain,
    read_bytes_per_s,
    vector_flops_per_s,
    watts_a_flop,
)
from chipwise.predict.kernels.times import KernelTimes, Situation, together

DATA = Path(__file__).parents[1] / "data" / "local.json"
FEW_ROWS = 8  # most rows for which llama.cpp uses matrix-vector kernels
# Reference values, at which the slopes contribute nothing:
USUAL_BANDWIDTH, USUAL_CLOCK_HZ, USUAL_CORES = 300e9, 1.5e9, 8.0
USUAL_WATTS_A_FLOP = {"gpu": 5e-12, "cpu": 40e-12}
DRAWN_BYTES_A_FLOP = 0.125  # most bytes that CPU cores read and unpack per FP32 FLOP
EXPERT_ROWS = 8.0  # rows per expert at which padding doubles the time
TILE, IDLE_WAVES = (64.0, 128.0), 0.5  # tile of a GPU matrix product (rows, columns); idle share of the last wave
TAKEN_AT_ONCE = {"llama.cpp": 512.0, "mlx": 2048.0}  # positions of a prompt: llama.cpp's n_ubatch, MLX's prefill step
WIDTH = 4096.0  # values per row if an operator does not state its rows
SHARPNESS = 3.0  # sharpness of the maximum of the two times
STACKS = (
    "llama.cpp",
    "llama.cpp-vulkan",
    "ik-llama.cpp",
    "mlx",
    "mlx-vlm",
    "vllm-mlx",
    "exllamav2",
    "awq",
    "mlc",
    "openvino",
    "genie",
    "geniex",
    "geniex-llama.cpp",
    "litert-lm",
    "coreml",
    "executorch",
    "rkllm",
    "t-mac",
    "ipex-llm",
)  # fmt: skip


BUILT_ON = {
    "llama.cpp-vulkan": "llama.cpp",
    "ik-llama.cpp": "llama.cpp",
    "mlx-vlm": "mlx",
    "vllm-mlx": "mlx",
    "geniex": "genie",
    "geniex-llama.cpp": "llama.cpp",
    "t-mac": "llama.cpp",
    "ipex-llm": "llama.cpp",
}
"""For each stack, the stack with which it shares most code. It uses the terms of that stack in addition to its own."""
DISTANCES = ("seen", "kin", "sibling", "unseen")
"""What the fit has: the chip itself, another chip of its architecture, another chip of its class, or none of these."""
Sum = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of a kernel's three sums (bytes, arithmetic and fixed cost): names of terms, each with a factor."""

    bytes: Sum
    flops: Sum
    kernel: Sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Fitted terms, and the half-widths of 90 % intervals in logarithms.

    The keys of ``halfwidths`` are ``PHASE|DISTANCE|CLASS``; the class ``*`` is used for classes with too few runs.
    ``devices``, ``architectures``, ``classes`` and ``stacks`` list what the runs in the fit cover.
    """

    terms: Mapping[str, float]
    halfwidths: Mapping[str, float]
    devices: frozenset[str]
    architectures: frozenset[str]
    classes: frozenset[str]
    stacks: frozenset[str]  # ``CLASS|STACK``

    def sum(self, terms: Iterable[tuple[str, float]]) -> float:
        """The sum of the terms, each multiplied by its factor; a term without runs in the fit is 0."""
        return sum(self.terms.get(name, 0.0) * times for name, times in terms)

    def distance(self, device: DeviceProfile, part: str, stack: str = "") -> str:
        """How close the fit is to a chip, one of ``DISTANCES``; ``unseen`` if the fit has no runs of ``stack``."""
        if stack and f"{engine_class(device, part)}|{stack}" not in self.stacks:
            return "unseen"
        if f"{device.name.partition(':')[0]}|{part}" in self.devices:
            return "seen"
        if f"{part}|{device.architecture}" in self.architectures:
            return "kin"
        return "sibling" if engine_class(device, part) in self.classes else "unseen"

    def situation(self, device: DeviceProfile, part: str, stack: str = "") -> Situation:
        """``seen`` if the device is in the fit, ``sibling`` if another one of its class is, else ``unseen``."""
        found = self.distance(device, part, stack)
        return "seen" if found == "seen" else "unseen" if found == "unseen" else "sibling"

    def halfwidth(self, phase: str, device: DeviceProfile, part: str, stack: str = "") -> float:
        """Log half-width of a pass's 90 % interval; it is larger for devices and stacks that are far from the fit."""
        return self.class_halfwidth(phase, self.distance(device, part, stack), interval_class(device, part))

    def class_halfwidth(self, phase: str, distance: str, kind: str) -> float:
        """The half-width for the engine class ``kind``, or for all classes together if this one has too few runs."""
        found = self.halfwidths.get(f"{phase}|{distance}|{kind}")
        return self.halfwidths[f"{phase}|{distance}|*"] if found is None else found


def terms_of(device: DeviceProfile, part: str, stack: str, op: Op | KernelKind, *, few: bool) -> Terms:
    """The terms that apply to one kernel.

    Args:
        device: The chip.
        part: The part of the chip that computes: ``gpu``, ``cpu``, ``npu`` or ``tpu``.
        stack: One of ``STACKS``.
        op: The operator or its kind; its sizes are not used.
        few: Whether at most ``FEW_ROWS`` rows are multiplied.
    """
    kind, weights = engine_class(device, part), weights_of(op)
    chip, units = f"{part}|{device.architecture}", f"{part}|{engine_architecture(device, part)}"
    group, market = content_of(op), market_of(device, part)
    stacks = (stack, BUILT_ON[stack]) if stack in BUILT_ON else (stack,)
    phase = "few" if few else "many"
    layout = f"{stack} {format_layout(weights)}" if stack == "ik-llama.cpp" else format_layout(weights)
    own = "pass" if op.kind == "sample" else "kernel"
    read = [f"bytes|{kind}", f"bytes|{kind}|{group}", f"bytes|{chip}", *(f"bytes|{kind}|{name}" for name in stacks)]
    if part == "gpu" and device.kind == "soc" and units != chip:  # such GPUs read the processor's memory
        read.append(f"bytes:unit|{units}")
    done = [f"{phase}|{kind}", f"{phase}|{kind}|{layout}", f"{phase}|{units}"]
    done += [f"{phase}|{kind}|{name}" for name in stacks]
    cost = [f"{own}|{kind}", *(f"{own}|{kind}|{name}" for name in stacks)]
    if own == "kernel":
        cost += [f"kernel:work|{kind}|{theme_of(op)}", *([] if part == "cpu" else [f"kernel:work|{theme_of(op)}"])]
    if part == "npu" and own == "kernel":
        cost.append(f"kernel:driver|{stack}|{driver_of(device)}")
    if part == "cpu":
        read += ["bytes|cpu", f"bytes|cpu|{group}"]
        done += [f"{phase}|cpu", f"{phase}|cpu|{layout}", *(f"{phase}|cpu|{name}" for name in stacks)]
        cost += [f"{own}|cpu"]
    else:
        read += ["bytes", f"bytes|{group}"]
        done += [phase]
        cost += [own]
    if market:
        read.append(f"bytes|{kind}|{market}")
        done.append(f"{phase}|{kind}|{market}")
    if group == "cache":
        read += ["cache", f"cache|{kind}", *(f"cache|{kind}|{name}" for name in stacks)]
    if is_expert(op) and few:
        read.append(f"bytes|{kind}|experts")
    if is_expert(op) and not few:
        done += ["many|experts", f"many|{kind}|experts"]
    reads, does, costs = _slopes(device, part, stack, weights, phase)
    return Terms(
        bytes=(*((name, 1.0) for name in read), *reads),
        flops=(*((name, 1.0) for name in done), *does),
        kernel=(*((name, 1.0) for name in cost), *(costs if own == "kernel" else ())),
    )


def _slopes(device: DeviceProfile, part: str, stack: str, weights: str, phase: str) -> tuple[Sum, Sum, Sum]:
    """For each of the three sums, its slopes: pairs of a name and the data sheet's figure that the slope multiplies.

    Figures are logarithms, mostly relative to a usual chip.
    """
    kind = engine_class(device, part)
    wide = math.log(device.mem_bandwidth_bytes_per_s / USUAL_BANDWIDTH)
    clock = clock_hz(device, part)
    fast = math.log(clock / USUAL_CLOCK_HZ) if clock is not None and part == "gpu" else 0.0
    reads = [("bytes:bandwidth", wide), (f"bytes:bandwidth|{kind}", wide), (f"bytes:clock|{kind}", fast)]
    gain = math.log(product_gain(device, part, stack, weights))
    power = watts_a_flop(device, part)
    spare = math.log(power / USUAL_WATTS_A_FLOP[part]) if power is not None else 0.0
    if part == "cpu":
        threads = math.log(cores(device) / USUAL_CORES)
        return (
            tuple(reads),
            ((f"{phase}:product|cpu", gain), (f"{phase}:cores|cpu", threads), (f"{phase}:power|cpu", spare)),
            (("kernel:cores|cpu", threads),),
        )
    if phase == "few":
        return tuple(reads), (("few:integers", math.log(integer_share(device, part))),), ()
    does = [("many:matrix", gain), (f"many:matrix|{kind}", gain), ("many:power|gpu", spare)]
    return tuple(reads), tuple(does), ()


def demands(op: Op, device: DeviceProfile, part: str, stack: str) -> tuple[Size, Size, Size]:
    """Seconds for an operator's bytes, seconds for its arithmetic, and its number of launches.

    Prompts longer than ``TAKEN_AT_ONCE`` are processed in chunks, and each chunk reads the weights again. The time for
    arithmetic includes the waste of partly filled tiles of experts and of GPU units without a tile. However fast memory
    is, CPU cores read fewer than ``DRAWN_BYTES_A_FLOP`` bytes in the time of one FLOP at their peak rate.

    Returns:
        Bytes over the bandwidth at which ``part`` reads them, FLOPs over the vector units' FP32 rate, and launches; all
        are numbers or arrays.
    """
    work, rows = op.work(), np.maximum(rows_of(op), 1.0)
    at_once = TAKEN_AT_ONCE.get(BUILT_ON.get(stack, stack), math.inf)
    pieces = np.ceil(rows / at_once) if at_once < math.inf else np.ones_like(rows)
    moved = np.asarray(work.bytes + (pieces - 1) * work.weight_bytes, dtype=np.float64)
    memory_s = moved / read_bytes_per_s(device, part)
    if part == "cpu":
        drawn = DRAWN_BYTES_A_FLOP * vector_flops_per_s(device, part)
        memory_s = memory_s * (1 + (device.mem_bandwidth_bytes_per_s / drawn) ** SHARPNESS) ** (1 / SHARPNESS)
    flops = np.asarray(work.flops, dtype=np.float64) * _idle(op, np.minimum(rows, at_once), gpu_units(device, part))
    return memory_s, flops / vector_flops_per_s(device, part), pieces


def unpacking_s(op: Op, device: DeviceProfile, part: str) -> Size:
    """Seconds for an operator's bytes if memory were infinitely fast: on CPU cores the time to unpack them, else 0."""
    if part != "cpu":
        return 0.0
    return np.asarray(op.work().bytes, np.float64) / (DRAWN_BYTES_A_FLOP * vector_flops_per_s(device, part))


def _idle(op: Op, rows: Float64Array, units: float) -> Size:
    """Factor by which partly filled tiles and idle units slow matrix products down."""
    if isinstance(op, ExpertsOp | GroupedMatmul):
        if isinstance(op, ExpertsOp):
            each = rows * (op.topk * op.local_experts / op.experts) / op.local_experts
        else:
            each = rows / op.groups
        return np.where(rows > FEW_ROWS, 1 + EXPERT_ROWS / np.maximum(each, 1.0), 1.0)
    if units and hasattr(op, "weights") and hasattr(op, "n"):
        tiles = np.ceil(rows / TILE[0]) * np.ceil(op.n / TILE[1])
        return np.where(rows > FEW_ROWS, 1 + IDLE_WAVES * units / tiles, 1.0)
    return 1.0


def theme_of(op: Op | KernelKind) -> str:
    """The kind of work of an operator, on which its cost beyond bytes and arithmetic depends."""
    if op.kind in ("attention", "latent_attention"):
        return "attention"
    if is_expert(op) or op.kind == "route":
        return "experts"
    if op.kind in ("scan", "conv"):
        return "recurrence"
    return "elements" if getattr(op, "weights", None) is None else "product"


def content_of(op: Op | KernelKind) -> str:
    """What a kernel mainly reads: the KV cache, a recurrent state, or weights with a number of bits per value."""
    if op.kind in ("attention", "latent_attention"):
        return "cache"
    if op.kind == "scan":
        return "state"
    return format_group(weights_of(op))


def weights_of(op: Op | KernelKind) -> str:
    """The number format of a kernel's weights; fp16 if it has no weights."""
    return str(getattr(op, "weights", None) or "fp16")


def times(op: Op, device: DeviceProfile, *, stack: str, constants: Constants | None = None) -> KernelTimes:
    """Seconds of ``op`` (its sizes may be arrays) on ``device``.

    Args:
        op: The operator.
        device: Any data sheet.
        stack: One of ``STACKS``.
        constants: Fitted constants. Default: the bundled ones.

    Raises:
        Unsupported: The device lists no arithmetic rate.
    """
    factors = _shipped_factors if constants is None else functools.partial(_factors, constants)
    constants = constants or shipped()
    part = part_of(device, stack)
    memory_s, compute_s, pieces = np.broadcast_arrays(*demands(op, device, part, stack))
    kept_s = np.broadcast_to(unpacking_s(op, device, part), memory_s.shape)
    few = np.broadcast_to(rows_of(op) <= FEW_ROWS, memory_s.shape)
    found, width, reading_s, launch_s = (np.empty(memory_s.shape) for _ in range(4))
    for phase in (True, False):
        chosen = few == phase
        if not chosen.any():
            continue
        slower, harder, launch = factors(device, part, stack, KernelKind.of(op), phase)
        launch_s[chosen] = launch * pieces[chosen]
        done_s = compute_s[chosen] * harder
        found[chosen] = launch_s[chosen] + joined(memory_s[chosen] * slower, done_s)
        reading_s[chosen] = found[chosen] - launch_s[chosen] - joined(kept_s[chosen] * slower, done_s)
        width[chosen] = constants.halfwidth("decode" if phase else "prefill", device, part, stack)
    work = op.work()
    flops, moved, _ = together(work.flops, work.bytes, found)
    least_s = moved / device.mem_bandwidth_bytes_per_s
    return KernelTimes(
        latency_s=np.maximum(found, least_s),
        log_halfwidth=width,
        compute_s=flops / _fastest(device, part),
        memory_s=least_s,
        launch_s=launch_s,
        situation=constants.situation(device, part, stack),
        reading_s=reading_s,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelKind:
    """An operator without its sizes: the properties that determine its terms."""

    kind: str
    weights: str | None

    @classmethod
    def of(cls, op: Op) -> KernelKind:
        """The kind of ``op``."""
        return cls(kind=op.kind, weights=str(op.weights) if hasattr(op, "weights") else None)


def _factors(
    constants: Constants, device: DeviceProfile, part: str, stack: str, kind: KernelKind, few: bool
) -> tuple[float, float, float]:
    """The factors that multiply the seconds for bytes and the seconds for arithmetic, and the seconds of a launch."""
    terms = terms_of(device, part, stack, kind, few=few)
    bytes_, flops, kernel = (math.exp(constants.sum(each)) for each in (terms.bytes, terms.flops, terms.kernel))
    return bytes_, flops, kernel


@functools.lru_cache(maxsize=65536)
def _shipped_factors(
    device: DeviceProfile, part: str, stack: str, kind: KernelKind, few: bool
) -> tuple[float, float, float]:
    return _factors(shipped(), device, part, stack, kind, few)


def joined(memory_s: Float64Array, compute_s: Float64Array) -> Float64Array:
    """Smooth maximum of the times for bytes and for arithmetic."""
    total: Float64Array = (memory_s**SHARPNESS + compute_s**SHARPNESS) ** (1 / SHARPNESS)
    return total


def rows_of(op: Op) -> Float64Array:
    """Number of rows by which each weight matrix is multiplied, such as 1 in a decode step of one request."""
    for name in ("m", "tokens", "rows"):
        if hasattr(op, name):
            return np.asarray(getattr(op, name), dtype=np.float64)
    if hasattr(op, "query_tokens"):
        return np.asarray(op.query_tokens, dtype=np.float64)
    return np.asarray(getattr(op, "elements", 1.0), dtype=np.float64) / WIDTH


def is_expert(op: Op | KernelKind) -> bool:
    """Whether a kernel multiplies by the matrices of several experts."""
    return op.kind in ("experts", "looped_experts", "grouped_matmul")


@functools.cache
def _fastest(device: DeviceProfile, part: str) -> float:
    """FLOP/s of the part in its fastest format with at least 16 bits."""
    rates = (device.rate(name, part=part) for name in ("fp32", "fp16", "bf16"))
    return max(filter(None, rates), default=vector_flops_per_s(device, part))


@functools.cache
def shipped() -> Constants:
    """The bundled constants."""
    return constants_of(json.loads(DATA.read_text(encoding="utf-8")))


def constants_of(plain: Mapping[str, Any]) -> Constants:
    """Converts constants from their stored form."""
    known = {name: frozenset(plain[name]) for name in ("devices", "architectures", "classes", "stacks")}
    return Constants(terms=plain["terms"], halfwidths=plain["halfwidths"], **known)
