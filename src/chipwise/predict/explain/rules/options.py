"""Command-line options of the runtimes, one table per change. A runtime without such an option is not in the table."""

from __future__ import annotations

from chipwise.core.dtypes import weight_format
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.runtime import SERVING
from chipwise.hardware.suited import GGUF, NARROWER
from chipwise.predict.explain.question import Case

REQUESTS = {
    "vllm": "vLLM: --max-num-seqs {0}",
    "sglang": "SGLang: --max-running-requests {0}",
    "trtllm": "TensorRT-LLM: --max_batch_size {0}",
    "llama.cpp": "llama.cpp: llama-server --parallel {0}",
}
CHUNKS = {
    "vllm": "vLLM: --enable-chunked-prefill (the default)",
    "sglang": "SGLang: --enable-mixed-chunk",
    "trtllm": "TensorRT-LLM: --enable_chunked_prefill",
    "llama.cpp": "llama.cpp: llama-server --cont-batching (the default) with a smaller --ubatch-size",
}
PREFIXES = {
    "vllm": "vLLM: --enable-prefix-caching (the default since 0.6)",
    "sglang": "SGLang: on unless --disable-radix-cache",
    "trtllm": "TensorRT-LLM: enable_block_reuse in kv_cache_config",
    "llama.cpp": "llama.cpp: llama-server keeps the prompt's cache (cache_prompt, the default)",
}
TENSOR_PARALLEL = {
    "vllm": "vLLM: --tensor-parallel-size {0}",
    "sglang": "SGLang: --tp {0}",
    "trtllm": "TensorRT-LLM: --tp_size {0}",
    "llama.cpp": "llama.cpp: --split-mode row",
}
FLOAT_CACHE = {
    "vllm": "vLLM: --kv-cache-dtype fp8",
    "sglang": "SGLang: --kv-cache-dtype fp8_e4m3",
    "trtllm": "TensorRT-LLM: kv_cache_config dtype fp8",
}
INTEGER_CACHE = {
    "trtllm": "TensorRT-LLM: kv_cache_quant_algo INT8 when the checkpoint is quantised",
    "llama.cpp": "llama.cpp: --cache-type-k q8_0 --cache-type-v q8_0 with flash attention",
}
CONVERTED = {
    "llama.cpp": "llama-quantize to {0}",
    "llama.cpp-vulkan": "llama-quantize to {0}",
    "ik-llama.cpp": "llama-quantize to {0}",
    "mlx": "mlx_lm.convert -q --q-bits {1}",
    "mlx-vlm": "mlx_vlm.convert -q --q-bits {1}",
    "vllm-mlx": "mlx_lm.convert -q --q-bits {1}",
    "onnxruntime": "quantise the ONNX model to {0} with onnxruntime.quantization",
    "openvino": "nncf.compress_weights to {0}",
}
"""How to convert weights for runtimes with their own file formats; other runtimes read llm-compressor checkpoints."""


def option(table: dict[str, str], case: Case, *values: object) -> str:
    """The option in ``table`` for the case's runtime, with ``values`` filled in; empty if there is none."""
    return table.get(case.question.served_by.name, "").format(*values)


def multiplies(sheet: DeviceProfile, name: str) -> bool:
    """Whether the chip has a rate for matrix products in a number format."""
    return sheet.rate(name) is not None


def advisable(case: Case) -> frozenset[str]:
    """Formats to which weights can be converted for the case's runtime, even if the chip has no rate for them."""
    runtime = case.question.served_by
    fp4 = {"nvfp4"} if runtime.name in SERVING else set()
    return frozenset(NARROWER.get(runtime.name, ())) | fp4


def weights_option(case: Case, name: str) -> str:
    """Instructions for producing weights in the format ``name`` for the case's runtime."""
    if case.sheet is None:
        return f"export it with --weights {name}"
    bits = weight_format(name).dtype.bits
    usual = "quantise the checkpoint to {0} (llm-compressor) and serve that"
    return CONVERTED.get(case.question.served_by.name, usual).format(name.upper() if name in GGUF else name, bits)
