"""Classifiers of short texts that chipwise builds, trains and exports itself.

Such a model has a word table with learned positions, pre-norm layers of bidirectional attention and feed-forwards, mean
pooling, and a matrix over classes. Texts have a fixed length: shorter ones are padded in front with word 0, which is
not masked; the model learns to ignore it.

References:
    Devlin et al. 2019, BERT, arXiv:1810.04805; Vaswani et al. 2017, arXiv:1706.03762, with norms before blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from chipwise.core.arrays import AnyArray
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.departures import encoding_departures, in_layers, unbuilt
from chipwise.model.arch.ends import Classes
from chipwise.model.blocks.weights import Shapes, linear, norm
from chipwise.model.kinds.form import Form, Modelling, Sketch, same_ends
from chipwise.model.kinds.sentence import lower
from chipwise.model.kinds.sentence.stem import SentenceStem

_FREE = {"stem", "classes", "head", "pooling", "causal"}  # ``later`` fields that these classifiers set


def _departures(arch: ArchSpec) -> Iterator[str]:
    stem, head = arch.stem_as(SentenceStem), arch.head
    yield from unbuilt(arch, free=_FREE)
    if not isinstance(head, Classes) or head.pooling != "mean":
        yield f"head = {head.name!r} with pooling = {head.pooling!r} is not supported for texts"
    if arch.positions != "learned":
        yield f"positions = {arch.positions!r} is not supported for texts"
    if arch.max_tokens != stem.tokens:
        yield f"max_tokens = {arch.max_tokens} is not supported for texts of {stem.tokens} words"
    yield from in_layers(arch.layers, lambda layer: encoding_departures(layer, free=_FREE, where="for texts"))


def _stem(arch: ArchSpec) -> Shapes:
    stem = arch.stem_as(SentenceStem)
    yield "stem.words.weight", (stem.words, stem.table_width(arch.d_model))
    if stem.width:
        yield from linear("stem.projection", arch.d_model, stem.width, bias=False)
    yield "positions.weight", (arch.max_tokens, arch.d_model)


def _head(arch: ArchSpec) -> Shapes:
    yield from norm(arch, "norm")
    yield from linear("head", arch.outputs, arch.d_model, bias=True)


def _same_texts(sub: ArchSpec, whole: ArchSpec) -> None:
    """Checks that the stems differ only in the width of table rows.

    The width may differ only if both models have a matrix after the table.
    """
    same_ends(sub, whole)
    small, large = sub.stem_as(SentenceStem), whole.stem_as(SentenceStem)
    if bool(small.width) != bool(large.width) or small.width > large.width:
        raise SpecError(
            f"rows of {small.width} values do not fit into the larger model's rows of {large.width}", field="stem.width"
        )
    if replace(small, width=large.width) != large:
        raise SpecError("must have the same text length and vocabulary as the larger model", field="stem")


def _inputs(arch: ArchSpec, generator: np.random.Generator, batch: int) -> tuple[AnyArray, ...]:
    return (generator.integers(0, arch.stem_as(SentenceStem).words, (batch, arch.max_tokens)),)


SENTENCES = Form(
    name="classifier of texts",
    stem=SentenceStem,
    other="it does not classify texts",
    departures=_departures,
    does=lambda arch: f"classifies texts of {arch.max_tokens:,} words into {arch.outputs:,} classes",
    weights=(_stem, _head),
    package="sentence",
    modelling=lambda arch: Modelling(
        "modeling_chipwise_sentence.py", "AutoModelForSequenceClassification", "ChipwiseForSequenceClassification"
    ),
    operators=lower.OPERATORS,
    task=lambda arch: "sentences",
    inputs=_inputs,
    sketch=lambda arch: Sketch(first=f"{arch.max_tokens} words {arch.stem_as(SentenceStem).table}"),
    check_cut=_same_texts,
)
