"""Chains of kernels that the runtime does not fuse, and the gain of fusing each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.hardware.runtime import Chain
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case

CHAINS: dict[Chain, tuple[str, str]] = {
    "attention": ("attention without its scores in memory", "Dao et al. 2022, FlashAttention, arXiv:2205.14135"),
    "qkv": ("one product for queries, keys and values", "Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053"),
    "gate_up": ("one product for both inputs of the gated FFN", "Kwon et al. 2023, vLLM, arXiv:2309.06180"),
    "act_mul": ("activation and gating in one kernel", "Hsu et al. 2024, Liger Kernel, arXiv:2410.10989"),
    "skip_norm": ("residual sum and norm in one kernel", "Hsu et al. 2024, Liger Kernel, arXiv:2410.10989"),
    "rope_cache": ("rotation and cache write in one kernel", "Kwon et al. 2023, vLLM, arXiv:2309.06180"),
}


def rule(case: Case) -> Iterator[Proposal]:
    """Proposes a fused kernel for each chain that this runtime does not fuse."""
    runtime = case.question.served_by
    if case.sheet is None or runtime.local:
        return
    other = ", or a runtime that has one, such as vLLM" if case.captures_graphs else ""
    for chain, (what, source) in CHAINS.items():
        if runtime.fuses(chain):
            continue
        yield Proposal(
            title=f"fuse: {what}",
            touches="runtime",
            how=f"a fused kernel for {chain} in {runtime.title}{other}",
            changed=case.question.but(runtime=replace(runtime, fused=runtime.fused | {chain})),
            headline=case.slower,
            source=source,
        )
