"""Names and shapes of a model's weights: those of the torch module's state dict, used wherever weights are kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.feed_forward import FeedForward
from chipwise.model.arch.formats import matrix_of
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.denoiser.denoiser import END_PARTS, Denoiser
from chipwise.model.kinds.denoiser.form import DENOISER
from chipwise.model.kinds.denoiser.latents.spec import KERNEL
from chipwise.model.kinds.encoder.form import ENCODER
from chipwise.model.kinds.form import Form
from chipwise.model.kinds.image.form import CLASSIFIER, stage_archs
from chipwise.model.kinds.image.published import IMAGE_ENCODER
from chipwise.model.kinds.image.stem import CONV_EDGE, ImageStem
from chipwise.model.kinds.ranking.form import RANKER
from chipwise.model.kinds.ranking.stem import RankingStem
from chipwise.model.kinds.sound.form import TRANSCRIBER
from chipwise.model.kinds.sound.published import LISTENER
from chipwise.model.kinds.sound.stem import SoundStem
from chipwise.model.kinds.table import form_of
from chipwise.model.kinds.text.form import DECODER

Shape = tuple[int, ...]
WORK = "given weights by name"  # of what is not built, in messages


def weight_shapes(arch: ArchSpec) -> dict[str, Shape]:
    """Shape of every weight by name; matrices are (out, in). Shared and tied weights are there once.

    Raises:
        Unsupported: A model that is not built.
    """
    return dict(_WEIGHTS[form_of(arch)](arch))


def matrices_of(arch: ArchSpec) -> list[str]:
    """The matrices that can have formats of their own, as ``model/arch/formats.py`` calls them, those with most
    values first.

    Raises:
        Unsupported: A model that is not built.
    """
    sizes: dict[str, int] = {}
    for name, shape in weight_shapes(arch).items():
        matrix = matrix_of(name)
        if matrix is not None:
            sizes[matrix] = sizes.get(matrix, 0) + math.prod(shape)
    return sorted(sizes, key=lambda name: -sizes[name])


def _decoder(arch: ArchSpec) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every weight of a decoder."""
    DECODER.require(arch, work=WORK)
    yield "embedding.weight", (arch.vocab_size, arch.d_model)
    if arch.positions == "learned":
        yield "positions.weight", (arch.max_tokens, arch.d_model)
    for i, layer in arch.owned_layers():
        if layer.attention is not None:
            yield from _norm(arch, f"layers.{i}.attention_norm")
            yield from _conv(arch, f"layers.{i}.attention_conv", layer.attention_conv)
            yield from _attention(layer.attention, arch.d_model, f"layers.{i}.attention")
        if layer.ffn is not None:
            yield from _norm(arch, f"layers.{i}.ffn_norm")
            yield from _conv(arch, f"layers.{i}.ffn_conv", layer.ffn_conv)
            yield from _feed_forward(layer.ffn, arch.d_model, f"layers.{i}.ffn")
    yield from _norm(arch, "norm")
    if not arch.tie_embeddings:
        yield "head.weight", (arch.vocab_size, arch.d_model)


def _encoder(arch: ArchSpec) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every weight of an encoder, in the order of its torch module."""
    d = arch.d_model
    yield "embedding.weight", (arch.vocab_size, d)
    yield "positions.weight", (arch.max_tokens, d)
    if arch.token_types:
        yield "token_types.weight", (arch.token_types, d)
    if arch.embedding_norm:
        yield from _norm(arch, "embedding_norm")
    for i, layer in enumerate(arch.layers):
        if (attention := layer.attention) is not None:
            place = f"layers.{i}.attention"
            for name in ("q", "k", "v"):
                yield from _linear(f"{place}.{name}", attention.query_width, d, bias=attention.qkv_bias)
            yield from _linear(f"{place}.out", d, attention.query_width, bias=attention.out_bias)
            yield from _norm(arch, f"{place}_norm")
        if (ffn := layer.ffn) is not None:
            place = f"layers.{i}.ffn"
            yield from _feed_forward(ffn, d, place)
            yield from _norm(arch, f"{place}_norm")
    if arch.head == "pooler":
        yield from _linear("pooler", d, d, bias=True)


def _listener(arch: ArchSpec) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every weight of a published model that hears."""
    d = arch.d_model
    LISTENER.require(arch, work=WORK)
    stem: SoundStem = arch.stem
    for i, (conv, into) in enumerate(zip(stem.convs, stem.conv_inputs(), strict=True)):
        yield f"stem.convs.{i}.weight", (conv.channels, into, conv.kernel)
        if conv.bias:
            yield f"stem.convs.{i}.bias", (conv.channels,)
        if conv.norm != "none":
            yield f"stem.convs.{i}.norm.weight", (conv.channels,)
            yield f"stem.convs.{i}.norm.bias", (conv.channels,)
    if stem.matrix_norm:
        yield "stem.norm.weight", (stem.values,)
        yield "stem.norm.bias", (stem.values,)
    if stem.matrix:
        yield from _linear("stem.projection", d, stem.values, bias=True)
    if stem.position_taps:
        yield "stem.places.weight_g", (1, 1, stem.position_taps)
        yield "stem.places.weight_v", (d, d // stem.position_groups, stem.position_taps)
        yield "stem.places.bias", (d,)
    if stem.position_rows:
        yield "stem.positions.weight", (stem.position_rows, d)
    if stem.mask_token:
        yield "stem.mask.weight", (d,)
    if arch.embedding_norm:
        yield from _norm(arch, "embedding_norm")
    yield from _layers(arch, "")
    if arch.final_norm:
        yield from _norm(arch, "norm")
    if arch.head == "ctc":
        yield from _linear("head", arch.classes, d, bias=True)


def _classifier(arch: ArchSpec) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every weight of an image classifier, in the order of its torch module."""
    d = arch.d_model
    CLASSIFIER.require(arch, work=WORK)
    stem: ImageStem = arch.stem
    for i, (into, out) in enumerate(stem.conv_shapes()):
        yield f"stem.convs.{i}.weight", (out, into, *([CONV_EDGE] * stem.axes))
        yield f"stem.convs.{i}.bias", (out,)
    yield from _linear("stem.projection", stem.first_width(d), stem.values, bias=stem.bias)
    inner = stage_archs(arch, stem)
    if stem.stem_norm:
        yield from _norm(inner[0], "stem.norm")
    if stem.prefix_tokens:
        yield "stem.prefix.weight", (stem.prefix_tokens, d)
    if arch.projector is not None:
        for i, (into, out) in enumerate(arch.projector.shapes(d, stem.axes)):
            yield from _linear(f"projector.matrices.{i}", out, into, bias=arch.projector.bias)
    if arch.question is not None:
        yield "words.weight", (arch.question.words, d)
    if arch.positions == "learned":
        yield "positions.weight", (arch.max_tokens, d)
    if arch.crosses:
        yield from _norm(arch, "image_norm")
    for i, stage in enumerate(inner):
        yield from _layers(stage, f"stages.{i}.")
        width = 4 * stage.d_model
        yield f"stages.{i}.norm.weight", (width,)
        if arch.norm_bias:
            yield f"stages.{i}.norm.bias", (width,)
        following = inner[i + 1].d_model if i + 1 < len(inner) else d
        yield f"stages.{i}.merge.weight", (following, width)
    yield from _layers(arch, "")
    yield from _norm(arch, "norm")
    yield from _linear("head", arch.classes, d, bias=True)


def _image_encoder(arch: ArchSpec) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every weight of a published encoder of images; of a tower also of layers that nothing reads."""
    d = arch.d_model
    IMAGE_ENCODER.require(arch, work=WORK)
    stem: ImageStem = arch.stem
    yield from _linear("stem.projection", d, stem.values, bias=stem.bias)
    if stem.prefix_tokens:
        yield "stem.prefix.weight", (stem.prefix_tokens, d)
    if stem.mask_token:
        yield "stem.mask.weight", (d,)
    if arch.positions == "learned":
        yield "positions.weight", (arch.max_tokens, d)
    if arch.embedding_norm:
        yield from _norm(arch, "embedding_norm")
    yield from _layers(arch, "")
    for i, layer in enumerate(arch.layers):
        for name, block in (("attention", layer.attention), ("ffn", layer.ffn)):
            if layer.scale and block is not None:
                yield f"layers.{i}.{name}_scale.weight", (d,)
    if arch.final_norm:
        yield from _norm(arch, "norm")
    if arch.pooling == "attention":
        yield "pool.query.weight", (1, d)
        for name in ("q", "k", "v", "out"):
            yield from _linear(f"pool.{name}", d, d, bias=True)
        yield from _norm(arch, "pool.norm")
        if (ffn := arch.layers[-1].ffn) is not None:
            yield from _feed_forward(ffn, d, "pool.ffn")
    if arch.head == "pooler":
        yield from _linear("pooler", d, d, bias=True)
    if arch.head == "classes":
        yield from _linear("head", arch.classes, d, bias=True)
    if arch.projection:
        yield from _linear("projection", arch.projection, d, bias=False)
    if (projector := arch.projector) is not None:
        if projector.norm != "none":
            width = projector.norm_width(d, stem.axes)
            yield "projector.norm.weight", (width,)
            if projector.norm == "layernorm":
                yield "projector.norm.bias", (width,)
        for i, (into, out) in enumerate(projector.shapes(d, stem.axes)):
            yield from _linear(f"projector.matrices.{i}", out, into, bias=projector.bias)
        for i in range(projector.vectors):
            yield f"projector.vectors.{i}.weight", (projector.widths[-1],)


def _layers(arch: ArchSpec, before: str) -> Iterator[tuple[str, Shape]]:
    """Tables of position biases, then the layers, with ``before`` in front of each name."""
    d = arch.d_model
    for i, layer in enumerate(arch.layers):
        if layer.attention is not None and layer.attention.relative_buckets:
            yield f"{before}positions.{i}.weight", (layer.attention.relative_buckets, layer.attention.heads)
    for i, layer in enumerate(arch.layers):
        if layer.attention is not None:
            yield from _norm(arch, f"{before}layers.{i}.attention_norm")
            yield from _attention(layer.attention, d, f"{before}layers.{i}.attention")
        if layer.cross is not None:
            yield from _norm(arch, f"{before}layers.{i}.cross_norm")
            yield from _attention(layer.cross, d, f"{before}layers.{i}.cross")
        if layer.ffn is not None:
            yield from _norm(arch, f"{before}layers.{i}.ffn_norm")
            yield from _feed_forward(layer.ffn, d, f"{before}layers.{i}.ffn")


def _ranker(arch: ArchSpec) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every weight of a ranking model, in the order of its torch module."""
    d = arch.d_model
    RANKER.require(arch, work=WORK)
    stem: RankingStem = arch.stem
    yield "stem.items.weight", (stem.items + 1, stem.table_width(d))
    if stem.bag:
        yield "stem.tags.weight", (stem.tags + 1, stem.table_width(d))
    if stem.width:
        yield from _linear("stem.projection", d, stem.values, bias=stem.bias)
    for i, layer in enumerate(arch.layers):
        if layer.attention is not None:
            yield f"positions.{i}.weight", (layer.attention.relative_buckets, layer.attention.heads)
    for i, layer in enumerate(arch.layers):
        if layer.attention is not None:
            yield from _norm(arch, f"layers.{i}.attention_norm")
            yield from _attention(layer.attention, d, f"layers.{i}.attention")
        if layer.ffn is not None:
            yield from _norm(arch, f"layers.{i}.ffn_norm")
            yield from _feed_forward(layer.ffn, d, f"layers.{i}.ffn")
    yield from _norm(arch, "norm")
    if arch.head == "scores":
        yield from _linear("head", 1, d, bias=True)


def _transcriber(arch: ArchSpec) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every weight of a transcribing model, in the order of its torch module."""
    d = arch.d_model
    TRANSCRIBER.require(arch, work=WORK)
    stem: SoundStem = arch.stem
    for i, (into, out) in enumerate(stem.matrices(d)):
        yield from _linear(f"stem.frames.{i}", out, into, bias=True)
    yield "positions.weight", (arch.max_tokens, d)
    for i, layer in enumerate(arch.layers):
        if layer.attention is not None:
            yield from _norm(arch, f"layers.{i}.attention_norm")
            yield from _attention(layer.attention, d, f"layers.{i}.attention")
        if layer.conv is not None:
            place = f"layers.{i}.conv"
            yield from _norm(arch, f"{place}_norm")
            yield from _linear(f"{place}.into", 2 * d, d, bias=True)
            yield f"{place}.filter.weight", (d, 1, layer.conv.taps)
            yield f"{place}.filter.bias", (d,)
            yield f"{place}.norm.weight", (d,)
            yield f"{place}.norm.bias", (d,)
            yield from _linear(f"{place}.out", d, d, bias=True)
        if layer.ffn is not None:
            yield from _norm(arch, f"layers.{i}.ffn_norm")
            yield from _feed_forward(layer.ffn, d, f"layers.{i}.ffn")
    yield from _norm(arch, "norm")
    yield from _linear("head", arch.classes, d, bias=True)


def _denoiser(arch: ArchSpec) -> Iterator[tuple[str, Shape]]:
    """Name and shape of every weight of a denoiser, in the order of its torch module."""
    d = arch.d_model
    DENOISER.require(arch, work=WORK)
    stem: ImageStem = arch.stem
    denoiser: Denoiser = arch.denoiser
    yield from _linear("stem.projection", d, stem.values, bias=stem.bias)
    yield "positions.weight", (stem.tokens, d)
    yield "labels.weight", (denoiser.rows, d)
    for name in denoiser.told:
        yield from _linear(f"told.{name}.up", d, denoiser.frequencies, bias=True)
        yield from _linear(f"told.{name}.down", d, d, bias=True)
    for i, layer in enumerate(arch.layers):
        if layer.attention is not None:
            yield from _attention(layer.attention, d, f"layers.{i}.attention")
        if layer.ffn is not None:
            yield from _feed_forward(layer.ffn, d, f"layers.{i}.ffn")
    for name, width in modulation_widths(arch).items():
        yield from _linear(name, width, d, bias=True)
    yield from _linear("head", denoiser.values(stem), d, bias=True)
    if denoiser.latents is not None:
        for i, (into, out) in enumerate(denoiser.latents.shapes(stem.channels)):
            yield f"decoder.convs.{i}.weight", (out, into, KERNEL, KERNEL)
            yield f"decoder.convs.{i}.bias", (out,)


def modulation_widths(arch: ArchSpec) -> dict[str, int]:
    """Rows of each matrix that modulates a denoiser, by name: of every layer with blocks, and of the last norm."""
    widths = {f"modulations.{i}": arch.modulation_width(layer) for i, layer in enumerate(arch.layers)}
    return {name: width for name, width in widths.items() if width} | {"modulations.end": END_PARTS * arch.d_model}


def _norm(arch: ArchSpec, place: str) -> Iterator[tuple[str, Shape]]:
    yield f"{place}.weight", (arch.d_model,)
    if arch.norm_bias:
        yield f"{place}.bias", (arch.d_model,)


def _conv(arch: ArchSpec, place: str, taps: int) -> Iterator[tuple[str, Shape]]:
    if taps:
        yield f"{place}.weight", (arch.d_model, 1, taps)


def _linear(place: str, rows: int, columns: int, *, bias: bool) -> Iterator[tuple[str, Shape]]:
    yield f"{place}.weight", (rows, columns)
    if bias:
        yield f"{place}.bias", (rows,)


def _attention(block: Attention, d_model: int, place: str) -> Iterator[tuple[str, Shape]]:
    yield from _linear(f"{place}.q", block.query_width, d_model, bias=block.qkv_bias)
    yield from _linear(f"{place}.k", block.kv_width, d_model, bias=block.qkv_bias and block.key_bias)
    yield from _linear(f"{place}.v", block.kv_width, d_model, bias=block.qkv_bias)
    if block.pointwise:
        yield from _linear(f"{place}.gate", block.query_width, d_model, bias=block.qkv_bias)
        yield f"{place}.norm.weight", (block.query_width,)
    yield from _linear(f"{place}.out", d_model, block.query_width, bias=block.out_bias)
    if block.qk_norm:
        yield f"{place}.q_norm.weight", (block.head_size,)
        yield f"{place}.k_norm.weight", (block.head_size,)


def _feed_forward(block: FeedForward, d_model: int, place: str) -> Iterator[tuple[str, Shape]]:
    for name in ("gate", "up") if block.gated else ("up",):
        yield from _linear(f"{place}.{name}", block.width, d_model, bias=block.bias)
    yield from _linear(f"{place}.down", d_model, block.width, bias=block.bias)


_WEIGHTS: Mapping[Form, Callable[[ArchSpec], Iterator[tuple[str, Shape]]]] = {
    DECODER: _decoder,
    ENCODER: _encoder,
    CLASSIFIER: _classifier,
    IMAGE_ENCODER: _image_encoder,
    DENOISER: _denoiser,
    TRANSCRIBER: _transcriber,
    LISTENER: _listener,
    RANKER: _ranker,
}
