"""The cache in fewer bits: decode reads half as much of it."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.core.errors import Unsupported
from chipwise.explain.advice import Proposal
from chipwise.explain.question import Case


def rule(case: Case) -> Iterator[Proposal]:
    """An FP8 cache where the device computes in FP8 and attention takes a tenth of a decode step or more."""
    share = case.share("decode", kind="attention") + case.share("decode", kind="latent_attention")
    if case.sheet is None or case.question.kv in ("fp8", "int8") or share < 0.1:
        return
    try:
        case.sheet.peak("fp8")
    except Unsupported:
        return
    yield Proposal(
        title="KV cache in fp8",
        touches="precision",
        how="vLLM: --kv-cache-dtype fp8 · SGLang: --kv-cache-dtype fp8_e4m3 · TensorRT-LLM: kv_cache_config dtype fp8",
        changed=case.question.but(kv="fp8"),
        quality="usually below what benchmarks resolve with calibrated scales; check long contexts",
        source="vLLM documentation, Quantized KV Cache",
    )
