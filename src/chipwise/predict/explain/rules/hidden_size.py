"""Hidden sizes that are no multiple of the tile: each product has it as columns or inner dimension."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.core import units
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.aligned_width import SOURCE
from chipwise.predict.explain.rules.change import columns_of_tile


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes the nearest multiples of half a tile below and above; heads keep their number and size."""
    multiple = max(16, columns_of_tile(case.sheet, "bf16") // 2)
    width = case.arch.d_model
    if width % multiple == 0:
        return
    for aligned in (width // multiple * multiple, (width // multiple + 1) * multiple):
        if not aligned:
            continue
        change = (aligned - width) / width
        yield Proposal(
            title=f"hidden size {width} -> {aligned}, a multiple of {multiple}",
            touches="architecture",
            how=f"set hidden_size to {aligned} (head_dim and heads as they are) and train from scratch",
            changed=case.question.but(arch=case.arch.of_width(aligned)),
            headline=case.slower,
            quality=f"a little {'better' if change > 0 else 'worse'}: the model's width changes by "
            f"{units.signed_percent(change)}",
            source=SOURCE,
        )
