"""FFN widths that are no multiple of the tile: part of each product's last tile is wasted."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import replace

from chipwise.core import units
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.change import columns_of_tile, each_ffn, feed_forwards, up_to

SOURCE = "Anthony et al. 2024, The Case for Co-Designing Model Architectures with Hardware, arXiv:2401.14489"


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes the nearest FFN widths below and above that are multiples of the tile on every device."""
    multiple = columns_of_tile(case.sheet, "bf16")
    blocks = feed_forwards(case.arch)
    if not blocks or len({block.width for block in blocks}) > 1:
        return
    width, step = blocks[0].width, multiple * case.question.deployment.tp
    if width % step:
        for aligned in (width // step * step, up_to(width, step)):
            if not aligned:
                continue
            difference = (aligned - width) / width
            changed = each_ffn(case.arch, functools.partial(replace, width=aligned))
            yield Proposal(
                title=f"FFN width {width} -> {aligned}, a multiple of {multiple}",
                touches="architecture",
                how=f"set intermediate_size to {aligned} and train from scratch",
                changed=case.question.but(arch=changed),
                headline=case.slower,
                quality=f"{'a little better' if difference > 0 else 'a little worse'}: "
                f"{units.signed_percent(difference)} of the FFN",
                source=SOURCE,
            )
