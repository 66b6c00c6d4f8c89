"""A KV cache in fewer bits: decode reads half as many bytes of it."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.options import FLOAT_CACHE, INTEGER_CACHE, multiplies, option


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes an FP8 cache where runtime and device have it, else an integer cache where the runtime has one.

    Only where attention takes a tenth of a decode step or more.
    """
    share = case.share("decode", kind="attention") + case.share("decode", kind="latent_attention")
    if case.sheet is None or case.question.deployment.kv in ("fp8", "int8") or share < 0.1:
        return
    name, how = "fp8", option(FLOAT_CACHE, case)
    if not how or not multiplies(case.sheet, name):
        name, how = "int8", option(INTEGER_CACHE, case)
    if not how:
        return
    yield Proposal(
        title=f"KV cache in {name}",
        touches="precision",
        how=how,
        changed=case.question.but(kv=name),
        quality="usually below what benchmarks resolve with calibrated scales; check long contexts",
        source="vLLM documentation, Quantized KV Cache; TensorRT-LLM and llama.cpp, the options named",
    )
