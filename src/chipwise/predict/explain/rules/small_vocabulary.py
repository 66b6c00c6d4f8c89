"""Large vocabularies in small models: the head is read for every token, and has many of the parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator

from chipwise.core import units
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.change import columns_of_tile, up_to

SMALL = 2e9  # parameters
LONGER = 0.06  # growth of texts, in tokens, for each halving of the vocabulary


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes a quarter of the vocabulary for small models with a head of 20 % of a decode step or more."""
    arch = case.arch
    if not arch.head.writes or arch.parameters() > SMALL or case.share("decode", place="head") < 0.2:
        return
    size = up_to(arch.vocab_size // 4, columns_of_tile(case.sheet, "bf16"))
    if size < 4096:
        return
    longer = (1 + LONGER) ** math.log2(arch.vocab_size / size) - 1
    yield Proposal(
        title=f"vocabulary {arch.vocab_size} -> {size}",
        touches="architecture",
        how=f"train a tokenizer of {size} tokens and the model with it",
        changed=case.question.but(arch=arch.of_vocabulary(size)),
        quality=f"texts need about {units.show(longer, 'share', digits=2)} more tokens, so subtract that from the gain",
        source="Tao et al. 2024, Scaling Laws with Vocabulary, arXiv:2407.13623: small models want small vocabularies",
    )
