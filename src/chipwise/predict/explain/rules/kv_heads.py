"""Multi-head attention reads one key and value per head; grouped queries share them, and decode reads less cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.model.arch.mixers import Attention
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.change import attentions, each_attention, fewer_kv_heads


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes a quarter of the KV heads (at least one per device) where attention takes 10 % of decode or more."""
    found = attentions(case.arch)
    if not found or case.share("decode", kind="attention") < 0.1:
        return
    widest, fewer = max(block.kv_heads for block in found), fewer_kv_heads(found, least=case.question.deployment.tp)
    if fewer is None:
        return

    def change(block: Attention) -> Attention:
        return replace(block, kv_heads=min(block.kv_heads, fewer))

    yield Proposal(
        title=f"{widest} KV heads -> {fewer}",
        touches="architecture",
        how=f"set num_key_value_heads to {fewer} and train from scratch, or "
        "merge heads of a checkpoint and continue training",
        changed=case.question.but(arch=each_attention(case.arch, change)),
        quality="a little: grouped queries come close to multi-head quality after training on with 5 % of the compute",
        source="Ainslie et al. 2023, GQA, arXiv:2305.13245",
    )
