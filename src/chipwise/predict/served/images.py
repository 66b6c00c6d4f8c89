"""Lowers the parts of image models outside their layers: the stem, stages of a pyramid, and the pooled head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.model.arch.ends import Classes
from chipwise.model.kinds.image.stages import Stage
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.question import image_of
from chipwise.model.kinds.sound.stem import Ctc
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.matmul import ConvOp
from chipwise.model.ops.pool import PoolOp
from chipwise.predict.served import feed_forward, towers
from chipwise.predict.served.layers import stack
from chipwise.predict.served.setting import PlacedOp, Setting, Step


def stem(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """Patches of an image, and the stages of a pyramid."""
    image = setting.arch.stem_as(ImageStem)
    for part in patches(image, setting, step):
        yield part.inside("stem")
    yield from _pyramid(image, setting, step)


def stem_and_projector(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """Stem and projector of a model that answers questions about images."""
    image, arch = image_of(setting.arch.stem), setting.arch
    for part in patches(image, setting, step):
        yield part.inside("stem")
    normed = setting.norm(step.batch * arch.image_tokens) if arch.crosses else ()
    for part in (*towers.project(setting, replace(step, query_tokens=image.tokens)), *normed):
        yield part.inside("projector")
    yield from _pyramid(image, setting, step)


def _pyramid(image: ImageStem, setting: Setting, step: Step) -> Iterator[PlacedOp]:
    for place, stage, narrow, taken in stages(image, setting, step):
        width = width_after(image, setting, place)
        merged = merge(narrow, taken, into=width, norm_after=stage.norm_after)
        for part in (*stack(narrow.arch.layers, narrow, taken), *merged):
            yield part.inside(place)


def patches(stem: ImageStem, setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """Convolutions, the patch matrix, and one kernel that inserts the class token and adds positions."""
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
        yield PlacedOp(place=f"convs.{i}", op=op)
        yield setting.elementwise(f"activations.{i}", "gelu", step.batch * area * out)
    asked = arch.stem.asks
    width = stem.stages[0].d_model if stem.stages else arch.d_model
    rows = step.batch * (stem.patches if asked else step.query_tokens - stem.prefix_tokens)
    rows = step.batch * stem.first_grid**stem.axes if stem.stages else rows
    yield setting.plain_matmul("patches", rows, stem.values, width, bias=stem.bias)
    if stem.stem_norm:
        yield setting.norm_of("norm", rows, width, arch.norm, bias=arch.norm_bias)
    if stem.stages:  # pyramids add no positions
        return
    tokens = step.batch * arch.max_tokens if asked else step.tokens
    yield setting.table("embedding", tokens, width, max(1, stem.prefix_tokens))


def stages(stem: ImageStem, setting: Setting, step: Step) -> Iterator[tuple[str, Stage, Setting, Step]]:
    """The stages before a pyramid's last one: place, stage, setting for the stage's layers, and step."""
    for i, (stage, layer) in enumerate(zip(stem.stages, stem.own_layers(), strict=True)):
        grid = stem.first_grid >> i
        inner = ImageStem(image_size=grid, patch=1, prefix_tokens=0)
        arch = replace(setting.arch, d_model=stage.d_model, layers=(layer,) * stage.depth, stem=inner)
        narrow = replace(step, query_tokens=grid**2 + 0 * step.query_tokens)
        yield f"stages.{i}", stage, replace(setting, arch=arch), narrow


def width_after(stem: ImageStem, setting: Setting, place: str) -> int:
    """Width after the stage at ``place``."""
    after = int(place.rpartition(".")[2]) + 1
    return stem.stages[after].d_model if after < len(stem.stages) else setting.arch.d_model


def merge(setting: Setting, step: Step, *, into: int, norm_after: bool) -> Iterator[PlacedOp]:
    """Merges four positions of a stage into one of width ``into``, with a norm before or after."""
    d = setting.arch.d_model
    yield setting.elementwise("merge.gather", "transpose", step.tokens * d)
    width = into if norm_after else 4 * d
    yield setting.norm_of("merge.norm", step.tokens // 4, width, setting.arch.norm, bias=True)
    yield setting.plain_matmul("merge", step.tokens // 4, 4 * d, into)


def ends(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """Pooling of the positions, then the matrix over classes or into a shared space."""
    arch, d = setting.arch, setting.arch.d_model
    if arch.head.pooling == "attention":
        yield from _attention_pool(setting, step)
    elif arch.head.pooling == "mean":
        op = PoolOp(batch=step.batch, positions=step.query_tokens, width=d, activations=setting.formats.activations)
        yield PlacedOp(place="mean", op=op)
    if isinstance(arch.head, Classes):
        yield setting.head_matmul("logits", step.batch, d, arch.outputs)
    if isinstance(arch.head, Ctc):
        yield setting.head_matmul("logits", step.tokens, d, arch.outputs)
    if arch.head.projection:
        yield setting.plain_matmul("projection", step.batch, d, arch.head.projection)


def _attention_pool(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """Attention pooling: one learned query per image over all positions, a norm, and a feed-forward."""
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
    yield PlacedOp(place="pool.attend", op=op)
    yield setting.plain_matmul("pool.out", step.batch, d, d, bias=True)
    for part in setting.norm(step.batch):
        yield part.inside("pool")
    if last.ffn is not None:
        for part in feed_forward.feed_forward(last.ffn, setting, step.batch):
            yield part.inside("pool")
