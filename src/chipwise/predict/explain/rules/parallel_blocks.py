"""Parallel attention and feed-forward: one norm and one all-reduce per layer instead of two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.layer import Layer
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes, for pre-norm models, that both blocks of a layer read the same input."""
    arch = case.arch
    if arch.norm_place != "pre" or arch.encoder or case.sheet is None:
        return
    layers = tuple(_parallel(layer) for layer in arch.layers)
    if layers == arch.layers:
        return
    yield Proposal(
        title="attention and feed-forward of a layer side by side",
        touches="architecture",
        how="x + attention(norm(x)) + ffn(norm(x)) in each layer (GPT-J, PaLM, Falcon); train from scratch",
        changed=case.question.but(arch=replace(arch, layers=layers)),
        headline=case.slower,
        quality="a little worse at 8 B parameters, none found at 62 B",
        source="Chowdhery et al. 2022, PaLM, arXiv:2204.02311, section 2",
    )


def _parallel(layer: Layer) -> Layer:
    if layer.parallel or layer.attention is None or not isinstance(layer.ffn, FeedForward) or layer.cross is not None:
        return layer
    return replace(layer, parallel=True, ffn_norm=False)
