"""Activation checkpointing trades time for memory in training: layers keep only their inputs and run again."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.errors import Unsupported
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case

SOURCE = "Chen et al. 2016, arXiv:1604.06174; Korthikanti et al. 2022, arXiv:2205.05198"


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes, for a training step, to recompute stored activations, or to store recomputed ones."""
    if not case.training:
        return
    if case.question.checkpoint:
        yield Proposal(
            title="keep activations, compute nothing twice",
            touches="training",
            how="train without activation checkpointing, as long as memory allows it",
            changed=case.question.but(checkpoint=False),
            headline="ttft_p50",
            source=SOURCE,
        )
        return
    yield Proposal(
        title="recompute activations layer by layer",
        touches="training",
        how="torch.utils.checkpoint around each layer, or the trainer's gradient checkpointing",
        changed=case.question.but(checkpoint=True),
        headline="peak_memory",
        quality="none: the same numbers",
        source=SOURCE,
        urgent=_too_large(case),
    )


def _too_large(case: Case) -> bool:
    try:
        return case.sheet is not None and case.estimate.peak_memory_bytes > case.sheet.usable_bytes
    except Unsupported:
        return False
