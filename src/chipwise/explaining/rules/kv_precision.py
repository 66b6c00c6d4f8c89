"""The cache in fewer bits: decode reads half as much of it."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.core.errors import Unsupported
from chipwise.explaining.advice import Proposal
from chipwise.explaining.question import Case

FLOATS = "vLLM: --kv-cache-dtype fp8 · SGLang: --kv-cache-dtype fp8_e4m3 · TensorRT-LLM: kv_cache_config dtype fp8"
INTEGERS = {
    "trtllm": "TensorRT-LLM: kv_cache_quant_algo INT8 when the checkpoint is quantised",
    "llama.cpp": "llama.cpp: --cache-type-k q8_0 --cache-type-v q8_0 with flash attention",
}


def rule(case: Case) -> Iterator[Proposal]:
    """An FP8 cache where the device computes in FP8, one of integers in runtimes that have it; where attention takes a
    tenth of a decode step or more."""
    share = case.share("decode", kind="attention") + case.share("decode", kind="latent_attention")
    if case.sheet is None or case.question.kv in ("fp8", "int8") or share < 0.1:
        return
    try:
        case.sheet.peak("fp8")
    except Unsupported:
        name, how = "int8", INTEGERS.get(case.question.served_by.name)
    else:
        name, how = "fp8", FLOATS
    if how is None:
        return
    yield Proposal(
        title=f"KV cache in {name}",
        touches="precision",
        how=how,
        changed=case.question.but(kv=name),
        quality="usually below what benchmarks resolve with calibrated scales; check long contexts",
        source="vLLM documentation, Quantized KV Cache; TensorRT-LLM and llama.cpp, the options named",
    )
