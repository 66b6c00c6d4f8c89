"""The record that describes a kind of model; each kind's folder defines one, and ``kinds/table.py`` lists them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from typing import Literal, NamedTuple

import numpy as np

from chipwise.core.arrays import AnyArray, Float32Array
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.trunk import Head, Stem
from chipwise.model.blocks.cut import Index
from chipwise.model.blocks.lowering import Operators
from chipwise.model.blocks.weights import Shape, Shapes

MOST_TOKENS = 32  # longest random text
Tensors = Mapping[str, Float32Array]


class Checkpoint(NamedTuple):
    """The contents of a Hugging Face folder."""

    config: Mapping[str, object]
    tensors: Iterator[tuple[str, Float32Array]]
    shapes: Mapping[str, Shape]  # shapes of the weights, by chipwise's names


Reader = Callable[[ArchSpec, Checkpoint], tuple[ArchSpec, Tensors]]
"""Reads the architecture and the weights under chipwise's names; unknown names are kept."""


class Modelling(NamedTuple):
    """The modelling file for a kind of model that transformers has no class for."""

    file: str
    auto: str  # transformers' class that loads it
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """The words that describe a design of a kind in its one-line summary.

    Attributes:
        first: Words about the stem, before width and depth.
        layers: Words after the depth, each preceded by a space.
        attention: Words after the heads, each preceded by a space.
        last: Words before the weight formats.
        groups: Whether heads are written with their KV heads rather than with their size.
    """

    first: str = ""
    layers: str = ""
    attention: str = ""
    last: str = ""
    groups: bool = False


def joined(items: list[str]) -> str:
    """One word per layer, with repeats counted: ``swiglu:64-swiglu:128x3``."""
    if len(set(items)) == 1:
        return items[0]
    counted = [(item, len(list(alike))) for item, alike in groupby(items)]
    return "-".join(item if count == 1 else f"{item}x{count}" for item, count in counted)


def text_sketch(arch: ArchSpec) -> Sketch:
    """The words for text models: shared layers, convolutions, and vocabulary."""
    tied = "tied" if arch.tie_embeddings else "untied"
    shared = " shared" if any(layer.shares is not None for layer in arch.layers) else ""
    blocks = "both" if arch.layers[0].ffn_conv else "attention" if arch.layers[0].attention_conv else ""
    shared += f" conv:{blocks}" if blocks else ""
    if arch.causal:
        shared += " layernorm" if arch.norm == "layernorm" else ""
        shared += "" if arch.norm_place == "pre" else f" norm:{arch.norm_place}"
    return Sketch(layers=shared, last=f"v{arch.vocab_size} {tied}", groups=True)


def same_input(sub: ArchSpec, whole: ArchSpec) -> None:
    """Checks that both models read the same kind of input.

    Raises:
        SpecError: They read different kinds of input.
    """
    if sub.reads != whole.reads:
        raise SpecError("images are cut into other patches than the whole's", field="stem")


def same_ends(sub: ArchSpec, whole: ArchSpec) -> None:
    """Checks that inputs are of one kind, and heads equal apart from fields that do not affect weights.

    Raises:
        SpecError: They read different kinds of input.
    """
    same_input(sub, whole)
    large = whole.head.as_trained().record()
    for name, value in sub.head.as_trained().record().items():
        if value != large.get(name):
            raise SpecError(f"{value} differs from the whole's {large.get(name)}", field=name)


Axes = dict[str, dict[int, Index]]
"""Rows to keep, by weight and axis, for axes that do not simply keep their first rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HfFolders:
    """Reads and writes Hugging Face folders for transformers' own classes.

    Attributes:
        write: Returns config and weights in the form of transformers' class; None if no class computes the model
            exactly.
        readers: Functions that read a folder, by the config's ``model_type``.
    """

    write: Callable[[ArchSpec, Tensors], tuple[dict[str, object], Tensors] | None]
    readers: Mapping[str, Reader]


def random_tokens(arch: ArchSpec, generator: np.random.Generator, batch: int) -> tuple[AnyArray, ...]:
    """Random texts."""
    return (generator.integers(0, arch.vocab_size, (batch, min(MOST_TOKENS, arch.max_tokens))),)


def random_signals(arch: ArchSpec, generator: np.random.Generator, batch: int) -> tuple[AnyArray, ...]:
    """Random images or sounds of the stem's shape."""
    return (generator.standard_normal((batch, *arch.stem.shape), np.float32),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A kind of model that chipwise builds.

    Attributes:
        name: Its name in messages.
        stem: The class or classes of its models' stems.
        head: The class or classes of their heads.
        only: Which models with such a stem and head are of this kind, even if chipwise does not build every part.
        weights: Returns names and shapes of the weights of the stem and of the head; None if it is not exported.
        operators: The operators in which it differs from other kinds; None if its operators are not listed.
        graph: The module in ``chipwise.model.kinds`` that adds its ONNX nodes; empty if it is only predicted.
        module: The module in ``chipwise.model.kinds`` with its torch module; empty if it is only predicted.
        modelling: The modelling file for Hugging Face folders that transformers has no class for; None if there is
            none.
        folders: The module in ``chipwise.model.kinds`` whose ``FOLDERS`` (:class:`HfFolders`) handles folders for
            transformers' own classes; empty if there is none.
        inputs: Returns a batch of random inputs of its torch module.
        outputs: Names of its outputs.
        gives: Whether its ONNX file outputs all positions, or their mean.
        as_run: Returns the model without layers whose results are unused.
        departures: Yields a phrase for each block or field that prevents chipwise from building a model of this kind.
        other: A phrase for a model that does not match; empty if ``departures`` explain it.
        task: The task whose data train it, if there is one.
        does: Describes its input and output in words.
        sketch: The words about stem and head in a design's one-line summary.
        check_cut: Raises an error if a model's stem cannot be cut from a larger model's.
        cut_axes: Given the smaller model, the larger model, and the larger model's weight for each of its weights,
            returns indices for axes outside the layers that do not simply keep their first values.
        untrained: Why chipwise does not train this kind, if no task does.
        shrinks: Whether `chipwise shrink` cuts smaller models from it.
        tables_shared: Whether data-parallel replicas may each hold a part of its tables.
    """

    name: str
    departures: Callable[[ArchSpec], Iterator[str]]
    does: Callable[[ArchSpec], str]
    weights: tuple[Callable[[ArchSpec], Shapes], Callable[[ArchSpec], Shapes]] | None = None
    graph: str = ""
    module: str = ""
    stem: type[Stem] | tuple[type[Stem], ...] = Stem
    head: type[Head] | tuple[type[Head], ...] = Head
    only: Callable[[ArchSpec], bool] = lambda arch: True
    modelling: Callable[[ArchSpec], Modelling] | None = None
    folders: str = ""
    inputs: Callable[[ArchSpec, np.random.Generator, int], tuple[AnyArray, ...]] = random_signals
    outputs: str = "logits"
    gives: Literal["all", "mean"] = "all"
    operators: Operators | None = None
    as_run: Callable[[ArchSpec], ArchSpec] = lambda arch: arch
    task: Callable[[ArchSpec], str] | None = None
    sketch: Callable[[ArchSpec], Sketch] = text_sketch
    check_cut: Callable[[ArchSpec, ArchSpec], None] = same_input
    cut_axes: Callable[[ArchSpec, ArchSpec, Mapping[str, str]], Axes] = lambda sub, whole, sources: {}
    other: str = ""
    untrained: str = ""
    shrinks: bool = False
    tables_shared: bool = False

    def hf_folders(self) -> HfFolders | None:
        """The reader and writer of folders for transformers' own classes, if there is one."""
        if not self.folders:
            return None
        found: HfFolders = import_module(f"{__package__}.{self.folders}").FOLDERS
        return found

    def matches(self, arch: ArchSpec) -> bool:
        """Whether ``arch`` is of this kind, even if chipwise does not build every part of it."""
        return isinstance(arch.stem, self.stem) and isinstance(arch.head, self.head) and self.only(arch)

    def builds(self, arch: ArchSpec) -> bool:
        """Whether chipwise builds ``arch`` as this kind."""
        return self._departure(arch) is None

    def _departure(self, arch: ArchSpec, *, lowered: bool = False) -> str | None:
        """The first reason why ``arch`` is not built as this kind, or not ``lowered`` as it."""
        if self.other and not self.matches(arch):
            return self.other
        found = next(self.departures(arch), None)
        if found is None and not self.graph and not lowered:
            return (
                f"chipwise does not export a published {self.name}; write it to ONNX with its own tools and measure "
                "that file"
            )
        return found

    def require(self, arch: ArchSpec, *, work: str, lowered: bool = False) -> None:
        """Checks that chipwise builds ``arch`` as this kind.

        Args:
            arch: The model.
            work: The requested action, for the error message ("exported to ONNX").
            lowered: Whether only the model's operators are needed, for a prediction.

        Raises:
            Unsupported: chipwise does not build it; names the block or field and its place.
        """
        found = self._departure(arch, lowered=lowered)
        if found is not None:
            raise Unsupported(f"{arch.name} cannot be {work}: {found}; chipwise estimate prices it all the same")
