"""Published image encoders. chipwise predicts their costs, but neither exports nor trains them.

They are DINOv2, BEiT, ViT without a classification head, and the image towers of CLIP, SigLIP and vision-language
models.

They have patches with learned positions or relative position biases (BEiT), optionally a norm of the patches (CLIP),
and pre-norm layers whose blocks' outputs may be scaled (DINOv2, BEiT). The output is the states of all positions, one
pooled vector, logits (BEiT), or, for a tower, tokens for the decoder.
"""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.departures import encoding_departures, in_layers, unbuilt
from chipwise.model.arch.ends import Classes, Pooler, States
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.form import Form
from chipwise.model.kinds.image import lower_published
from chipwise.model.kinds.image.distances.spec import bias_rows
from chipwise.model.kinds.image.form import same_patches, sketch
from chipwise.model.kinds.image.gives import as_run, gives
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector

_FREE = {
    "stem", "head", "pooling", "causal", "embedding_norm", "final_norm", "scale", "projector", "projection",
    "mask_token", "classes", "relative_buckets", "key_bias",
}  # fmt: skip
_WHERE = "in image encoders"


def _encodes(arch: ArchSpec) -> bool:
    """False for classifiers without learned scale factors of blocks, such as ViT; true for all other image models."""
    return not isinstance(arch.head, Classes) or any(layer.scale for layer in arch.layers)


def _departures(arch: ArchSpec) -> Iterator[str]:
    stem = arch.stem_as(ImageStem)
    yield from unbuilt(arch, free=_FREE)
    yield from unbuilt(stem, free=_FREE)
    if arch.norm_place != "pre" or not arch.norm_weight:
        yield "norms that are not before the blocks, or have no weights, are not supported in image encoders"
    if arch.positions not in ("learned", "none"):
        yield f"positions = {arch.positions!r} is not supported in image encoders"
    if stem.axes != 2 or stem.convs or stem.sides[-1] < stem.patch:
        yield "signals, convolutions, and images smaller than a patch are not supported in image encoders"
    elif arch.max_tokens not in (stem.tokens, stem.patches + 1):
        yield f"max_tokens = {arch.max_tokens} is not supported for a stem with {stem.tokens} positions"
    classes = isinstance(arch.head, Classes)
    pooled = ("mean",) if classes else ("first", "attention")
    if arch.head.pooling not in pooled:
        yield f"pooling = {arch.head.pooling!r} is not supported in image encoders"
    if classes and not arch.final_norm:
        yield "classes without a final norm are not supported in image encoders"
    if arch.head.projection and arch.head.pooling != "first":
        yield "a projection after pooling by attention is not supported"
    last = arch.layers[-1] if arch.layers else None
    if arch.head.pooling == "attention" and (last is None or last.attention is None or last.ffn is None):
        yield "pooling by attention is not supported unless the last layer has attention and a feed-forward"
    if gives(arch) == "tokens":
        yield from _projector_departures(arch)
    yield from in_layers(arch.layers, lambda layer: _layer_departures(layer, stem))


def _projector_departures(arch: ArchSpec) -> Iterator[str]:
    """Reasons why a tower's projector is not supported."""
    projector, stem = arch.head_as(Projector), arch.stem_as(ImageStem)
    if projector.activation != "gelu" and len(projector.widths) > 1:
        yield f"a projector with {projector.activation} between its matrices is not supported"
    if projector.deeper:
        yield "a projector that feeds several layers of the decoder is not supported"
    if projector.norm != "none" and (projector.norm != arch.norm or projector.pool > 1):
        yield "a projector whose norm differs from the tower's, or follows pooling, is not supported"
    if stem.grid % (projector.pool * projector.join) or (projector.pool > 1 and projector.join > 1):
        yield "a projector that pools and joins, or whose squares of patches do not divide the grid, is not supported"


def _layer_departures(layer: Layer, stem: ImageStem) -> Iterator[str]:
    yield from encoding_departures(layer, free=_FREE, where=_WHERE)
    if not layer.attention_norm or not layer.ffn_norm:
        yield f"blocks without norms are not supported {_WHERE}"
    block = layer.attention
    if isinstance(block, Attention):
        if block.relative_buckets not in (0, bias_rows(stem)):
            yield f"attention.relative_buckets = {block.relative_buckets} is not the number of distances"
        if block.head_size % 8:
            yield f"head size {block.head_size} is not supported; it must be a multiple of 8"


IMAGE_ENCODER = Form(
    name="image encoder",
    stem=ImageStem,
    head=(States, Pooler, Projector, Classes),
    only=_encodes,
    other="it does not encode images",
    departures=_departures,
    does=lambda arch: "encodes images",
    as_run=as_run,
    operators=lower_published.OPERATORS,
    sketch=sketch,
    check_cut=same_patches,
    untrained="chipwise only predicts the cost of published image encoders",
)
