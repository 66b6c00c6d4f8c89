"""Image classifiers that chipwise builds, trains and exports itself.

The models consist of patches, optionally after convolutions; a class token or mean pooling; learned positions or
position biases; pre-norm layers; and a matrix over classes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.departures import encoding_departures, heads_departures, in_layers, unbuilt
from chipwise.model.arch.ends import Classes
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.form import Form, Modelling, Sketch, random_signals, same_ends
from chipwise.model.kinds.image import lower, weights
from chipwise.model.kinds.image.distances.spec import bias_rows
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.kinds.question.question import QuestionStem, image_of, question_of

FREE = {  # ``later`` fields that classifiers set
    "stem", "classes", "pooling", "head", "causal", "question", "projector", "cross",
}  # fmt: skip
_WHERE = "for images"
_PLACED = ("relative_buckets",)  # later fields of attention that denoisers do not have


def _departures(arch: ArchSpec) -> Iterator[str]:
    asked, stem = question_of(arch.stem), image_of(arch.stem)
    yield from unbuilt(arch, free=FREE)
    if not isinstance(arch.head, Classes):
        yield f"head = {arch.head.name!r} is not supported for images"
    if arch.head.pooling == "attention":
        yield "pooling by attention is not supported"
    if arch.positions not in (("learned", "none") if asked is None else ("learned",)):
        yield f"positions = {arch.positions!r} is not supported for images"
    if stem.mask_token:
        yield "a stem with a mask token is not supported"
    if stem.stages or stem.stem_norm:
        yield "narrower layers on finer grids before the model's own (Swin) are not supported"
    if stem.sides[-1] % stem.edge:
        yield f"patches of {stem.patch} pixels that do not divide an image of {stem.image_size} are not supported"
    if asked is None and arch.max_tokens != stem.tokens:
        yield f"max_tokens = {arch.max_tokens} is not supported for a stem with {stem.tokens} positions"
    if any(side % 2 for side in stem.sides[:-1]):
        yield f"images of {stem.image_size} pixels, which the convolutions cannot halve evenly, are not supported"
    if asked is not None and stem.bias:
        yield "a question is not supported if the image's patch matrix has a bias"
    if arch.head.token_width:
        yield "a projector without a question is not supported"
    if asked is not None:
        projector = asked.projector
        plain = replace(projector, widths=(arch.d_model,) * 2, pool=1, join=1)
        if plain != Projector(widths=(arch.d_model,) * 2) or projector.pool * projector.join not in (1, 2):
            yield "a projector must have two matrices and read one patch, or four averaged or joined patches"
    biased = any(isinstance(layer.attention, Attention) and layer.attention.relative_buckets for layer in arch.layers)
    if biased and (arch.positions == "learned" or asked is not None or stem.prefix_tokens > 1):
        yield "position biases are not supported together with learned positions, a question or several prefix tokens"
    yield from layer_departures(arch, free=_PLACED)
    yield from _bias_departures(arch, stem)


def _bias_departures(arch: ArchSpec, stem: ImageStem) -> Iterator[str]:
    """A phrase for each position-bias table that does not have one row for each distance between positions."""
    for i, layer in enumerate(arch.layers):
        block = layer.attention
        if not isinstance(block, Attention) or not block.relative_buckets:
            continue
        if block.relative_buckets != (rows := bias_rows(stem)):
            yield f"layers[{i}].attention.relative_buckets = {block.relative_buckets} must be {rows}, one per distance"


def layer_departures(arch: ArchSpec, *, free: Collection[str] = ()) -> Iterator[str]:
    """Reasons why layers of an image model are not supported. Fields in ``free`` may have any value."""

    def in_layer(layer: Layer) -> Iterator[str]:
        yield from encoding_departures(layer, free=(*FREE, *free), where=_WHERE)
        if layer.cross is not None:
            found = (*unbuilt(layer.cross, free=FREE), *heads_departures(layer.cross, where=_WHERE))
            yield from (f"cross.{each}" for each in found)

    yield from in_layers(arch.layers, in_layer)


def _task(arch: ArchSpec) -> str:
    stem = arch.stem
    if stem.asks:
        return "multimodal"
    return "vision" if stem.axes == 2 else "speech"


def _does(arch: ArchSpec) -> str:
    asked, stem = question_of(arch.stem), image_of(arch.stem)
    size = " x ".join(str(stem.image_size) for _ in range(stem.axes))
    if asked is not None:
        return f"answers questions about images of {size} pixels"
    kind = "images" if stem.axes == 2 else "spectrograms"
    return f"classifies {kind} of {size} in {stem.channels} channels into {arch.outputs:,} classes"


def _modelling(arch: ArchSpec) -> Modelling:
    axes = arch.stem.axes
    kind = "Image" if axes == 2 else "Audio"
    return Modelling(
        "modeling_chipwise_vision.py", f"AutoModelFor{kind}Classification", f"ChipwiseFor{kind}Classification"
    )


def stem_words(stem: ImageStem) -> str:
    """The patch size and convolutions as words of a design's summary, spelled as in a run file."""
    return f"p{stem.patch} conv{'-'.join(map(str, stem.convs))}" if stem.convs else f"p{stem.patch} patches"


def seen_words(arch: ArchSpec) -> str:
    """The word ``relative`` if attention has position biases; otherwise empty."""
    return " relative" if any(layer.attention and layer.attention.relative_buckets for layer in arch.layers) else ""


def sketch(arch: ArchSpec) -> Sketch:
    """The words in a design's summary that describe its stem, its pooling or question, and its position biases."""
    words, seen, asked = stem_words(image_of(arch.stem)), seen_words(arch), question_of(arch.stem)
    if asked is not None:
        merged = "joined " if asked.projector.join > 1 else "mean " if asked.projector.pool > 1 else ""
        first = f"{words} {merged}{asked.image_tokens}+{asked.question.tokens}"
        return Sketch(first=first, attention=seen + (" cross" if arch.crosses else ""))
    pooling = "class token" if arch.head.pooling == "first" else arch.head.pooling
    return Sketch(first=f"{words} {pooling}", attention=seen)


def same_patches(sub: ArchSpec, whole: ArchSpec) -> None:
    """Checks that two stems differ only in their convolutions' channels, so both cut an image into the same patches.

    Raises:
        SpecError: The stems differ in something else, or one of the models answers questions.
    """
    if any(question_of(stem) is not None for stem in (sub.stem, whole.stem)):
        raise SpecError("models that answer questions about images cannot be cut from larger ones", field="question")
    same_ends(sub, whole)
    small, large = sub.stem_as(ImageStem), whole.stem_as(ImageStem)
    if replace(small, convs=large.convs) != large or len(small.convs) != len(large.convs):
        raise SpecError("must cut images into the same patches as the larger model", field="stem")


def _inputs(arch: ArchSpec, generator: np.random.Generator, batch: int) -> tuple[AnyArray, ...]:
    """A batch of random images, with random question words if the model answers questions."""
    images, asked = random_signals(arch, generator, batch), question_of(arch.stem)
    if asked is None:
        return images
    return (*images, generator.integers(0, asked.question.words, (batch, asked.question.tokens)))


CLASSIFIER = Form(
    name="classifier",
    stem=(ImageStem, QuestionStem),
    other="it does not read images",
    departures=_departures,
    does=_does,
    weights=(weights.stem, weights.classes),
    package="image",
    modelling=_modelling,
    folders="image.hf",
    inputs=_inputs,
    operators=lower.OPERATORS,
    task=_task,
    sketch=sketch,
    check_cut=same_patches,
    shrinks=True,
)
