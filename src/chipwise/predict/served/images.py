"""Lowers the parts of image models before and after the layers: the stem, the stages of a pyramid, and the head."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from chipwise.model.arch.ends import Classes
from chipwise.model.kinds.image.stages import Stage
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.question import image_of
from chipwise.model.kinds.sound.stem import Ctc
from chipwise.model.ops.pool import PoolOp
from chipwise.predict.served import feed_forward, towers
from chipwise.predict.served.layers import stack
from chipwise.predict.served.setting import PlacedOp, Setting, Step


def stem(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators of an image stem: patches, and the stages of a pyramid."""
    image = setting.arch.stem_as(ImageStem)
    for part in patches(image, setting, step):
        yield part.inside("stem")
    yield from _pyramid(image, setting, step)


def stem_and_projector(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators of the stem and the projector in a model that answers questions about images."""
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
    """The operators that embed patches: convolutions, the patch matrix, and a kernel for class token and positions."""
    arch = setting.arch
    for i, ((into, out), area) in enumerate(zip(stem.conv_shapes(), stem.areas[1:], strict=True)):
        sizes = {"in_channels": into, "out_channels": out, "taps": stem.taps, "input_positions": stem.areas[i]}
        op = setting.conv(batch=step.batch, positions=area, bias=True, **sizes)
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
    """Yields all stages of a pyramid except the last.

    Each comes with its name, and with the ``Setting`` and the ``Step`` from which its layers are lowered.
    """
    for i, (stage, layer) in enumerate(zip(stem.stages, stem.own_layers(), strict=True)):
        grid = stem.first_grid >> i
        inner = ImageStem(image_size=grid, patch=1, prefix_tokens=0)
        arch = replace(setting.arch, d_model=stage.d_model, layers=(layer,) * stage.depth, stem=inner)
        narrow = replace(step, query_tokens=grid**2 + 0 * step.query_tokens)
        yield f"stages.{i}", stage, replace(setting, arch=arch), narrow


def width_after(stem: ImageStem, setting: Setting, place: str) -> int:
    """The model's width after the stage that is named ``place``."""
    after = int(place.rpartition(".")[2]) + 1
    return stem.stages[after].d_model if after < len(stem.stages) else setting.arch.d_model


def merge(setting: Setting, step: Step, *, into: int, norm_after: bool) -> Iterator[PlacedOp]:
    """The operators that merge four positions of a stage into one position of width ``into``, with a norm."""
    d = setting.arch.d_model
    yield setting.elementwise("merge.gather", "transpose", step.tokens * d)
    width = into if norm_after else 4 * d
    yield setting.norm_of("merge.norm", step.tokens // 4, width, setting.arch.norm, bias=True)
    yield setting.plain_matmul("merge", step.tokens // 4, 4 * d, into)


def ends(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators after the layers: pooling of the positions, then a matrix to classes or to an embedding space."""
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
    """The operators of attention pooling: one learned query per image attends to all positions.

    A norm and a feed-forward follow.
    """
    arch, d = setting.arch, setting.arch.d_model
    last = arch.layers[-1]
    yield setting.plain_matmul("pool.q", step.batch, d, d, bias=True)
    yield setting.plain_matmul("pool.kv", step.tokens, d, 2 * d, bias=True)
    heads, size = (1, d) if last.attention is None else (last.attention.heads, last.attention.head_size)
    op = setting.attention(
        batch=step.batch,
        query_tokens=1,
        past_tokens=step.query_tokens,
        heads=heads,
        kv_heads=heads,
        head_size=size,
        causal=False,
        cross=True,
        owns_cache=False,
        cache=setting.formats.activations,
    )
    yield PlacedOp(place="pool.attend", op=op)
    yield setting.plain_matmul("pool.out", step.batch, d, d, bias=True)
    for part in setting.norm(step.batch):
        yield part.inside("pool")
    if last.ffn is not None:
        for part in feed_forward.feed_forward(last.ffn, setting, step.batch):
            yield part.inside("pool")
