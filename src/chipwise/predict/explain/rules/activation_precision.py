"""Int8 activations: products at the int8 rate on chips without 8-bit floats."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.core.dtypes import weight_format
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.options import multiplies


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes 8-bit weights and activations where the chip multiplies int8 but not fp8, and activations are wider."""
    now = case.question.weights
    if case.question.served_by.name not in ("vllm", "sglang", "trtllm"):
        return
    if case.sheet is None or now == "w8a8" or weight_format(now).dtype.bits < 8:
        return
    if not multiplies(case.sheet, "int8") or multiplies(case.sheet, "fp8"):
        return
    yield Proposal(
        title="weights and activations in int8 (w8a8)",
        touches="precision",
        how="quantise with SmoothQuant and per-token scales (llm-compressor W8A8, TensorRT-LLM --smoothquant)",
        changed=case.question.but(weights="w8a8"),
        headline=case.slower,
        quality="below what most benchmarks resolve once outliers are smoothed; large without that",
        source="Xiao et al. 2022, SmoothQuant, arXiv:2211.10438",
    )
