"""Small models with separate token table and head: one table for both."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.core import units
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes to tie the head to the token table where the two are 20 % of the parameters or more."""
    arch = case.arch
    if arch.tie_embeddings or not arch.head.writes:
        return
    share = 2 * arch.vocab_size * arch.d_model / arch.parameters()
    if share < 0.2:
        return
    yield Proposal(
        title=f"one table for input and output: {_percent(share)} of the parameters become {_percent(share / 2)}",
        touches="architecture",
        how="set tie_word_embeddings to true and train from scratch",
        changed=case.question.but(arch=arch.with_tied(True)),
        headline="peak_memory",
        quality="often better at this size",
        source="Press and Wolf 2016, arXiv:1608.05859; Liu et al. 2024, MobileLLM, arXiv:2402.14905",
    )


def _percent(share: float) -> str:
    return units.show(share, "share", digits=2)
