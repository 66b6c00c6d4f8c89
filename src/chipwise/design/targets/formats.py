"""The weight formats in which other devices' runtimes store designs."""

from __future__ import annotations

from collections.abc import Mapping

from chipwise.errors import Unsupported
from chipwise.hardware.runtime import runtime_named
from chipwise.model.arch.formats import renamed

_GGUF = {"fp32": "fp32", "fp16": "fp16", "bf16": "bf16", "int8": "q8_0_own", "int4": "q4_0_own"}
_MLX = {"fp16": "fp16", "bf16": "bf16", "int8": "mlx_8bit", "int4": "mlx_4bit"}
STORED: Mapping[str, Mapping[str, str]] = {
    "llama.cpp": _GGUF,
    "llama.cpp-vulkan": _GGUF,
    "mlx": _MLX,
    "onnxruntime": {"int8": "int8_own", "int4": "int4_own"},
    "vllm": {"int4": "int4_g128"},
    "sglang": {"int4": "int4_g128"},
    "trtllm": {"int4": "int4_g128"},
}
"""For each runtime: weight format of a design -> its name in the runtime's files. Other formats keep their names."""


def format_there(weights: str, runtime: str) -> str:
    """The format of a design's weights in the files of ``runtime``; ``weights`` is their format in the design.

    ``weights`` may name different formats for different layers; see ``model/arch/formats.py``.

    Raises:
        Unsupported: The runtime has no such format.
    """
    name = runtime_named(runtime).name
    known = STORED.get(name, {})

    def stored(each: str) -> str:
        if known in (_GGUF, _MLX) and each not in known:
            raise Unsupported(f"{name} cannot store weights in {each}; choose one of {', '.join(known)}")
        return known.get(each, each)

    return renamed(weights, stored)


def suffix_there(runtime: str) -> str:
    """Suffix of the file that ``runtime`` loads; empty if it loads the winner's Hugging Face folder."""
    name = runtime_named(runtime).name
    if name.startswith("llama.cpp"):
        return ".gguf"
    return ".onnx" if name in ("onnxruntime", "openvino") else ""
