"""Rules on settings of the runtime and on how requests are served."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.errors import ChipwiseError
from chipwise.hardware.runtime import EVERY, RUNTIMES, Chain
from chipwise.model.arch.mixers import Attention, LatentAttention
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.change import mixture
from chipwise.predict.explain.rules.options import CHUNKS, PREFIXES, REQUESTS, option

SLOWER = 1.5  # largest accepted TPOT of a larger batch, relative to the present TPOT
BETTER = ("torch-compile", "vllm", "trtllm")  # runtimes to suggest; the first also trains
CHAINS: dict[Chain, tuple[str, str]] = {
    "attention": ("attention without its scores in memory", "Dao et al. 2022, FlashAttention, arXiv:2205.14135"),
    "qkv": ("one product for queries, keys and values", "Shoeybi et al. 2019, Megatron-LM, arXiv:1909.08053"),
    "gate_up": ("one product for both inputs of the gated FFN", "Kwon et al. 2023, vLLM, arXiv:2309.06180"),
    "act_mul": ("activation and gating in one kernel", "Hsu et al. 2024, Liger Kernel, arXiv:2410.10989"),
    "skip_norm": ("residual sum and norm in one kernel", "Hsu et al. 2024, Liger Kernel, arXiv:2410.10989"),
    "rope_cache": ("rotation and cache write in one kernel", "Kwon et al. 2023, vLLM, arXiv:2309.06180"),
}


def batch(case: Case) -> Iterator[Proposal]:
    """Proposes more requests in flight: their number is doubled as long as memory and TPOT allow it.

    TPOT may grow to at most 1.5 times its present value. A memory-bound decode step serves more requests in nearly the
    same time.
    """
    capacity = None if case.sheet is None else case.sheet.known_bytes
    if capacity is None or not case.generates:
        return
    sizes = [case.question.batch * 2**i for i in range(1, 9)]
    answers = case.pricer.price([case.question.but(batch=size) for size in sizes])
    best = 0
    for size, answer in zip(sizes, answers, strict=True):
        if isinstance(answer, ChipwiseError) or answer.peak_memory_bytes > capacity:
            break
        if answer.tpot_s > SLOWER * case.estimate.tpot_s:
            break
        best = size
    if best:
        yield Proposal(
            title=f"{case.question.batch} -> {best} requests in flight",
            touches="batching",
            how=option(REQUESTS, case, best) or f"serve {best} requests at once",
            changed=case.question.but(batch=best),
            headline="throughput",
            source="Pope et al. 2022, Efficiently Scaling Transformer Inference, arXiv:2211.05102",
        )


def prefix_sharing(case: Case) -> Iterator[Proposal]:
    """Proposes a prefix cache if prompts share their first tokens.

    The shared prefix is then computed once, and later requests find it in the cache. The rule does not apply to
    recurrent models, because their state has no reusable prefix.
    """
    question = case.question
    found = min(question.shared_tokens, question.prompt_tokens - 1)  # the last token is needed for the logits
    if case.sheet is None or not case.generates or case.arch.encoder or found <= question.cached_tokens:
        return
    if not all(isinstance(layer.attention, Attention | LatentAttention) for layer in case.arch.layers):
        return
    yield Proposal(
        title=f"the {found:,} tokens that all prompts share are computed once",
        touches="batching",
        how=option(PREFIXES, case) or "a runtime with a prefix cache, such as vLLM or SGLang",
        changed=question.but(cached_tokens=found),
        headline="ttft_p50",
        quality="no loss; the memory that sharing saves is not counted",
        source="Zheng et al. 2023, SGLang, arXiv:2312.07104; Kwon et al. 2023, vLLM, arXiv:2309.06180, section 4.4",
    )


def prefill_chunks(case: Case) -> Iterator[Proposal]:
    """Proposes chunked prefill if several requests are in flight and the runtime runs prompts in separate passes.

    With chunked prefill, parts of a prompt are computed within decode steps, so other requests wait less.
    """
    runtime = case.question.served_by
    if case.sheet is None or runtime.mixes or case.question.batch < 2 or not case.generates:
        return
    yield Proposal(
        title="chunked prefill: prompts share steps with decode",
        touches="batching",
        how=option(CHUNKS, case) or "a runtime that mixes prompts into decode steps, such as vLLM",
        changed=case.question.but(runtime=replace(runtime, mixes=True)),
        headline="tpot_p50",
        source="Agrawal et al. 2024, Sarathi-Serve, arXiv:2403.02310; waiting times are fitted to serving runs",
    )


def graphs(case: Case) -> Iterator[Proposal]:
    """Proposes captured graphs on GPUs if the runtime launches each kernel from the host.

    Decode is then captured once and replayed, so the host launches one graph instead of every kernel.
    """
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


def runtime_fusion(case: Case) -> Iterator[Proposal]:
    """Proposes other runtimes on GPUs: those that fuse more chains of kernels, or that capture decode in a graph.

    A proposed runtime also fuses every chain that the present runtime fuses.
    """
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


def fused_chains(case: Case) -> Iterator[Proposal]:
    """Proposes a fused kernel for each chain of kernels that the present runtime does not fuse.

    Each proposal is estimated separately, so its gain is that of fusing one chain.
    """
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
