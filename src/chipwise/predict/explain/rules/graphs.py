"""CUDA graphs: decode captured once and replayed, so that the host launches one graph instead of every kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes CUDA graphs on GPUs where the runtime launches kernels one by one."""
    runtime = case.question.served_by
    if not case.captures_graphs or runtime.graphs or runtime.local:
        return
    kernels = sum(cost.count for cost in case.operators("decode") or case.operators("prefill"))
    yield Proposal(
        title=f"capture the {kernels} kernels of a pass in one graph",
        touches="runtime",
        how="torch.compile(mode='reduce-overhead'), torch.cuda.CUDAGraph, or a runtime that captures decode",
        changed=case.question.but(runtime=replace(runtime, graphs=True)),
        headline="tpot_p50",
        source="NVIDIA, CUDA C++ Programming Guide, CUDA Graphs",
    )
