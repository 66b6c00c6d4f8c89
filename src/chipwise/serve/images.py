"""Lowers what reads images: the stem before the layers, squares of patches, and the pooled head after them."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.ops import AttentionOp, ConvOp, EmbeddingOp, PoolOp
from chipwise.serve import feed_forward
from chipwise.serve.setting import Part, Setting, Step
from chipwise.spec import ImageStem


def patches(stem: ImageStem, setting: Setting, step: Step) -> Iterator[Part]:
    """Convolutions, the matrix of patches, and one kernel that puts the class token and adds the positions."""
    arch, formats = setting.arch, setting.formats
    for i, ((into, out), area) in enumerate(zip(stem.conv_shapes(), stem.areas[1:], strict=True)):
        op = ConvOp(
            batch=step.batch,
            positions=area,
            in_channels=into,
            out_channels=out,
            taps=stem.taps,
            input_positions=stem.areas[i],
            weights=formats.activations,
            activations=formats.activations,
            bias=True,
        )
        yield Part(place=f"convs.{i}", op=op)
        yield setting.elementwise(f"activations.{i}", "gelu", step.batch * area * out)
    asked = arch.question is not None
    rows = step.batch * (stem.patches if asked else step.query_tokens - stem.prefix_tokens)
    yield setting.plain_matmul("patches", rows, stem.values, arch.d_model, bias=stem.bias)
    table = EmbeddingOp(
        tokens=step.tokens,
        width=arch.d_model,
        rows=max(1, stem.prefix_tokens),
        weights=formats.table,
        activations=formats.activations,
    )
    yield Part(place="embedding", op=table)


def ends(setting: Setting, step: Step) -> Iterator[Part]:
    """What is pooled of the positions, then the matrix over classes or into a shared space."""
    arch, d = setting.arch, setting.arch.d_model
    if arch.pooling == "attention":
        yield from _attention_pool(setting, step)
    elif arch.pooling == "mean":
        op = PoolOp(batch=step.batch, positions=step.query_tokens, width=d, activations=setting.formats.activations)
        yield Part(place="mean", op=op)
    if arch.head == "classes":
        yield setting.head_matmul("logits", step.batch, d, arch.classes)
    if arch.projection:
        yield setting.plain_matmul("projection", step.batch, d, arch.projection)


def _attention_pool(setting: Setting, step: Step) -> Iterator[Part]:
    """One learned query an image over all positions, a norm, and a feed-forward as the layers'."""
    arch, d = setting.arch, setting.arch.d_model
    last = arch.layers[-1]
    yield setting.plain_matmul("pool.q", step.batch, d, d, bias=True)
    yield setting.plain_matmul("pool.kv", step.tokens, d, 2 * d, bias=True)
    op = AttentionOp(
        batch=step.batch,
        query_tokens=1,
        past_tokens=step.query_tokens,
        heads=last.attention.heads if last.attention is not None else 1,
        kv_heads=last.attention.heads if last.attention is not None else 1,
        head_size=last.attention.head_size if last.attention is not None else d,
        rope=False,
        causal=False,
        cross=True,
        owns_cache=False,
        fused=setting.runtime.fuses("attention"),
        activations=setting.formats.activations,
        cache=setting.formats.activations,
    )
    yield Part(place="pool.attend", op=op)
    yield setting.plain_matmul("pool.out", step.batch, d, d, bias=True)
    for part in setting.norm(step.batch):
        yield part.inside("pool")
    if last.ffn is not None:
        for part in feed_forward.feed_forward(last.ffn, setting, step.batch):
            yield part.inside("pool")
