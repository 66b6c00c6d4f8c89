"""Latent attention: one small vector per token is cached instead of keys and values."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.mixers import Attention, LatentAttention
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.change import attentions, each_attention

ROPE = 64  # values of a key that carry the position
RANKS_A_HEAD = 4  # length of the cached vector in heads: 512 for heads of 128


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes latent attention with as many query heads, if it halves a cache whose reading takes a relevant share."""
    found = attentions(case.arch)
    if not found or case.share("decode", kind="attention") < 0.1 or case.sheet is None:
        return
    first = found[0]
    rank = RANKS_A_HEAD * first.head_size
    if rank + ROPE > first.kv_width or any(block.window is not None for block in found):
        return

    def change(block: Attention) -> LatentAttention:
        size = block.head_size
        return LatentAttention(heads=block.heads, kv_rank=rank, nope_size=size, rope_size=ROPE, value_size=size)

    yield Proposal(
        title=f"latent attention: {rank + ROPE} cached values per token and layer instead of {2 * first.kv_width}",
        touches="architecture",
        how=f"kv_lora_rank {rank}, qk_rope_head_dim {ROPE}; train from scratch, or "
        "convert a checkpoint and continue training",
        changed=case.question.but(arch=each_attention(case.arch, change)),
        quality="as good as multi-head attention or better if trained from scratch",
        source="DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, section 2.1",
    )
