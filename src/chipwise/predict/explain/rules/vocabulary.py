"""Vocabularies that are no multiple of the tile waste the head's last tile and may prevent aligned loads."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.change import columns_of_tile, up_to


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes to pad the vocabulary to the next multiple of the tile's columns, at most of 128."""
    arch = case.arch
    multiple = min(128, columns_of_tile(case.sheet, "bf16"))
    padded = up_to(arch.vocab_size, multiple * case.question.deployment.tp)
    if padded == arch.vocab_size or not arch.head.writes:
        return
    shards = f" on each of {case.question.deployment.tp} devices" if case.question.deployment.tp > 1 else ""
    yield Proposal(
        title=f"vocabulary {arch.vocab_size} -> {padded}, a multiple of {multiple}{shards}",
        touches="architecture",
        how=f"set vocab_size to {padded}; the {padded - arch.vocab_size} new rows are never chosen",
        changed=case.question.but(arch=arch.of_vocabulary(padded)),
        headline="tpot_p50" if case.share("decode", place="head") > case.share("prefill", place="head") else "ttft_p50",
        quality="none: the new tokens' logits are masked",
        source="Karpathy 2023, nanoGPT; NVIDIA, Matrix Multiplication Background User's Guide, section 2.2",
    )
