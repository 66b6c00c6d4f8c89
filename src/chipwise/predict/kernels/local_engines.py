"""Figures of one of a chip's engines, computed from its data sheet for the kernels of local runtimes.

These are the engine's class, the rate of its vector units, the relative rate of the units on which a runtime
multiplies, and the cores and watts available.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from chipwise.core.dtypes import weight_format
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.engines import Engine

NPU_FLOPS_A_BYTE = 200.0  # assumed NPU rate in FLOPs per byte of memory bandwidth
NPU_USUAL = 84.8e9 * NPU_FLOPS_A_BYTE  # rate of a Snapdragon 8 Elite
GPU_FLOPS_A_BYTE = 37.0
"""Assumed FP32 rate of a phone's GPU in FLOPs per byte of memory bandwidth, if none is published: the median of Adreno
650, 740, 750, 830 and X1-85."""
NPU_PORT: Mapping[str, float] = {"v68": 45e9, "v69": 45e9, "v73": 55e9, "v75": 60e9, "v81": 125e9}
"""Bytes per second that a Hexagon NPU reads at most, by its generation.

On chips with 51 to 135 GB/s and a v73, language models' weights are read at 40 to 46 GB/s (qai-hub-models 0.65.0,
GenieX). The others are from one chip each or, of v68 and v75, assumed.
"""
PORT_SHARPNESS = 6.0
NPU_SLOWER: Mapping[str, float] = {
    "snapdragon-8-elite": 1.0,
    "snapdragon-8-elite-gen5": 0.89,
    "snapdragon-x2-elite": 0.92,
    "snapdragon-x-elite": 1.77,
    "snapdragon-x-plus": 1.77,
    "qcs9075": 1.6,
    "snapdragon-8-gen-3": 1.26,
    "snapdragon-8-gen-2": 1.72,
    "qcs8550": 1.72,
    "snapdragon-8-gen-1": 2.3,
    "snapdragon-8-plus-gen-1": 2.3,
    "snapdragon-888": 1.5,
}
"""Time to first token of language models on NPUs, relative to a Snapdragon 8 Elite (qai-hub-models 0.65.0, Genie;
the last six from parts of other models there, converted with an exponent of 1.6)."""
NPU_GENERATION: Mapping[str, str] = {
    name: generation
    for generation, names in {
        "v68": "snapdragon-888 snapdragon-8cx-gen-3",
        "v69": "snapdragon-8-gen-1 snapdragon-8-plus-gen-1 sa8295p",
        "v73": "snapdragon-8-gen-2 qcs8550 snapdragon-x-elite snapdragon-x-plus qcs9075 sa8775p snapdragon-7-gen-4",
        "v75": "snapdragon-8-gen-3 qcs8275",
        "v79": "snapdragon-8-elite",
        "v81": "snapdragon-8-elite-gen5 snapdragon-x2-elite",
    }.items()
    for name in names.split()
}
"""Generations of Hexagon NPUs (Qualcomm AI Hub's list of devices; that of the IQ-8275 is what llama.cpp says there)."""
LAPTOP_W = 55.0  # processors up to this power are in laptops and small machines
Part = Literal["gpu", "npu", "cpu", "tpu"]
NPU_STACKS = (
    "genie",
    "geniex",
    "geniex-llama.cpp",
    "rkllm",
    "coreml",
)  # stacks that run on the NPU if the chip has one
GPU_STACKS = ("mlc", "litert-lm")  # stacks that run on a phone's GPU
BUILT_IN_STACKS = ("openvino", "llama.cpp-vulkan", "ipex-llm")  # stacks that run on a chip's GPU wherever it has one
INTEGER_STACKS = ("llama.cpp", "ik-llama.cpp", "geniex-llama.cpp", "openvino")
"""Stacks that multiply quantised weights in int8 instead of unpacking them to fp16."""


def engine_class(device: DeviceProfile, part: str) -> str:
    """The class of the engine that runs the model, such as ``nvidia gpu``, ``x86 cpu``, ``npu``."""
    if part == "cpu":
        return (
            "apple cpu" if device.vendor == "Apple" else "x86 cpu" if device.vendor in ("Intel", "AMD") else "arm cpu"
        )
    if part == "gpu" and device.vendor in ("NVIDIA", "AMD", "Intel", "Apple"):
        return f"{device.vendor.lower()} gpu"
    return "other gpu" if part == "gpu" else part


_ALIKE: Mapping[str, str] = {
    "Alder Lake": "Golden Cove",
    "Raptor Lake": "Golden Cove",
    "Alder Lake-N": "Gracemont",
    "Twin Lake": "Gracemont",
    "Coffee Lake": "Skylake",
    "Comet Lake": "Skylake",
    "Emerald Rapids": "Sapphire Rapids",
    "RDNA 3.5": "RDNA 3",
    "Xe2-HPG": "Xe2",
    "Xe2-LPG": "Xe2",
}
_GPU_OF = {"Meteor Lake": "Xe-LPG", "Lunar Lake": "Xe2"}
_GPU_WORDS = ("Adreno", "Mali", "Immortalis", "Xclipse", "RDNA")


def engine_architecture(device: DeviceProfile, part: str) -> str:
    """Architecture of a part of the chip, named by family.

    Renamed processors with the same cores (see Intel's ARK), graphics with the same instruction set, and equal cores or
    graphics in chips of several vendors have the same architecture.
    """
    whole = device.architecture
    if part == "npu":
        return f"{device.vendor} NPU"
    if device.vendor == "Apple":  # a phone's GPU is cooled worse than a Mac's of the same year
        return whole
    if "(Cortex" in whole:
        whole = whole.partition("(")[2].rstrip(")")
    pieces = [piece.strip() for piece in re.split(r",| and ", re.sub(r"\s*\(.*?\)", "", whole))]
    graphics = [piece for piece in pieces if piece.startswith(_GPU_WORDS)]
    if part == "gpu":
        piece = graphics[0] if graphics else pieces[0]
        piece = re.sub(r"^(Adreno (?:\d|X1))(?:\d\d|-\d+)$", r"\1", piece)
        piece = _GPU_OF.get(piece, piece)
    else:
        piece = next((each for each in pieces if each not in graphics), pieces[0])
    return _ALIKE.get(piece, piece)


def interval_class(device: DeviceProfile, part: str) -> str:
    """The class for half-widths: engine class and market."""
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
    """The default part of a system on a chip for ``stack``."""
    parts = {engine.part for engine in device.engines}
    if stack in NPU_STACKS and "npu" in parts:
        return "npu"
    mobile = device.kind == "soc" and device.vendor not in ("Apple", "NVIDIA", "AMD")
    on_cpu = mobile or device.kind == "cpu"
    on_cpu = on_cpu and not (mobile and stack in GPU_STACKS) and stack not in BUILT_IN_STACKS
    order: tuple[Part, ...] = ("cpu", "gpu", "tpu", "npu") if on_cpu else ("gpu", "tpu", "cpu", "npu")
    return next(part for part in order if part in parts)


def vector_flops_per_s(device: DeviceProfile, part: str) -> float:
    """FP32 rate of the part's vector units, over all cores; scaled from another format if FP32 is not listed.

    Phone vendors publish no NPU rates, so those are relative rates from measurements, or else ``NPU_FLOPS_A_BYTE``
    times the memory bandwidth.

    Raises:
        Unsupported: The part has no rate in any format.
    """
    if part == "npu":
        slower = NPU_SLOWER.get(device.name.partition(":")[0])
        return NPU_USUAL / slower if slower else NPU_FLOPS_A_BYTE * device.mem_bandwidth_bytes_per_s
    engines = [engine for engine in device.engines if engine.part == part]
    for chosen in ([engine for engine in engines if engine.kind == "vector"], engines):
        for name, share in (("fp32", 1.0), ("fp16", 0.5), ("bf16", 0.5), ("int8", 0.25)):
            rates = [rate for engine in chosen if (rate := engine.rate(name)) is not None]
            if rates:
                return share * (sum(rates) if part == "cpu" else max(rates))
    if part == "gpu" and device.kind == "soc" and engines:
        return GPU_FLOPS_A_BYTE * device.mem_bandwidth_bytes_per_s
    raise Unsupported(f"{device.name} lists no arithmetic rate of its {part}")


def read_bytes_per_s(device: DeviceProfile, part: str) -> float:
    """Bandwidth of the memory as the part sees it: the sheet's, or less where an NPU's own port is narrower."""
    whole = device.mem_bandwidth_bytes_per_s
    port = NPU_PORT.get(NPU_GENERATION.get(device.name.partition(":")[0], "")) if part == "npu" else None
    if port is None:
        return whole
    return float(whole / (1 + (whole / port) ** PORT_SHARPNESS) ** (1 / PORT_SHARPNESS))


def integer_share(device: DeviceProfile, part: str) -> float:
    """Integer rate of the vector units relative to their FP32 rate, which limits unpacking weights for a few rows.

    It is one half if the sheet counts FP32 lanes without integer support (NVIDIA from Ampere to Hopper, except the A100
    and A30; CUDA C++ programming guide, arithmetic throughput) or two instructions at once (RDNA 3 and later).
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
    """Clock of the part's vector units; None if the sheet has none."""
    clocks = [each.clock.number for each in _vector_engines(device, part) if each.clock is not None]
    return max(clocks) if clocks else None


def format_group(name: str) -> str:
    """Weight formats with equal unpacking cost, by the bits of a value."""
    stored = weight_format(name)
    bits = stored.bits_per_weight
    if stored.dtype.value == "fp4":
        return "fp4"
    return next(group for least, group in ((12, "16"), (7.5, "8"), (5.2, "6"), (4.0, "4"), (0, "3")) if bits >= least)


def format_layout(name: str) -> str:
    """Weight formats with equal cost in products of prompts: by bits and block layout."""
    low = name.lower()
    family = "iq" if low.startswith("iq") else "k" if "_k" in low and low.startswith("q") else "plain"
    return f"{format_group(name)} {family}"


def product_gain(device: DeviceProfile, part: str, stack: str, weights: str) -> float:
    """Peak rate of the units that multiply a prompt with ``weights`` in ``stack``, over the vector units' FP32 rate.

    They are integer matrix units if the runtime uses them (llama.cpp's quantised products in CUDA, HIP and SYCL), else
    16-bit matrix units, else dot products of four int8 values (dp4a), else vector units. llama.cpp's Vulkan backend
    multiplies bf16 weights as fp32.
    """
    if part in ("npu", "tpu"):
        return 1.0
    vector = vector_flops_per_s(device, part)
    quantised = weight_format(weights).bits_per_weight < 12
    engines = [engine for engine in device.engines if engine.part == part]
    if part == "cpu":
        return max(1.0, sum(_cpu_product(each, weights, quantised=quantised) for each in engines) / vector)
    names: tuple[str, ...] = ("int8", "fp16", "bf16") if quantised and stack in INTEGER_STACKS else ("fp16", "bf16")
    if weights == "bf16" and stack == "llama.cpp-vulkan":
        names = ("fp32",)
    rates = [engine.rate(name) or 0.0 for engine in engines for name in names]
    if device.vendor == "NVIDIA":  # 16-bit products with 16-bit accumulation, at half the int8 rate on every chip
        rates += [0.5 * (engine.rate("int8") or 0.0) for engine in engines]
    if quantised and has_dot_products(device):
        rates.append(4 * vector)
    return max(1.0, max(rates, default=0.0) / vector)


def _cpu_product(engine: Engine, weights: str, *, quantised: bool) -> float:
    """Operations per second of one kind of core; without int8 instructions, int8 runs as int16, two per lane."""
    vector = engine.rate("fp32") or 0.0
    if quantised:
        return engine.rate("int8") or 2 * vector
    return max(vector, engine.rate("bf16" if weights == "bf16" else "fp16") or 0.0)


def has_dot_products(device: DeviceProfile) -> bool:
    """Whether each FP32 lane of the GPU adds four products of int8 in an instruction (dp4a).

    NVIDIA: Pascal (except P100), Volta and Turing (CUDA C++ programming guide; later chips have half the lanes for
    it), AMD's Vega 20, CDNA and RDNA 2 (instruction set architectures, V_DOT4_I32_I8), Intel's from Xe (Gen12).
    """
    if device.vendor == "NVIDIA":
        return 2016 <= device.year < 2020 and "p100" not in device.name
    if device.vendor == "AMD":
        return device.name in ("mi50", "mi60", "radeon-vii") or device.architecture.startswith(("RDNA 2", "CDNA"))
    return device.vendor == "Intel"


def cores(device: DeviceProfile) -> float:
    """CPU cores that a runtime uses: all that the sheet lists."""
    return sum(e.units.number for e in device.engines if e.part == "cpu" and e.units is not None) or 1.0


def driver_of(device: DeviceProfile) -> str:
    """The kind of machine whose operating system's driver an NPU is called through: Android, Linux or Windows."""
    if device.name.startswith(("qcs", "sa8")):
        return "board"
    return "phone" if device.name.startswith("snapdragon") and "-x" not in device.name else "laptop"


def watts_a_flop(device: DeviceProfile, part: str) -> float | None:
    """Power of the chip over the vector rate of the part; None if no chip power is published.

    For systems on a chip, only NVIDIA's and AMD's sheets state the chip's power; other sheets state a machine's wall
    power.
    """
    whole = device.kind == "soc" and device.vendor not in ("NVIDIA", "AMD")
    if device.board_power is None or whole or part not in ("gpu", "cpu"):
        return None
    return device.board_power.number / vector_flops_per_s(device, part)


def gpu_units(device: DeviceProfile, part: str) -> float:
    """GPU units that each process one tile of a product at a time; 0 if not published."""
    units = [e.units.number for e in device.engines if e.part == part == "gpu" and e.units is not None]
    return max(units, default=0.0)


def market_of(device: DeviceProfile, part: str) -> str:
    """Market of the chip (such as server or laptop) within its engine's class; empty if that makes no difference."""
    kind = engine_class(device, part)
    if kind == "x86 cpu":
        return "laptop" if device.board_power is not None and device.board_power.number <= LAPTOP_W else "desktop"
    found = interval_class(device, part)
    return "" if found == kind else found
