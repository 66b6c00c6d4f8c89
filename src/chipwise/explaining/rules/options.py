"""Command-line options of each runtime for a change; a change without an option is not suggested for that runtime."""

from __future__ import annotations

from chipwise.explaining.question import Case

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
WEIGHTS = {
    "llama.cpp": {"int8": "llama-quantize to Q8_0", "int4": "llama-quantize to Q4_0 or Q4_K_M"},
    "onnxruntime": {
        "int8": "quantise the ONNX model with onnxruntime.quantization",
        "int4": "quantise the ONNX model with MatMulNBitsQuantizer",
    },
    "openvino": {"int8": "nncf.compress_weights to INT8", "int4": "nncf.compress_weights to INT4"},
}
"""Runtimes with their own formats; the others serve checkpoints of llm-compressor and similar tools."""


def option(table: dict[str, str], case: Case, *values: object) -> str:
    """The option of the case's runtime; empty where it has none."""
    return table.get(case.question.served_by.name, "").format(*values)


def weights_option(case: Case, name: str) -> str | None:
    """Instructions to produce weights in a format for the case's runtime; None where it does not read the format."""
    own = WEIGHTS.get(case.question.served_by.name)
    if case.sheet is None:
        return f"export it so: --weights {name}"
    return f"quantise the checkpoint to {name} (llm-compressor) and serve that" if own is None else own.get(name)
