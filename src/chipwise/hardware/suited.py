"""The weight formats that a runtime reads, the default format on a chip, and how many chips may share a model.

Messages, advice and defaults all use these tables, so they never suggest a format that the runtime cannot read.
"""

from __future__ import annotations

from collections.abc import Mapping

from chipwise.core.dtypes import FORMATS, format_name, weight_format
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import Runtime, default_runtime, platform_of

OWN = "own"
"""The value of ``weights`` that means the checkpoint's own format, which is the default on data-centre chips."""

_WIDE = frozenset({"fp32", "fp16", "bf16"})
GGUF = _WIDE | {"mxfp4", "nvfp4"} | {name for name in FORMATS if name.startswith(("q", "iq", "tq"))}
"""The weight formats of llama.cpp's files. Among them, gpt-oss uses ``mxfp4``, and NVIDIA's models use ``nvfp4``."""
MLX = _WIDE | {"mxfp4", "nvfp4"} | {name for name in FORMATS if name.startswith("mlx_")}
_LLAMA_CPP = ("llama.cpp", "llama.cpp-vulkan", "ik-llama.cpp", "geniex-llama.cpp", "t-mac", "ipex-llm")
READS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_LLAMA_CPP, GGUF),
    **dict.fromkeys(("mlx", "mlx-vlm", "vllm-mlx"), MLX),
}
"""The formats that runtimes with their own file formats read. Other runtimes are assumed to read all formats."""

_K_QUANTS = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k")
_SERVED = ("fp8", "int8", "int4")
_INTEGERS = ("int8", "int4")
NARROWER: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_LLAMA_CPP, _K_QUANTS),
    **dict.fromkeys(("mlx", "mlx-vlm", "vllm-mlx"), ("mlx_8bit", "mlx_4bit")),
    **dict.fromkeys(("vllm", "sglang", "trtllm", "torch-eager", "torch-compile", "deepspeed"), _SERVED),
    **dict.fromkeys(("onnxruntime", "onnxruntime-directml", "onnxruntime-web", "openvino"), _INTEGERS),
    **dict.fromkeys(("litert-lm", "coreml", "executorch"), _INTEGERS),
    **dict.fromkeys(("exllamav2", "mlc", "genie", "geniex"), ("int4",)),
    "awq": ("int4_g128",),
    "rkllm": ("w8a8",),
}
"""For each runtime: the formats with fewer bits to which a model can be converted, widest first."""

_USUAL: Mapping[str, str] = {
    **dict.fromkeys(_LLAMA_CPP, "q4_k_m"),
    **dict.fromkeys(("mlx", "mlx-vlm", "vllm-mlx"), "mlx_4bit"),
}
"""For some runtimes, the usual weight format on consumer chips."""

_ALONE = frozenset({"board", "phone", "metal", "cpu", "hailo"})
# Words in the titles of integrated and laptop GPUs:
_INTEGRATED = ("Laptop", "Iris", "680M", "780M", "890M", "140V", "Meteor Lake")
SPREADS = frozenset({"vllm", "sglang", "trtllm", "torch-eager", "torch-compile", "deepspeed", "llama.cpp", "exllamav2"})
"""Runtimes that can spread one model over several chips."""
MOST_DEVICES = 8  # devices per server


OF_GENIE = {"w4a16": "q4_0", "int4": "q4_0", "w8a16": "q8_0", "w4": "q8_0"}
"""Weight formats of Qualcomm's Genie, each with the GGUF format that has the same decode time.

On every chip, ``w4``, whose activations are floats, decodes at half the speed of ``w4a16``, as 8-bit weights would.
"""
AS_GGUF = {"4bit": "q4_0", "4-bit": "q4_0", "8bit": "q8_0", "8-bit": "q8_0"}
"""For a name that states only a number of bits: the format of that width that llama.cpp reads."""
AS_INTEGERS = {"4bit": "int4", "4-bit": "int4", "8bit": "int8", "8-bit": "int8"}
"""For a name that states only a number of bits: the format of that width in runtimes that read integer formats."""
_MEANT = {
    **{name: AS_INTEGERS for name, formats in NARROWER.items() if "int4" in formats},
    **dict.fromkeys(("genie", "geniex"), OF_GENIE | AS_GGUF),
    **dict.fromkeys(_LLAMA_CPP, AS_GGUF),
}


def format_in(runtime: Runtime, weights: str) -> str:
    """The format that ``weights`` means in ``runtime``, such as a 4-bit format that the runtime reads for ``4bit``."""
    meant = _MEANT.get(runtime.name, {})
    name = weights.strip().lower()
    return meant.get(name) or meant.get(format_name(weights)) or format_name(weights)


def reads(runtime: Runtime, weights: str) -> bool:
    """Whether ``runtime`` loads weights in the format called ``weights``."""
    known = READS.get(runtime.name)
    return known is None or weights in known


def check_reads(runtime: Runtime, weights: str) -> None:
    """Checks that ``runtime`` loads weights in the format called ``weights``.

    Raises:
        Unsupported: The runtime does not load this format; the message names the nearest format and all formats that it
            reads.
    """
    if reads(runtime, weights):
        return
    others = ", ".join(name for name in ("bf16", "fp16", *NARROWER[runtime.name]))
    raise Unsupported(
        f"{runtime.title} does not read {weights} weights; use the nearest: --weights {nearest(runtime, weights)} "
        f"(it reads {others})"
    )


def nearest(runtime: Runtime, weights: str) -> str:
    """The format of ``runtime`` whose number of bits per weight is closest to that of ``weights``."""
    bits = weight_format(weights).bits_per_weight
    return min(NARROWER[runtime.name], key=lambda name: abs(weight_format(name).bits_per_weight - bits))


def narrower(runtime: Runtime, weights: str | None) -> tuple[str, ...]:
    """Formats that ``runtime`` reads and that take fewer bits than ``weights``, widest first.

    If ``weights`` is None or differs between layers, it counts as 16 bits.
    """
    stored = None if weights is None else FORMATS.get(format_name(weights))
    bits = 16.0 if stored is None else stored.bits_per_weight
    return tuple(name for name in NARROWER.get(runtime.name, ()) if weight_format(name).bits_per_weight < bits)


def default_format(device: DeviceProfile, runtime: Runtime, stored: str | None, *, own: bool = False) -> str | None:
    """The default weight format on ``device`` in ``runtime``; None to keep the checkpoint's 16 bits.

    A quantised checkpoint keeps its format or, if the runtime cannot read it, gets the nearest format that the runtime
    reads. A 16-bit checkpoint gets the 4-bit format that ``_USUAL`` lists for the runtime, if it lists one, the chip is
    a consumer chip, and ``own`` is false.

    Args:
        device: The chip.
        runtime: The runtime.
        stored: The checkpoint's own format if it is quantised; None for 16 bits.
        own: Whether to keep 16-bit weights on every device.
    """
    if stored is not None:
        return stored if reads(runtime, stored) else nearest(runtime, stored)
    return _USUAL.get(runtime.name) if owned(device) and not own else None


def owned(device: DeviceProfile) -> bool:
    """Whether ``device`` is a consumer chip, where llama.cpp is the usual runtime."""
    return default_runtime(device) == "llama.cpp"


def most_devices(device: DeviceProfile, runtime: Runtime | None = None) -> int:
    """The largest sensible number of chips for one model: 1 for built-in chips, 2 for consumer cards, 8 for others.

    It is also 1 in runtimes that cannot spread a model over several chips.
    """
    if runtime is not None and runtime.name not in SPREADS:
        return 1
    alone = device.kind in ("soc", "cpu") or platform_of(device) in _ALONE
    if alone or any(word in device.title for word in _INTEGRATED):
        return 1
    return 2 if owned(device) else MOST_DEVICES
