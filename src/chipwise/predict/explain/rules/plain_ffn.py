"""Gated feed-forwards have three matrices and an activation with two inputs; plain ones have two."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case, PhaseName
from chipwise.predict.explain.rules.change import each_ffn, feed_forwards, up_to


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes a plain feed-forward of equal parameters, where activations are kernels that take time."""
    blocks = feed_forwards(case.arch)
    if not blocks or not blocks[0].gated or _share(case) < 0.03:
        return
    width = up_to(blocks[0].width * 3 // 2, 64)
    changed = each_ffn(case.arch, lambda block: replace(block, width=width, gated=False, activation="relu"))
    yield Proposal(
        title=f"gated FFN of {blocks[0].width} -> plain FFN of {width} with ReLU",
        touches="architecture",
        how=f"two matrices of width {width} and a ReLU between; train from scratch",
        changed=case.question.but(arch=changed),
        headline=case.slower,
        quality="gated units are a little better at equal size",
        source="Shazeer 2020, GLU Variants Improve Transformer, arXiv:2002.05202",
    )


def _share(case: Case) -> float:
    """Share of activations in the longer phase of a request."""
    phase: PhaseName = "decode" if case.slower == "tpot_p50" else "prefill"
    return case.share(phase, place="ffn.act")
