"""Lowers to operators the blocks that mix positions: attention, latent attention, recurrences and convolutions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from chipwise.core.dtypes import Size
from chipwise.model.arch.mixers import Attention, ConvModule, GatedDelta, LatentAttention, Mamba2, ShortConv
from chipwise.model.arch.trunk import Stem
from chipwise.model.kinds.ranking.stem import RankingStem
from chipwise.model.ops.attention import LatentAttentionOp
from chipwise.model.ops.matmul import GroupedMatmul
from chipwise.model.ops.scan import ScanOp, ScanVariant
from chipwise.predict.served import ranking
from chipwise.predict.served.setting import PlacedOp, Setting, Step, shard

ATTENDED: Mapping[type[Stem], Callable[..., Iterator[PlacedOp]]] = {RankingStem: ranking.attend}
"""Functions that lower the attention of some kinds of models, by the class of the stem; others use :func:`_attend`."""


def attention(block: Attention, setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators of grouped-query attention: projections, rotation and cache, attention, output, all-reduce."""
    runtime, tokens, d_model = setting.runtime, step.tokens, setting.arch.d_model
    heads, kv_heads = block.heads // setting.plan.tp, shard(block.kv_heads, setting.plan.tp)
    q, kv = heads * block.head_size, kv_heads * block.head_size
    gate = q if block.gate or block.pointwise else 0
    new = 0 if block.reuses_cache else kv  # width of the keys computed in this block
    values = 0 if block.values_from_keys else new
    if runtime.fuses("qkv"):
        yield setting.matmul("qkv", tokens, d_model, q + gate + new + values, bias=block.qkv_bias)
    else:
        yield setting.matmul("q", tokens, d_model, q + gate, bias=block.qkv_bias)
        if new:
            yield setting.matmul("k", tokens, d_model, new, bias=block.qkv_bias)
        if values:
            yield setting.matmul("v", tokens, d_model, values, bias=block.qkv_bias)
    if block.qk_norm:
        each = block.head_size if block.qk_norm_over == "head" else q
        normed = heads + new // block.head_size
        rows = tokens * normed if block.qk_norm_over == "head" else 2 * tokens
        yield setting.norm_of("qk_norm", rows, each)
    caches = block.causal and setting.arch.reads_tokens  # single-pass models have no cache
    if block.pointwise:
        yield setting.elementwise("activation", "silu", tokens * (q + gate + new + values))
    if runtime.fuses("rope_cache") and (block.rope or caches):
        yield setting.elementwise("rope_cache", "rope" if block.rope else "kv_write", tokens * (q + 2 * new))
    else:
        if block.rope:
            yield setting.elementwise("rope", "rope", tokens * (q + new))
        if caches and new:  # bidirectional attention keeps nothing
            yield setting.elementwise("cache", "kv_write", tokens * 2 * new)
    if block.patch_rope:
        yield setting.elementwise("patch_rope", "rope", tokens * (q + new))
    attend = ATTENDED.get(type(setting.arch.stem), _attend)
    yield from attend(block, setting, step, heads=heads, kv_heads=kv_heads)
    if block.gate:
        yield setting.elementwise("gate", "sigmoid_mul", tokens * q)
    if block.sub_norm:
        yield setting.norm_of("sub_norm", tokens, q, "layernorm", bias=True)
    yield setting.matmul("out", tokens, q, d_model, bias=block.out_bias)
    yield from setting.collective("all_reduce", tokens * d_model, setting.plan.tp)


def cross_attention(block: Attention, setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators of cross-attention to an encoder's output.

    A pass computes the keys and values only if it also runs the encoder.
    """
    tokens, d_model = step.tokens, setting.arch.d_model
    heads, kv_heads = block.heads // setting.plan.tp, shard(block.kv_heads, setting.plan.tp)
    q, kv = heads * block.head_size, kv_heads * block.head_size
    yield setting.matmul("q", tokens, d_model, q, bias=block.qkv_bias)
    if step.encode:
        read = setting.arch.encoder_width
        yield setting.matmul("kv", step.batch * step.encoder_tokens, read, 2 * kv, bias=block.qkv_bias)
    op = setting.attention(
        batch=step.batch,
        query_tokens=step.query_tokens,
        past_tokens=step.encoder_tokens,
        heads=heads,
        kv_heads=kv_heads,
        head_size=block.head_size,
        causal=False,
        cross=True,
        owns_cache=setting.arch.reads_tokens,
    )
    yield PlacedOp(place="attend", op=op)
    yield setting.matmul("out", tokens, q, d_model, bias=block.out_bias)
    yield from setting.collective("all_reduce", tokens * d_model, setting.plan.tp)


def _attend(block: Attention, setting: Setting, step: Step, *, heads: Size, kv_heads: Size) -> Iterator[PlacedOp]:
    batch, tokens = step.batch, step.query_tokens
    if block.square is not None:  # positions are grouped by window, and ungrouped afterwards
        tokens = block.square**2
        across = -(-setting.arch.stem.square_grid // block.square)
        batch = step.batch * across**2  # windows at the image's edge are padded
        yield setting.elementwise("squares", "transpose", 2 * step.tokens * heads * block.head_size)
    chunk = block.chunk
    if chunk is not None and not block.causal:  # chunks are adjacent in memory, so nothing is moved
        batch, tokens, chunk = -(-step.tokens // chunk), chunk, None
    if block.relative_keys:
        yield from _scores_of_distances(block, setting, step, heads)
    if block.shift:
        yield setting.elementwise("shift", "copy", 2 * step.tokens * heads * block.head_size)
    if block.bias_network and block.square is not None:  # the bias: computed from distances, then looked up
        rows = (2 * block.square - 1) ** 2
        yield setting.plain_matmul("bias_network.in", rows, 2, block.bias_network, bias=True)
        yield setting.plain_matmul("bias_network.out", rows, block.bias_network, heads)
        yield setting.elementwise("position_bias", "copy", tokens**2 * heads)
    if block.relative_buckets and setting.arch.own_tokens:  # a bias for each pair of patches and each head
        kept = setting.formats.activations
        yield setting.table("position_bias", tokens**2, heads, block.relative_buckets, weights=kept)
    op = setting.attention(
        batch=batch,
        query_tokens=tokens,
        past_tokens=step.past_tokens,
        heads=heads,
        kv_heads=kv_heads,
        head_size=block.head_size,
        window=block.window,
        chunk=chunk,
        causal=block.causal,
        owns_cache=not block.reuses_cache,
    )
    yield PlacedOp(place="attend", op=op)


def latent_attention(block: LatentAttention, setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators of latent attention, which is absorbed if a pass has one new position, and otherwise expanded."""
    tokens, d_model, formats = step.tokens, setting.arch.d_model, setting.formats
    heads = block.heads // setting.plan.tp
    absorbed = bool(np.all(np.asarray(step.query_tokens) == 1))
    latent = block.kv_rank + block.rope_size
    into = latent + (block.q_rank or heads * (block.nope_size + block.rope_size))
    yield setting.matmul("down", tokens, d_model, into, bias=block.bias)
    yield setting.norm_of("latent_norm", tokens, block.kv_rank + (block.q_rank or 0))
    if block.q_rank:
        yield setting.matmul("q", tokens, block.q_rank, heads * (block.nope_size + block.rope_size))
    yield setting.elementwise("rope_cache", "rope", tokens * (heads * block.rope_size + latent))
    if absorbed:
        yield _per_head("absorb_keys", setting, tokens, heads, block.nope_size, block.kv_rank)
    else:
        yield setting.matmul("expand", tokens, block.kv_rank, heads * (block.nope_size + block.value_size))
    op = LatentAttentionOp(
        batch=step.batch,
        query_tokens=step.query_tokens,
        past_tokens=step.past_tokens,
        heads=heads,
        kv_rank=block.kv_rank,
        rope_size=block.rope_size,
        nope_size=block.nope_size,
        value_size=block.value_size,
        absorbed=absorbed,
        activations=formats.activations,
        cache=formats.cache,
    )
    yield PlacedOp(place="attend", op=op)
    if absorbed:
        yield _per_head("absorb_values", setting, tokens, heads, block.kv_rank, block.value_size)
    yield setting.matmul("out", tokens, heads * block.value_size, d_model, bias=block.bias)
    yield from setting.collective("all_reduce", tokens * d_model, setting.plan.tp)


def _per_head(place: str, setting: Setting, tokens: Size, heads: int, k: int, n: int) -> PlacedOp:
    kept = setting.formats.activations
    op = GroupedMatmul(tokens=tokens * heads, groups=heads, k=k, n=n, weights=kept, activations=kept)
    return PlacedOp(place=place, op=op)


def _scan(setting: Setting, step: Step, variant: ScanVariant) -> Callable[..., ScanOp]:
    """Creates the operator of a recurrence from its sizes."""
    kept = setting.formats.activations
    return partial(ScanOp, variant=variant, batch=step.batch, query_tokens=step.query_tokens, activations=kept)


def gated_delta(block: GatedDelta, setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators of a gated delta rule: projections, a short convolution, the recurrence, a gated norm, output."""
    tokens, d_model, tp = step.tokens, setting.arch.d_model, setting.plan.tp
    key_heads, value_heads = shard(block.key_heads, tp), shard(block.value_heads, tp)
    keys, values = key_heads * block.key_size, value_heads * block.value_size
    yield setting.matmul("in", tokens, d_model, 2 * keys + 2 * values + 2 * value_heads)
    yield conv(setting, step, 2 * keys + values, block.conv)
    scan = _scan(setting, step, "gated_delta")
    op = scan(heads=value_heads, key_size=block.key_size, value_size=block.value_size, groups=key_heads)
    yield PlacedOp(place="scan", op=op)
    yield setting.norm_of("result_norm", tokens * value_heads, block.value_size)
    yield setting.matmul("out", tokens, values, d_model)
    yield from setting.collective("all_reduce", tokens * d_model, tp)


def mamba2(block: Mamba2, setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators of Mamba-2: one projection, a short convolution, the recurrence, a gated norm, output."""
    tokens, d_model, tp = step.tokens, setting.arch.d_model, setting.plan.tp
    heads, groups = shard(block.heads, tp), shard(block.groups, tp)
    inner = heads * block.head_size
    channels = inner + 2 * groups * block.state_size
    yield setting.matmul("in", tokens, d_model, inner + channels + heads, bias=block.bias)
    yield conv(setting, step, channels, block.conv, bias=block.conv_bias)
    scan = _scan(setting, step, "mamba2")
    op = scan(heads=heads, key_size=block.state_size, value_size=block.head_size, groups=groups)
    yield PlacedOp(place="scan", op=op)
    yield setting.norm_of("result_norm", tokens, inner)
    yield setting.matmul("out", tokens, inner, d_model, bias=block.bias)
    yield from setting.collective("all_reduce", tokens * d_model, tp)


def _scores_of_distances(block: Attention, setting: Setting, step: Step, heads: Size) -> Iterator[PlacedOp]:
    """The extra operators of relative attention (Transformer-XL): keys of all distances, multiplied by the queries.

    The matrix products of the queries with 2 T - 1 distances are counted as attention over T positions (scores and
    values), because that takes about as many FLOPs.
    """
    yield setting.matmul("distances", 2 * step.query_tokens - 1, setting.arch.d_model, heads * block.head_size)
    scores = setting.attention(
        batch=step.batch,
        query_tokens=step.query_tokens,
        past_tokens=0,
        heads=heads,
        kv_heads=heads,
        head_size=block.head_size,
        causal=False,
        owns_cache=False,
        cache=setting.formats.activations,
    )
    yield PlacedOp(place="distance_scores", op=scores)
    yield setting.elementwise("distance_shift", "copy", step.tokens * heads * step.query_tokens)


def conv_module(block: ConvModule, setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators of Conformer's convolution module: gated input, convolution, norm (unless folded), SiLU, output."""
    tokens, d = step.tokens, setting.arch.d_model
    yield setting.matmul("in", tokens, d, 2 * d, bias=block.bias)
    yield setting.elementwise("gate", "sigmoid_mul", tokens * d)
    yield conv(setting, step, d, block.taps, bias=True)
    if block.norm == "layer":
        yield setting.norm_of("filter_norm", tokens, d, "layernorm", bias=True)
    yield setting.elementwise("act", "silu", tokens * d)
    yield setting.matmul("out", tokens, d, d, bias=block.bias)


def short_conv(block: ShortConv, setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators of a gated short convolution: projection to two gates and a value, convolution, projection."""
    tokens, d_model, tp = step.tokens, setting.arch.d_model, setting.plan.tp
    width = shard(block.width, tp)
    yield setting.matmul("in", tokens, d_model, 3 * width, bias=block.bias)
    yield setting.elementwise("gate_in", "mul", tokens * width)
    yield conv(setting, step, width, block.taps, bias=block.bias)
    yield setting.elementwise("gate_out", "mul", tokens * width)
    yield setting.matmul("out", tokens, width, d_model, bias=block.bias)
    yield from setting.collective("all_reduce", tokens * d_model, tp)


def conv(setting: Setting, step: Step, channels: Size, taps: int, *, bias: bool = False) -> PlacedOp:
    """The operator of a short causal depthwise convolution."""
    sizes = {"in_channels": channels, "out_channels": channels, "groups": channels, "taps": taps}
    op = setting.conv(batch=step.batch, positions=step.query_tokens, bias=bias, **sizes)
    return PlacedOp(place="conv", op=op)
