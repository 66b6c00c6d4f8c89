"""Neighbouring layers that share weights: half the memory, the same time unless caches hold the layer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case

SMALL = 2e9  # parameters; below this, size decides whether a model ships


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes that every second layer uses the previous layer's weights, in small models with equal layers."""
    arch = case.arch
    if arch.parameters() > SMALL or any(layer.shares is not None for layer in arch.layers):
        return
    layers = tuple(
        replace(layer, shares=i - 1) if i % 2 and tuple(layer.blocks()) == tuple(arch.layers[i - 1].blocks()) else layer
        for i, layer in enumerate(arch.layers)
    )
    if layers == arch.layers:
        return
    yield Proposal(
        title="every second layer shares the weights of the one before",
        touches="architecture",
        how="share weights between layers 0 and 1, 2 and 3, …; train from scratch",
        changed=case.question.but(arch=replace(arch, layers=layers)),
        headline="peak_memory",
        quality="a little worse than separate layers, better than half the layers",
        source="Liu et al. 2024, MobileLLM, arXiv:2402.14905, section 3.4; Lan et al. 2019, ALBERT, arXiv:1909.11942",
    )
