"""Proposes grouped kernels for mixtures whose experts run one after another as many small products."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.change import mixture


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes a grouped product for mixtures, in runtimes that loop over experts."""
    runtime = case.question.served_by
    if case.sheet is None or runtime.fuses("experts") or not mixture(case.arch):
        return
    yield Proposal(
        title="one grouped product for all experts instead of a loop",
        touches="runtime",
        how=f"a grouped kernel in {runtime.title} (torch._grouped_mm, MegaBlocks), or a runtime that has one, as vLLM",
        changed=case.question.but(runtime=replace(runtime, fused=runtime.fused | {"experts"})),
        headline=case.slower,
        quality="none; the gain is larger than stated, since host time for the loop is not counted",
        source="Gale et al. 2022, MegaBlocks, arXiv:2211.15841; transformers 4, modeling_mixtral.py loops over experts",
    )
