"""Head sizes without a tile in attention kernels: the same width in heads of a supported size."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.model.arch.mixers import Attention
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.aligned_width import SOURCE
from chipwise.predict.explain.rules.change import attentions, each_attention

SIZES = (128, 64)  # sizes that fused attention kernels are built for


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes heads of 128 or 64 where they have another size, at the same total width of queries."""
    blocks = attentions(case.arch)
    if not blocks or blocks[0].head_size in (64, 128, 256):
        return
    first = blocks[0]
    for size in SIZES:
        heads, kv_heads = first.query_width // size, max(1, first.kv_width // size)
        if first.query_width % size or heads % kv_heads or heads % case.question.deployment.tp:
            continue

        def change(block: Attention, heads: int = heads, kv_heads: int = kv_heads, size: int = size) -> Attention:
            return replace(block, heads=heads, kv_heads=kv_heads, head_size=size)

        yield Proposal(
            title=f"heads of {first.head_size} -> {heads} heads of {size}",
            touches="architecture",
            how=f"set num_attention_heads to {heads} (head size {size}) and train from scratch",
            changed=case.question.but(arch=each_attention(case.arch, change)),
            headline=case.slower,
            quality="none found at equal width between heads of 64 and 128",
            source=SOURCE,
        )
