"""Figures of the engine (GPU, CPU, NPU or TPU) on which a local runtime computes, from the chip's data sheet.

The figures are: the engine's class, the FP32 rate of its vector units, the rate of the units that multiply prompts
(divided by this FP32 rate), the number of cores, and the power available.
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
"""FP32 rate assumed for a phone's GPU without a published rate, in FLOPs per byte of memory bandwidth. It is the median
of Adreno 650, 740, 750, 830 and X1-85."""
NPU_PORT: Mapping[str, float] = {"v68": 45e9, "v69": 45e9, "v73": 55e9, "v75": 60e9, "v81": 125e9}
"""Highest rate in bytes per second at which a Hexagon NPU reads memory, by its generation.

On chips with 51 to 135 GB/s and a v73 NPU, language models' weights are read at 40 to 46 GB/s (qai-hub-models 0.65.0,
GenieX). The figures of v68 and v75 are assumed; each of the others comes from one chip.
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
"""Time to first token of language models on NPUs, relative to a Snapdragon 8 Elite (qai-hub-models 0.65.0, Genie).
The last six figures were derived from parts of other models that were timed on these chips: each figure is the ratio of
such a chip's times to those of a Snapdragon 8 Elite, raised to the power of 1.6."""
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
"""Generation of each chip's Hexagon NPU, from Qualcomm AI Hub's list of devices, or for the IQ-8275 from llama.cpp."""
LAPTOP_W = 55.0  # processors up to this power are in laptops and small machines
Part = Literal["gpu", "npu", "cpu", "tpu"]
NPU_STACKS = ("genie", "geniex", "geniex-llama.cpp", "rkllm", "coreml")  # run on the NPU if the chip has one
GPU_STACKS = ("mlc", "litert-lm")  # stacks that run on a phone's GPU
BUILT_IN_STACKS = ("openvino", "llama.cpp-vulkan", "ipex-llm")  # stacks that run on a chip's GPU wherever it has one
INTEGER_STACKS = ("llama.cpp", "ik-llama.cpp", "geniex-llama.cpp", "openvino")
"""Stacks that multiply quantised weights in int8 instead of unpacking them to fp16."""


def engine_class(device: DeviceProfile, part: str) -> str:
    """The class of the engine on which the model runs, such as ``nvidia gpu``, ``x86 cpu`` or ``npu``."""
    if part == "cpu":
        cores_of = {"Apple": "apple", "Intel": "x86", "AMD": "x86"}
        return f"{cores_of.get(device.vendor, 'arm')} cpu"
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
    """Name of the architecture of one part of the chip.

    Parts that are alike share a name: renamed processors with the same cores (see Intel's ARK), GPUs with the same
    instruction set, and cores or GPUs that several vendors use in their chips.
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
    """The key of an engine's half-widths: the engine class, which for some classes is split by market."""
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
    """The part of the chip on which ``stack`` runs by default."""
    parts = {engine.part for engine in device.engines}
    if stack in NPU_STACKS and "npu" in parts:
        return "npu"
    mobile = device.kind == "soc" and device.vendor not in ("Apple", "NVIDIA", "AMD")
    on_cpu = mobile or device.kind == "cpu"
    on_cpu = on_cpu and not (mobile and stack in GPU_STACKS) and stack not in BUILT_IN_STACKS
    order: tuple[Part, ...] = ("cpu", "gpu", "tpu", "npu") if on_cpu else ("gpu", "tpu", "cpu", "npu")
    return next(part for part in order if part in parts)


def vector_flops_per_s(device: DeviceProfile, part: str) -> float:
    """FP32 rate of all vector units of the part. If FP32 is not listed, it is derived from another format.

    The rates of NPUs come from measured times relative to one chip, or else are ``NPU_FLOPS_A_BYTE`` times the memory
    bandwidth, because phone vendors do not publish them.

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
    raise Unsupported(f"{device.name} lists no arithmetic rate of its {part}; pass a device file of your own with one")


def read_bytes_per_s(device: DeviceProfile, part: str) -> float:
    """Bandwidth at which the part reads memory: that of the data sheet, or less if an NPU's memory port is slower."""
    whole = device.mem_bandwidth_bytes_per_s
    port = NPU_PORT.get(NPU_GENERATION.get(device.name.partition(":")[0], "")) if part == "npu" else None
    if port is None:
        return whole
    return float(whole / (1 + (whole / port) ** PORT_SHARPNESS) ** (1 / PORT_SHARPNESS))


def integer_share(device: DeviceProfile, part: str) -> float:
    """Integer rate of the vector units relative to their FP32 rate; it limits how fast weights are unpacked in decode.

    On NVIDIA's GPUs of 2017 to 2024, at most 64 FP32 lanes of a unit compute integers, so the rate is 1/2 for units of
    128 lanes (CUDA C++ programming guide, arithmetic throughput). The A100 and A30 have 64. It is also 1/2 on RDNA 3
    and 4, whose data sheets count two FP32 instructions that are issued at once. It is 1 in all other cases.
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
    """Clock of the part's vector units; None if the data sheet states no clock for them."""
    clocks = [each.clock.number for each in _vector_engines(device, part) if each.clock is not None]
    return max(clocks) if clocks else None


def format_group(name: str) -> str:
    """The group of formats that cost as much to unpack as the format ``name``; it is named after the bits per value."""
    stored = weight_format(name)
    bits = stored.bits_per_weight
    if stored.dtype.value == "fp4":
        return "fp4"
    return next(group for least, group in ((12, "16"), (7.5, "8"), (5.2, "6"), (4.0, "4"), (0, "3")) if bits >= least)


def format_layout(name: str) -> str:
    """Name of the group of formats that are as fast as ``name`` in prompts; it states bits and block layout."""
    low = name.lower()
    family = "iq" if low.startswith("iq") else "k" if "_k" in low and low.startswith("q") else "plain"
    return f"{format_group(name)} {family}"


def product_gain(device: DeviceProfile, part: str, stack: str, weights: str) -> float:
    """Peak rate of the units that multiply prompts by ``weights``, divided by the FP32 rate of the vector units.

    The units are the fastest that the runtime ``stack`` can use: integer matrix units (llama.cpp's quantised matrix
    products in CUDA, HIP and SYCL), 16-bit matrix units, dot products of four int8 values (dp4a), or vector units.
    llama.cpp's Vulkan backend multiplies bf16 weights as fp32.
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
    if device.vendor == "NVIDIA":  # 16-bit matrix products with 16-bit accumulation, at half the int8 rate on all chips
        rates += [0.5 * (engine.rate("int8") or 0.0) for engine in engines]
    if quantised and has_dot_products(device):
        rates.append(4 * vector)
    return max(1.0, max(rates, default=0.0) / vector)


def _cpu_product(engine: Engine, weights: str, *, quantised: bool) -> float:
    """Operations per second of one kind of core. Without int8 instructions, int8 runs at twice the FP32 rate."""
    vector = engine.rate("fp32") or 0.0
    if quantised:
        return engine.rate("int8") or 2 * vector
    return max(vector, engine.rate("bf16" if weights == "bf16" else "fp16") or 0.0)


def has_dot_products(device: DeviceProfile) -> bool:
    """Whether each FP32 lane of the GPU adds four products of int8 values in one instruction (dp4a).

    This holds for NVIDIA's Pascal (except P100), Volta and Turing (CUDA C++ programming guide; in later chips only half
    of the lanes can do so), for AMD's Vega 20, CDNA and RDNA 2 (instruction set architectures, V_DOT4_I32_I8), and for
    Intel's GPUs from Xe (Gen12) on.
    """
    if device.vendor == "NVIDIA":
        return 2016 <= device.year < 2020 and "p100" not in device.name
    if device.vendor == "AMD":
        return device.name in ("mi50", "mi60", "radeon-vii") or device.architecture.startswith(("RDNA 2", "CDNA"))
    return device.vendor == "Intel"


def cores(device: DeviceProfile) -> float:
    """Number of CPU cores that a runtime uses: all cores on the data sheet."""
    return sum(e.units.number for e in device.engines if e.part == "cpu" and e.units is not None) or 1.0


def driver_of(device: DeviceProfile) -> str:
    """Kind of machine, which determines the NPU's driver: ``phone`` (Android), ``board`` (Linux) or ``laptop``."""
    if device.name.startswith(("qcs", "sa8")):
        return "board"
    return "phone" if device.name.startswith("snapdragon") and "-x" not in device.name else "laptop"


def watts_a_flop(device: DeviceProfile, part: str) -> float | None:
    """Power of the chip, divided by the FP32 rate of the part's vector units; None if the chip's power is unpublished.

    For systems on a chip, only NVIDIA and AMD publish the power of the chip; the data sheets of other vendors state the
    wall power of a machine.
    """
    whole = device.kind == "soc" and device.vendor not in ("NVIDIA", "AMD")
    if device.board_power is None or whole or part not in ("gpu", "cpu"):
        return None
    return device.board_power.number / vector_flops_per_s(device, part)


def gpu_units(device: DeviceProfile, part: str) -> float:
    """Number of GPU units, each of which processes one tile of a matrix product at a time; 0 if not published."""
    units = [e.units.number for e in device.engines if e.part == part == "gpu" and e.units is not None]
    return max(units, default=0.0)


def market_of(device: DeviceProfile, part: str) -> str:
    """Market of the chip, such as ``laptop``; empty for engine classes that are not split by market."""
    kind = engine_class(device, part)
    if kind == "x86 cpu":
        return "laptop" if device.board_power is not None and device.board_power.number <= LAPTOP_W else "desktop"
    found = interval_class(device, part)
    return "" if found == kind else found
