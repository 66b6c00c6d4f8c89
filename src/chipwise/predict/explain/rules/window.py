"""Sliding windows: most layers attend to recent tokens only, a few to all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.model.arch.mixers import Attention
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case

WINDOW = 1024
EVERY = 6  # one layer in six attends to everything


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes windows of 1,024 in five layers of six, where contexts are longer and attention takes 10 % or more."""
    tokens = case.question.prompt_tokens + case.question.new_tokens
    shares = {phase: case.share(phase, kind="attention") for phase in ("prefill", "decode")}
    if tokens < 2 * WINDOW or max(shares.values()) < 0.1:
        return
    layers = tuple(
        replace(layer, attention=replace(layer.attention, window=WINDOW))
        if isinstance(layer.attention, Attention)
        and layer.attention.window is None
        and layer.attention.chunk is None
        and (i + 1) % EVERY
        else layer
        for i, layer in enumerate(case.arch.layers)
    )
    if layers == case.arch.layers:
        return
    yield Proposal(
        title=f"windows of {WINDOW} tokens in five layers of six",
        touches="architecture",
        how=f"sliding_window {WINDOW}, every sixth layer global; train from scratch, or continue training a checkpoint",
        changed=case.question.but(arch=replace(case.arch, layers=layers)),
        headline="tpot_p50" if shares["decode"] >= shares["prefill"] else "ttft_p50",
        quality="perplexity as good at this ratio; retrieval over long contexts rests on the global layers",
        source="Gemma Team 2025, Gemma 3, arXiv:2503.19786, section 5.2",
    )
