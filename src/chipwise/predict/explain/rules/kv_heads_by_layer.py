"""Fewer KV heads in every second layer: half of the saving, where changing all layers would lose too much."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.model.arch.mixers import Attention
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.change import attentions, fewer_kv_heads


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes a quarter of the KV heads in odd layers (at least one per device), where attention is 20 % of decode."""
    found = attentions(case.arch)
    if not found or case.share("decode", kind="attention") < 0.2:
        return
    widest, fewer = max(block.kv_heads for block in found), fewer_kv_heads(found, least=case.question.deployment.tp)
    if fewer is None or any(layer.shares is not None for layer in case.arch.layers):
        return
    layers = tuple(
        replace(layer, attention=replace(layer.attention, kv_heads=fewer))
        if i % 2 and isinstance(layer.attention, Attention) and layer.attention.kv_heads == widest
        else layer
        for i, layer in enumerate(case.arch.layers)
    )
    if layers == case.arch.layers:
        return
    yield Proposal(
        title=f"{widest} KV heads -> {fewer} in every second layer",
        touches="architecture",
        how="a spec with layers that differ; train from scratch, or "
        "merge those layers' heads in a checkpoint and continue training",
        changed=case.question.but(arch=replace(case.arch, layers=layers)),
        quality="less than fewer heads in every layer costs; choose the layers by a short training",
        source="Ainslie et al. 2023, GQA, arXiv:2305.13245; Bercovich et al. 2024, Puzzle, arXiv:2411.19146",
    )
