"""KV-cache formats that published quantised checkpoints request; the format of the weights does not determine them.

NVIDIA's FP8 and NVFP4 checkpoints request an FP8 cache (``kv_cache_quant_algo: FP8`` in hf_quant_config.json of
nvidia/Llama-3.1-70B-Instruct-FP8 and its siblings), and TensorRT-LLM serves Llama models from these checkpoints.
"""

from __future__ import annotations

import os
from pathlib import Path

from chipwise.hardware.runtime import Runtime
from chipwise.model.published.quantised import stored_at

NARROW = frozenset({"fp8", "nvfp4"})


def default_cache(model: str, weights: str, runtime: Runtime) -> str | None:
    """Default format of the KV cache for a checkpoint; None means the format of the activations."""
    if os.path.exists(model):
        return stored_at(Path(model)).cache
    if weights not in NARROW:
        return None
    owner, _, name = model.lower().rpartition("/")
    if owner == "nvidia" or (runtime.name == "trtllm" and "llama" in name):
        return "fp8"
    return None
