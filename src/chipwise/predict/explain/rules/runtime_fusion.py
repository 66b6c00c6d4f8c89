"""Runtimes that leave chains of kernels unfused, or launch every kernel from the host."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.hardware.runtime import EVERY, RUNTIMES
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.change import mixture

BETTER = ("torch-compile", "vllm", "trtllm")  # the first also trains


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes, on GPUs, each runtime that fuses chains which this one does not, or captures decode in a graph."""
    now = case.question.served_by
    if not case.captures_graphs or now.local:
        return
    known = EVERY if mixture(case.arch) else EVERY - {"experts"}
    for name in BETTER[:1] if case.training else BETTER:
        other = RUNTIMES[name]
        fused = sorted(known & other.fused - now.fused)
        captured = other.graphs and not now.graphs
        if other.name == now.name or not (fused or captured) or known & now.fused - other.fused:
            continue
        what = [f"fuses {', '.join(fused)}"] if fused else []
        what += ["replays decode as one graph"] if captured else []
        yield Proposal(
            title=f"{now.title} -> {other.title}: {' and '.join(what)}",
            touches="runtime",
            how=f"serve with {other.title}",
            changed=case.question.but(runtime=other.name),
            source="fusion of each runtime: chipwise.hardware.runtime; Dao et al. 2022, arXiv:2205.14135 for attention",
        )
