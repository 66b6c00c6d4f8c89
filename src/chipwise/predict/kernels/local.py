"""Kernels of runtimes that serve one user: llama.cpp, MLX, ExLlamaV2, OpenVINO and others, on any engine.

A kernel takes the time of its bytes and of its arithmetic, joined smoothly, and a cost of its own:

    t = ((bytes / B · e^a)³ + (FLOPs / P · e^g)³)^(1/3) + e^c

B is the memory bandwidth of the data sheet, P the FP32 rate of the engine's vector units. The three logarithms are sums
of named terms: of the engine's class (NVIDIA's GPUs, x86 CPUs, …), the weights' format, the runtime, the architecture,
and of two slopes, times the logarithm of what they go with: bandwidth (large chips reach a smaller share of theirs),
and what the matrix units are faster than the vector units (prompts gain a part of it). A chip whose architecture was
not in the fit has the terms of its class alone. ``g`` is one sum for products of a few rows (decoding, where weights
are unpacked for each row) and another for many (prompts). A pass has a cost of its own besides, counted where its
token is chosen.

The terms are fitted to whole runs measured by others, decoding and prompts together: ``chipwise fit --from edge``.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import weight_format
from chipwise.core.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile, Engine
from chipwise.ops import Op
from chipwise.predict.kernels.times import KernelTimes, Situation

DATA = Path(__file__).parents[1] / "data" / "local.json"
FEW_ROWS = 8  # llama.cpp multiplies up to so many rows by its matrix-vector kernels
USUAL_BANDWIDTH, USUAL_CLOCK_HZ = 300e9, 1.5e9  # where the slopes with them are zero
NPU_FLOPS_A_BYTE = 50.0  # the unit in which the work of NPUs is counted
WIDTH = 4096.0  # values of a row where an operator does not say how many rows it has
SHARPNESS = 3.0  # of the maximum of the two times
Part = Literal["gpu", "npu", "cpu", "tpu"]
STACKS = (
    "llama.cpp",
    "llama.cpp-vulkan",
    "ik-llama.cpp",
    "mlx",
    "mlx-vlm",
    "exllamav2",
    "awq",
    "mlc",
    "openvino",
    "genie",
)  # fmt: skip


BUILT_ON = {"llama.cpp-vulkan": "llama.cpp", "ik-llama.cpp": "llama.cpp", "mlx-vlm": "mlx"}
"""Stacks whose terms are added to those of another, which they share most code with."""
Sum = tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The three sums: names of their terms, and what each is multiplied by."""

    bytes: Sum
    flops: Sum
    kernel: Sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """Fitted terms, and the half-widths of 90 % intervals in logarithms.

    ``halfwidths`` is keyed ``PHASE|SITUATION|CLASS`` with the class ``*`` for those that too few runs were seen of.
    ``devices`` and ``classes`` are those that the fit had seen.
    """

    terms: Mapping[str, float]
    halfwidths: Mapping[str, float]
    devices: frozenset[str]
    classes: frozenset[str]

    def sum(self, terms: Iterable[tuple[str, float]]) -> float:
        """The sum of the terms, each times what it is multiplied by; one that no run spoke of is 0."""
        return sum(self.terms.get(name, 0.0) * times for name, times in terms)

    def situation(self, device: DeviceProfile, part: str) -> Situation:
        """What the fit had seen: the device, others of its class, or none."""
        if f"{device.name.partition(':')[0]}|{part}" in self.devices:
            return "seen"
        return "sibling" if engine_class(device, part) in self.classes else "unseen"

    def halfwidth(self, phase: str, device: DeviceProfile, part: str) -> float:
        """Half of the 90 % interval of a pass; never less for a device of which less is known."""
        return self.class_halfwidth(phase, self.situation(device, part), interval_class(device, part))

    def class_halfwidth(self, phase: str, situation: str, kind: str) -> float:
        """The half-width of an engine class, or of all where too few of its runs were seen."""
        found = self.halfwidths.get(f"{phase}|{situation}|{kind}")
        return self.halfwidths[f"{phase}|{situation}|*"] if found is None else found


def engine_class(device: DeviceProfile, part: str) -> str:
    """The class of the engine that runs the model, such as ``nvidia gpu``, ``x86 cpu``, ``npu``."""
    if part == "cpu":
        return (
            "apple cpu" if device.vendor == "Apple" else "x86 cpu" if device.vendor in ("Intel", "AMD") else "arm cpu"
        )
    if part == "gpu" and device.vendor in ("NVIDIA", "AMD", "Intel", "Apple"):
        return f"{device.vendor.lower()} gpu"
    return "other gpu" if part == "gpu" else part


def interval_class(device: DeviceProfile, part: str) -> str:
    """The class that an engine's interval is measured on: as its engine's, and what the chip was made for."""
    kind = engine_class(device, part)
    if kind == "nvidia gpu":
        return f"nvidia {_market(device)} gpu"
    if kind == "arm cpu":
        return "arm server cpu" if device.kind == "cpu" else "mobile cpu"
    return kind


def _market(device: DeviceProfile) -> str:
    if "Jetson" in device.title or device.kind == "soc":
        return "embedded"
    return "client" if any(word in device.title for word in ("GeForce", "RTX", "Quadro", "TITAN")) else "server"


def part_of(device: DeviceProfile, stack: str) -> Part:
    """The part of a system on a chip that ``stack`` runs on unless another is asked for."""
    parts = {engine.part for engine in device.engines}
    if stack == "genie" and "npu" in parts:
        return "npu"
    mobile = device.kind == "soc" and device.vendor not in ("Apple", "NVIDIA", "AMD")
    on_cpu = mobile or device.kind == "cpu"
    order: tuple[Part, ...] = ("cpu", "gpu", "tpu", "npu") if on_cpu else ("gpu", "tpu", "cpu", "npu")
    return next(part for part in order if part in parts)


def vector_flops_per_s(device: DeviceProfile, part: str) -> float:
    """FP32 rate of the part's vector units, of all cores together; of another format, scaled, where it lists no FP32.

    Makers of phones publish no rates of NPUs: theirs are counted as ``NPU_FLOPS_A_BYTE`` times the
    bandwidth of the memory.

    Raises:
        Unsupported: The part has no rate at all.
    """
    if part == "npu":
        return NPU_FLOPS_A_BYTE * device.mem_bandwidth_bytes_per_s
    engines = [engine for engine in device.engines if engine.part == part]
    for chosen in ([engine for engine in engines if engine.kind == "vector"], engines):
        for name, share in (("fp32", 1.0), ("fp16", 0.5), ("bf16", 0.5), ("int8", 0.25)):
            rates = [rate for engine in chosen if (rate := engine.rate(name)) is not None]
            if rates:
                return share * (sum(rates) if part == "cpu" else max(rates))
    raise Unsupported(f"{device.name} lists no arithmetic rate of its {part}")


def format_group(name: str) -> str:
    """Weight formats that are unpacked alike, by the bits of a value."""
    stored = weight_format(name)
    bits = stored.bits_per_weight
    if stored.dtype.value == "fp4":
        return "fp4"
    return next(group for least, group in ((12, "16"), (7.5, "8"), (5.2, "6"), (4.0, "4"), (0, "3")) if bits >= least)


def matrix_advantage(device: DeviceProfile, part: str) -> float:
    """How much faster the part's matrix units are than its vector units, at 16 or 8 bits; 1 where it has none."""
    vector = vector_flops_per_s(device, part)
    engines = [engine for engine in device.engines if engine.part == part]
    rates = [engine.rate(name) or 0.0 for engine in engines for name in ("fp16", "bf16", "int8")]
    return max(1.0, max(rates, default=0.0) / vector) if part != "npu" else 1.0


def integer_share(device: DeviceProfile, part: str) -> float:
    """Integer rate over the FP32 rate of the vector units: what unpacking weights for a few rows depends on.

    Half where a chip's sheet counts FP32 lanes that do no integers (NVIDIA's from Ampere to Hopper, but the A100 and
    A30; CUDA C++ programming guide, arithmetic throughput) or two instructions at once (RDNA 3 and later).
    """
    lanes = [
        each.fma_per_clock["fp32"].number for each in _vector_engines(device, part) if "fp32" in each.fma_per_clock
    ]
    if device.vendor == "NVIDIA" and 2017 <= device.year <= 2024 and lanes:
        return min(1.0, 64.0 / max(lanes))
    if part == "gpu" and device.architecture.startswith(("RDNA 3", "RDNA 4")):
        return 0.5
    return 1.0


def _vector_engines(device: DeviceProfile, part: str) -> list[Engine]:
    return [engine for engine in device.engines if engine.part == part and engine.kind == "vector"]


def clock_hz(device: DeviceProfile, part: str) -> float | None:
    """Clock of the part's vector units; None where the sheet has none."""
    clocks = [each.clock.number for each in _vector_engines(device, part) if each.clock is not None]
    return max(clocks) if clocks else None


def format_layout(name: str) -> str:
    """Weight formats that prompts' products treat alike: by bits, and by how blocks of them are laid out."""
    low = name.lower()
    family = "iq" if low.startswith("iq") else "k" if "_k" in low and low.startswith("q") else "plain"
    return f"{format_group(name)} {family}"


def terms_of(device: DeviceProfile, part: str, stack: str, op: Op, *, few: bool) -> Terms:
    """The terms of one kernel.

    Args:
        device: The chip.
        part: The part of it that computes.
        stack: One of ``STACKS``.
        op: The operator; of its sizes nothing is read.
        few: Whether at most ``FEW_ROWS`` rows are multiplied.
    """
    kind, chip, weights = engine_class(device, part), f"{part}|{device.architecture}", weights_of(op)
    group, market = content_of(op), interval_class(device, part)
    stacks = (stack, BUILT_ON[stack]) if stack in BUILT_ON else (stack,)
    phase = "few" if few else "many"
    experts = is_expert(op)
    wide = math.log(device.mem_bandwidth_bytes_per_s / USUAL_BANDWIDTH)
    read = ["bytes", f"bytes|{kind}", f"bytes|{group}", f"bytes|{kind}|{group}", f"bytes|{chip}"]
    read += [f"bytes|{kind}|{name}" for name in stacks]
    done = [phase, f"{phase}|{kind}", f"{phase}|{kind}|{format_layout(weights)}", f"{phase}|{chip}"]
    done += [f"{phase}|{kind}|{name}" for name in stacks]
    own = "pass" if op.kind == "sample" else "kernel"
    cost = [own, f"{own}|{kind}", *(f"{own}|{kind}|{name}" for name in stacks)]
    if own == "kernel":
        cost += [f"kernel:work|{theme_of(op)}", f"kernel:work|{kind}|{theme_of(op)}"]
    if market != kind:
        read.append(f"bytes|{kind}|{market}")
        done.append(f"{phase}|{kind}|{market}")
    if experts and few:
        read.append(f"bytes|{kind}|experts")
    if experts and not few:
        done.append(f"many|{kind}|experts")
    clock = clock_hz(device, part)
    fast = math.log(clock / USUAL_CLOCK_HZ) if clock is not None and part == "gpu" else 0.0
    wide_slopes = [
        ("bytes:bandwidth", wide),
        (f"bytes:bandwidth|{kind}", wide),
        (f"bytes:clock|{kind}", fast),
    ]
    gain = math.log(integer_share(device, part) if few else matrix_advantage(device, part))
    slopes = [("few:integers", gain)] if few else [("many:matrix", gain), (f"many:matrix|{kind}", gain)]
    return Terms(
        bytes=(*((name, 1.0) for name in read), *wide_slopes),
        flops=(*((name, 1.0) for name in done), *slopes),
        kernel=tuple((name, 1.0) for name in cost),
    )


def theme_of(op: Any) -> str:
    """What kind of work a kernel does, for what it costs beyond bytes and arithmetic."""
    if op.kind in ("attention", "latent_attention"):
        return "attention"
    if is_expert(op) or op.kind == "route":
        return "experts"
    if op.kind in ("scan", "conv"):
        return "recurrence"
    return "product" if hasattr(op, "weights") else "elements"


def content_of(op: Any) -> str:
    """What a kernel mostly reads: the cache, a recurrence's state, or weights by the bits of a value."""
    if op.kind in ("attention", "latent_attention"):
        return "cache"
    if op.kind == "scan":
        return "state"
    return format_group(weights_of(op))


def weights_of(op: Any) -> str:
    """The format of what a kernel mostly reads."""
    return str(getattr(op, "weights", None) or "fp16")


def times(op: Op, device: DeviceProfile, *, stack: str, constants: Constants | None = None) -> KernelTimes:
    """Seconds of ``op``, whose sizes may be arrays, on ``device``.

    Args:
        op: The operator.
        device: Any data sheet.
        stack: One of ``STACKS``.
        constants: Those that ship unless given.

    Raises:
        Unsupported: The device lists no arithmetic rate.
    """
    constants = constants or shipped()
    part = part_of(device, stack)
    work = op.work()
    moved, flops = np.broadcast_arrays(
        np.asarray(work.bytes, dtype=np.float64), np.asarray(work.flops, dtype=np.float64)
    )
    memory_s = moved / device.mem_bandwidth_bytes_per_s
    compute_s = flops / vector_flops_per_s(device, part)
    few = np.broadcast_to(rows_of(op) <= FEW_ROWS, moved.shape)
    found = np.empty(moved.shape)
    width = np.empty(moved.shape)
    kernel_s = 0.0
    for phase in (True, False):
        chosen = few == phase
        if not chosen.any():
            continue
        terms = terms_of(device, part, stack, op, few=phase)
        kernel_s = math.exp(constants.sum(terms.kernel))
        found[chosen] = kernel_s + joined(
            memory_s[chosen] * math.exp(constants.sum(terms.bytes)),
            compute_s[chosen] * math.exp(constants.sum(terms.flops)),
        )
        width[chosen] = constants.halfwidth("decode" if phase else "prefill", device, part)
    return KernelTimes(
        latency_s=np.maximum(found, memory_s),
        log_halfwidth=width,
        compute_s=flops / _fastest(device, part),
        memory_s=memory_s,
        launch_s=np.full(moved.shape, kernel_s),
        situation=constants.situation(device, part),
    )


def joined(memory_s: Float64Array, compute_s: Float64Array) -> Float64Array:
    """The larger of two times, smoothly."""
    total: Float64Array = (memory_s**SHARPNESS + compute_s**SHARPNESS) ** (1 / SHARPNESS)
    return total


def rows_of(op: Any) -> Float64Array:
    """Rows that meet each weight matrix: 1 in a decode step of one request."""
    for name in ("m", "tokens", "rows"):
        if hasattr(op, name):
            return np.asarray(getattr(op, name), dtype=np.float64)
    if hasattr(op, "query_tokens"):
        return np.asarray(op.query_tokens, dtype=np.float64)
    return np.asarray(getattr(op, "elements", 1.0), dtype=np.float64) / WIDTH


def is_expert(op: Any) -> bool:
    """Whether a kernel multiplies with the matrices of several experts."""
    return op.kind in ("experts", "looped_experts", "grouped_matmul")


@functools.cache
def _fastest(device: DeviceProfile, part: str) -> float:
    """FLOP/s of the part in its fastest format of 16 bits or more."""
    rates = []
    for name in ("fp32", "fp16", "bf16"):
        try:
            rates.append(device.peak(name, part=part))
        except Unsupported:
            continue
    return max(rates, default=vector_flops_per_s(device, part))


@functools.cache
def shipped() -> Constants:
    """The constants that ship."""
    return constants_of(json.loads(DATA.read_text(encoding="utf-8")))


def constants_of(plain: Mapping[str, Any]) -> Constants:
    """Constants out of their stored form."""
    return Constants(
        terms=plain["terms"],
        halfwidths=plain["halfwidths"],
        devices=frozenset(plain["devices"]),
        classes=frozenset(plain["classes"]),
    )
