"""Rules that propose narrower number formats for weights, activations, the cache, or only some layers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chipwise.core import units
from chipwise.core.dtypes import weight_format
from chipwise.model.arch.formats import formats_word, read_formats
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.options import (
    CONVERTED,
    FLOAT_CACHE,
    INTEGER_CACHE,
    advisable,
    multiplies,
    option,
    weights_option,
)

# Format; the number format in which the device must be able to multiply (empty: any); and the loss of quality.
NARROWER = (
    ("nvfp4", "fp4", "loses about a point on hard reasoning benchmarks after calibration; distillation recovers it"),
    ("fp8", "fp8", "a loss too small for most benchmarks to show"),
    ("int8", "int8", "with per-channel scales, a loss too small for most benchmarks to show; outliers need smoothing"),
    ("q8_0", "", "a loss too small for benchmarks to show"),
    ("mlx_8bit", "", "a loss too small for benchmarks to show"),
    ("int4", "", "with GPTQ or AWQ, a small loss for models above 7 B parameters, a larger one for small models"),
    ("int4_g128", "", "with GPTQ or AWQ, a small loss for models above 7 B parameters, a larger one for small models"),
    ("q4_k_m", "", "a small loss for models above 7 B parameters, a larger one for small models"),
    ("mlx_4bit", "", "a small loss for models above 7 B parameters, a larger one for small models"),
)
NARROWER_HERE = (
    ("int8", "", "a small loss; weights have 8 bits, and activations are quantised at run time"),
    ("int4", "", "a noticeable loss in small models: measure it, or continue training"),
)
KEPT = (0.1, 0.25)  # shares of the layers that keep a wide format
EIGHT_BITS = ("fp8", "int8", "q8_0", "mlx_8bit")
NEXT_HERE = {"fp32": "int8", "int8": "int4"}  # the next narrower export format
RECIPES = "Nemotron-H, arXiv:2504.03624 (first and last layers in BF16); Dettmers et al. 2022, arXiv:2208.07339"


def weight_precision(case: Case) -> Iterator[Proposal]:
    """Proposes each format with fewer bits per weight that the device and the runtime support.

    With fewer bits per weight, decode reads fewer bytes, and the device may multiply faster.
    """
    formats = read_formats(case.question.weights, len(case.arch.layers)).all
    widest = max(weight_format(name).bits_per_weight for name in formats)
    read = advisable(case)
    for name, rate, quality in NARROWER_HERE if case.sheet is None else NARROWER:
        if weight_format(name).bits_per_weight >= widest or (case.sheet is not None and name not in read):
            continue
        if rate and case.sheet is not None and not multiplies(case.sheet, rate):
            continue
        yield Proposal(
            title=f"weights in {name}",
            touches="precision",
            how=f"{weights_option(case, name)} (estimate it with --weights {name})",
            changed=case.question.but(weights=name),
            quality=quality,
            headline=case.slower,
            source="loss of quality: Dettmers and Zettlemoyer 2022, arXiv:2212.09720",
        )


def kv_precision(case: Case) -> Iterator[Proposal]:
    """Proposes an FP8 KV cache if runtime and device support it, else an INT8 KV cache if the runtime supports it.

    Decode then reads half as many bytes of the KV cache. The rule applies if attention takes 10 % of a decode step or
    more.
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
        quality="with calibrated scales, usually a loss too small for benchmarks to show; check long contexts",
        source="vLLM documentation, Quantized KV Cache; TensorRT-LLM and llama.cpp, the options named",
    )


def activation_precision(case: Case) -> Iterator[Proposal]:
    """Proposes int8 weights and activations in vLLM, SGLang and TensorRT-LLM, if the chip multiplies int8 but not fp8.

    Matrix products then run at the chip's int8 rate.
    """
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
        quality="if outliers are smoothed, a loss too small for most benchmarks to show; otherwise a large loss",
        source="Xiao et al. 2022, SmoothQuant, arXiv:2211.10438",
    )


def layer_precision(case: Case) -> Iterator[Proposal]:
    """Proposes an 8-bit weight format for all layers except a few, if the weights have 16 bits or more.

    If the loss from quantising each layer alone was measured, the most sensitive layers keep their format. Otherwise
    the first and the last layers keep it, as in published recipes.
    """
    question, layers = case.question, len(case.arch.layers)
    if case.sheet is None:
        yield from _here(case)
        return
    if weight_format(question.weights).dtype.bits < 16 or layers < 8:
        return
    name = _narrow(case)
    if name is None:
        return
    for share in KEPT:
        kept = _kept(question.sensitivity, layers, max(2, round(share * layers)))
        ignored = "" if case.question.served_by.name in CONVERTED else " (llm-compressor: ignore)"
        yield Proposal(
            title=f"weights in {name}, except for {len(kept)} of {layers} layers",
            touches="precision",
            how=f"leave layers {', '.join(map(str, sorted(kept)))} out of the quantisation{ignored}",
            changed=question.but(weights=name, wide_layers=kept),
            headline=case.slower,
            quality=_quality(question.sensitivity, kept),
            source=RECIPES,
        )


def _here(case: Case) -> Iterator[Proposal]:
    """Proposals for this machine. Each layer may have its own format, unless it shares the weights of another layer."""
    question, layers = case.question, case.arch.layers
    narrow, owners = NEXT_HERE.get(question.weights), [i for i, _ in case.arch.owned_layers()]
    if narrow is None or len(owners) < 2:
        return
    losses = [question.sensitivity[i] for i in owners] if question.sensitivity else []
    for count in dict.fromkeys(max(1, round(share * len(owners))) for share in KEPT):
        kept = _kept(losses, len(owners), count)
        wide = {owners[i] for i in kept}
        own = (i if layer.shares is None else layer.shares for i, layer in enumerate(layers))
        word = formats_word((question.weights if i in wide else narrow for i in own), question.weights)
        yield Proposal(
            title=f"weights in {narrow}, except for {count} of {len(owners)} layers and the head",
            touches="precision",
            how=f"export it with --weights '{word}'",
            changed=question.but(weights=word),
            headline=case.slower,
            quality=_quality(losses, kept),
            source=RECIPES,
        )


def _narrow(case: Case) -> str | None:
    """The first format of ``EIGHT_BITS`` that the runtime reads; None if there is none.

    FP8 is skipped if the chip cannot multiply it.
    """
    read = [name for name in EIGHT_BITS if name in advisable(case)]
    if "fp8" in read and case.sheet is not None and not multiplies(case.sheet, "fp8"):
        read.remove("fp8")
    return read[0] if read else None


def _kept(sensitivity: Sequence[float], layers: int, count: int) -> frozenset[int]:
    """The layers that keep their wide format: the most sensitive layers, if known, else the first and last layers."""
    if sensitivity:
        return frozenset(sorted(range(layers), key=lambda i: -sensitivity[i])[:count])
    return frozenset([*range(count - count // 2), *range(layers - count // 2, layers)])


def _quality(sensitivity: Sequence[float], kept: frozenset[int]) -> str:
    if not sensitivity:
        return "a smaller loss than with all layers narrow; no sensitivity is given, so the outer layers stay wide"
    whole = sum(sensitivity)
    left = whole - sum(sensitivity[i] for i in kept)
    return f"a loss of {units.number(left)} instead of {units.number(whole)} (sums of the layers' measured increases)"
