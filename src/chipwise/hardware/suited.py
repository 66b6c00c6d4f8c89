"""Weight formats of a runtime and a chip: those that are read, those worth advising, the defaults, and how many
chips one model is spread over.

Messages, advice and defaults all read the tables here, so that none of them names a format that a runtime lacks.
"""

from __future__ import annotations

from collections.abc import Mapping

from chipwise.core.dtypes import FORMATS, format_name, weight_format
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import Runtime, default_runtime, platform_of

OWN = "own"
"""Stands for the format of the checkpoint where weights are named, as chips of data centres serve it by default."""

_WIDE = frozenset({"fp32", "fp16", "bf16"})
GGUF = _WIDE | {"mxfp4"} | {name for name in FORMATS if name.startswith(("q", "iq"))}
"""Formats of llama.cpp's files; ``mxfp4`` is that of gpt-oss."""
MLX = _WIDE | {"mxfp4"} | {name for name in FORMATS if name.startswith("mlx_")}
READS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("llama.cpp", "llama.cpp-vulkan", "ik-llama.cpp"), GGUF),
    **dict.fromkeys(("mlx", "mlx-vlm", "vllm-mlx"), MLX),
}
"""Runtimes with files of their own; the others are asked to read whatever the chip can hold."""

_K_QUANTS = ("q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k")
_SERVED = ("fp8", "int8", "int4")
_INTEGERS = ("int8", "int4")
NARROWER: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama.cpp", "llama.cpp-vulkan", "ik-llama.cpp"), _K_QUANTS),
    **dict.fromkeys(("mlx", "mlx-vlm", "vllm-mlx"), ("mlx_8bit", "mlx_4bit")),
    **dict.fromkeys(("vllm", "sglang", "trtllm", "torch-eager", "torch-compile", "deepspeed"), _SERVED),
    **dict.fromkeys(("onnxruntime", "onnxruntime-directml", "onnxruntime-web", "openvino"), _INTEGERS),
    **dict.fromkeys(("litert-lm", "coreml", "executorch"), _INTEGERS),
    **dict.fromkeys(("exllamav2", "mlc", "genie"), ("int4",)),
    "awq": ("int4_g128",),
    "rkllm": ("w8a8",),
}
"""Narrower formats that a model may be converted to for a runtime, widest first."""

_USUAL: Mapping[str, str] = {
    **dict.fromkeys(("llama.cpp", "llama.cpp-vulkan", "ik-llama.cpp"), "q4_k_m"),
    **dict.fromkeys(("mlx", "mlx-vlm", "vllm-mlx"), "mlx_4bit"),
}
"""Formats that people run in these runtimes on chips of their own."""

_ALONE = frozenset({"board", "phone", "metal", "cpu", "hailo"})
_INTEGRATED = ("Laptop", "Iris", "680M", "780M", "890M", "140V", "Meteor Lake")  # in titles of GPUs built into machines
SPREADS = frozenset({"vllm", "sglang", "trtllm", "torch-eager", "torch-compile", "deepspeed", "llama.cpp", "exllamav2"})
"""Runtimes that spread one model over several chips."""
MOST_DEVICES = 8  # of one server


def reads(runtime: Runtime, weights: str) -> bool:
    """Whether ``runtime`` loads weights in the format called ``weights``."""
    known = READS.get(runtime.name)
    return known is None or weights in known


def check_reads(runtime: Runtime, weights: str) -> None:
    """Checks that ``runtime`` loads weights in the format called ``weights``.

    Raises:
        Unsupported: It does not; the message names the nearest format, and what else it reads.
    """
    if reads(runtime, weights):
        return
    others = ", ".join(name for name in ("bf16", "fp16", *NARROWER[runtime.name]))
    raise Unsupported(
        f"{runtime.title} does not read weights in {weights}; the nearest: --weights {nearest(runtime, weights)} "
        f"(it reads {others})"
    )


def nearest(runtime: Runtime, weights: str) -> str:
    """The format of ``runtime`` with the bits per weight closest to ``weights``."""
    bits = weight_format(weights).bits_per_weight
    return min(NARROWER[runtime.name], key=lambda name: abs(weight_format(name).bits_per_weight - bits))


def narrower(runtime: Runtime, weights: str | None) -> tuple[str, ...]:
    """Formats that ``runtime`` reads and that take fewer bits than ``weights``, widest first.

    Weights that layers keep in formats of their own, and None, count as 16 bits.
    """
    stored = None if weights is None else FORMATS.get(format_name(weights))
    bits = 16.0 if stored is None else stored.bits_per_weight
    return tuple(name for name in NARROWER.get(runtime.name, ()) if weight_format(name).bits_per_weight < bits)


def default_format(device: DeviceProfile, runtime: Runtime, stored: str | None, *, own: bool = False) -> str | None:
    """The weights that a model is run with on ``device`` in ``runtime``; None for the checkpoint's own.

    On chips that people own, whose usual runtime reads files in 4 bits, these; elsewhere the checkpoint's own. What a
    runtime does not read becomes the nearest that it does.

    Args:
        device: The chip.
        runtime: What serves there.
        stored: The format that the checkpoint is quantised to; None where it has 16 bits.
        own: Whether weights of 16 bits stay as they are everywhere.
    """
    if stored is not None:
        return stored if reads(runtime, stored) else nearest(runtime, stored)
    return _USUAL.get(runtime.name) if owned(device) and not own else None


def owned(device: DeviceProfile) -> bool:
    """Whether ``device`` is a consumer chip, on which llama.cpp is usual."""
    return default_runtime(device) == "llama.cpp"


def most_devices(device: DeviceProfile, runtime: Runtime | None = None) -> int:
    """The most chips that a model is sensibly spread over: 1 where a machine has one, 2 of cards that people own."""
    if runtime is not None and runtime.name not in SPREADS:
        return 1
    alone = device.kind in ("soc", "cpu") or platform_of(device) in _ALONE
    if alone or any(word in device.title for word in _INTEGRATED):
        return 1
    return 2 if owned(device) else MOST_DEVICES
