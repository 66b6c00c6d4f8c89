"""Depth against width at equal parameters: fewer, wider layers have fewer kernels and larger ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case

SHALLOW = 4  # layers below which quality falls fast


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes half the layers at √2 the width, for models whose layers are all equal."""
    wider = half_as_deep(case.arch)
    if wider is None:
        return
    yield Proposal(
        title=f"{len(case.arch.layers)} layers of {case.arch.d_model} -> {len(wider.layers)} of {wider.d_model}",
        touches="architecture",
        how=f"hidden_size {wider.d_model}, {len(wider.layers)} layers, FFN and heads in proportion; train from scratch",
        changed=case.question.but(arch=wider),
        headline=case.slower,
        quality="usually a little worse: at equal size deeper models are better; measure with a short training",
        source="Levine et al. 2020, arXiv:2006.12467; Liu et al. 2024, MobileLLM, arXiv:2402.14905",
    )


def half_as_deep(arch: ArchSpec) -> ArchSpec | None:
    """Returns ``arch`` with half the layers and about as many parameters; None if layers differ or are few."""
    first = arch.layers[0]
    if len(arch.layers) < 2 * SHALLOW or any(layer != first for layer in arch.layers) or arch.encoder:
        return None
    if not isinstance(first.attention, Attention) or not isinstance(first.ffn, FeedForward):
        return None
    size = first.attention.head_size
    heads = round(first.attention.heads * 2**0.5)
    heads -= heads % max(1, first.attention.kv_heads) if first.attention.kv_heads < first.attention.heads else 0
    if heads < 1:
        return None
    kv_heads = first.attention.kv_heads if first.attention.kv_heads < first.attention.heads else heads
    width = round(first.ffn.width * 2**0.5 / 128) * 128 or 128
    layer = Layer(
        attention=replace(first.attention, heads=heads, kv_heads=kv_heads), ffn=replace(first.ffn, width=width)
    )
    d_model = round(arch.d_model * 2**0.5 / size) * size
    return replace(arch.of_width(d_model), layers=(layer,) * (len(arch.layers) // 2))
