"""Rules that propose attention whose KV cache is smaller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.model.arch.mixers import Attention, LatentAttention
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.question import Case
from chipwise.predict.explain.rules.change import attentions, each_attention, fewer_kv_heads, mixture

ROPE = 64  # values of a key that carry the position
RANKS_A_HEAD = 4  # size of the cached vector / size of a head: 512 values for heads of 128
WINDOW = 1024
EVERY = 6  # one layer in six has global attention


def kv_heads(case: Case) -> Iterator[Proposal]:
    """Proposes a quarter as many KV heads (at least one per device) if attention takes 10 % of decode or more.

    Multi-head attention caches keys and values for every head. In grouped-query attention several heads share them, so
    decode reads a smaller cache.
    """
    widest, fewer = _kv_heads(case, least_share=0.1)
    if fewer is None:
        return

    def change(block: Attention) -> Attention:
        return replace(block, kv_heads=min(block.kv_heads, fewer))

    yield Proposal(
        title=f"{widest} KV heads -> {fewer}",
        touches="architecture",
        how=f"set num_key_value_heads to {fewer} and train from scratch, or "
        "merge heads of a checkpoint and continue training",
        changed=case.question.but(arch=each_attention(case.arch, change)),
        quality="a small loss: grouped queries come close to multi-head quality after 5 % more training compute",
        source="Ainslie et al. 2023, GQA, arXiv:2305.13245",
    )


def _kv_heads(case: Case, *, least_share: float) -> tuple[int, int | None]:
    """The largest number of KV heads in a layer, and about a quarter of this number.

    The second number is None if it is not possible, or if attention takes less than ``least_share`` of decode.
    """
    found = attentions(case.arch)
    if not found or case.share("decode", kind="attention") < least_share:
        return 0, None
    return max(block.kv_heads for block in found), fewer_kv_heads(found, least=case.question.deployment.tp)


def kv_heads_by_layer(case: Case) -> Iterator[Proposal]:
    """Proposes a quarter as many KV heads in every second layer, if attention takes 20 % of decode or more.

    This saves half as much as changing all layers, and costs less quality. Each device keeps at least one KV head.
    """
    widest, fewer = _kv_heads(case, least_share=0.2)
    if fewer is None or any(layer.shares is not None for layer in case.arch.layers):
        return
    layers = tuple(
        replace(layer, attention=replace(layer.attention, kv_heads=fewer))
        if i % 2 and isinstance(layer.attention, Attention) and layer.attention.kv_heads == widest
        else layer
        for i, layer in enumerate(case.arch.layers)
    )
    if layers == case.arch.layers:
        return
    yield Proposal(
        title=f"{widest} KV heads -> {fewer} in every second layer",
        touches="architecture",
        how="a spec with layers that differ; train from scratch, or "
        "merge those layers' heads in a checkpoint and continue training",
        changed=case.question.but(arch=replace(case.arch, layers=layers)),
        quality="a smaller loss than with fewer heads in every layer; choose the layers by short training runs",
        source="Ainslie et al. 2023, GQA, arXiv:2305.13245; Bercovich et al. 2024, Puzzle, arXiv:2411.19146",
    )


def latent_attention(case: Case) -> Iterator[Proposal]:
    """Proposes latent attention with the same query heads, if it at least halves the KV cache.

    Latent attention caches one small vector per token instead of keys and values. The rule applies if attention takes
    10 % of decode or more.
    """
    found = attentions(case.arch)
    if not found or case.share("decode", kind="attention") < 0.1 or case.sheet is None:
        return
    first = found[0]
    rank = RANKS_A_HEAD * first.head_size
    if rank + ROPE > first.kv_width or any(block.window is not None for block in found):
        return

    def change(block: Attention) -> LatentAttention:
        size = block.head_size
        return LatentAttention(heads=block.heads, kv_rank=rank, nope_size=size, rope_size=ROPE, value_size=size)

    yield Proposal(
        title=f"latent attention: {rank + ROPE} cached values per token and layer instead of {2 * first.kv_width}",
        touches="architecture",
        how=f"kv_lora_rank {rank}, qk_rope_head_dim {ROPE}; train from scratch, or "
        "convert a checkpoint and continue training",
        changed=case.question.but(arch=each_attention(case.arch, change)),
        quality="as good as multi-head attention or better if trained from scratch",
        source="DeepSeek-AI 2024, DeepSeek-V2, arXiv:2405.04434, section 2.1",
    )


def window(case: Case) -> Iterator[Proposal]:
    """Proposes sliding windows of 1,024 tokens in five of six layers, for requests of at least 2,048 tokens.

    Most layers then attend only to recent tokens, and a few layers attend to all tokens. The rule applies if attention
    takes at least 10 % of prefill or of decode.
    """
    tokens = case.question.prompt_tokens + case.question.new_tokens
    shares = {phase: case.share(phase, kind="attention") for phase in ("prefill", "decode")}
    if tokens < 2 * WINDOW or max(shares.values()) < 0.1:
        return
    layers = tuple(
        replace(layer, attention=replace(layer.attention, window=WINDOW))
        if isinstance(layer.attention, Attention)
        and layer.attention.window is None
        and layer.attention.chunk is None
        and (i + 1) % EVERY
        else layer
        for i, layer in enumerate(case.arch.layers)
    )
    if layers == case.arch.layers:
        return
    yield Proposal(
        title=f"windows of {WINDOW} tokens in five layers of six",
        touches="architecture",
        how=f"sliding_window {WINDOW}, every sixth layer global; train from scratch, or continue training a checkpoint",
        changed=case.question.but(arch=replace(case.arch, layers=layers)),
        headline="tpot_p50" if shares["decode"] >= shares["prefill"] else "ttft_p50",
        quality="perplexity stays equally good; retrieval over long contexts depends on the global layers",
        source="Gemma Team 2025, Gemma 3, arXiv:2503.19786, section 5.2",
    )


def replicated_kv(case: Case) -> Iterator[Proposal]:
    """For mixtures of experts, proposes more attention replicas, each with as many devices as there are KV heads.

    If a replica has more devices than KV heads, several devices hold and read copies of the same heads.
    """
    found, tp = attentions(case.arch), case.question.deployment.tp
    if not found or not mixture(case.arch):
        return
    heads = min(block.kv_heads for block in found)
    if heads >= tp or tp % heads or case.question.batch < case.question.deployment.dp * tp // heads:
        return
    replicas = tp // heads * case.question.deployment.dp
    yield Proposal(
        title=f"{tp} devices for {heads} KV heads -> {replicas} replicas of attention on {heads} devices each",
        touches="parallelism",
        how=f"--tensor-parallel-size {heads} --data-parallel-size {replicas} with expert parallelism",
        changed=case.question.but(tp=heads, dp=replicas),
        headline="throughput",
        source="vLLM documentation, Data Parallel Deployment; DeepSeek-AI 2024, arXiv:2412.19437, section 3.4",
    )
