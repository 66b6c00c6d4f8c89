"""``Form``, the record that describes a kind of model. Each kind's folder defines one; ``kinds/table.py`` lists all."""

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
"""Returns the architecture and the weights under chipwise's names; weights with unknown names keep those names."""


class Modelling(NamedTuple):
    """The modelling file of a kind of model for which transformers has no class."""

    file: str
    auto: str  # the Auto class of transformers that loads the model
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """The words of a design's one-line summary that depend on the kind of model.

    Attributes:
        first: Words about the stem, before width and depth.
        layers: Words after the depth, each preceded by a space.
        attention: Words after the heads, each preceded by a space.
        last: Words before the weight formats.
        groups: Whether the summary gives the number of KV heads after the number of heads, and not the head size.
    """

    first: str = ""
    layers: str = ""
    attention: str = ""
    last: str = ""
    groups: bool = False


def joined(items: list[str]) -> str:
    """Joins one word per layer; repeated words are counted: ``swiglu:64-swiglu:128x3``."""
    if len(set(items)) == 1:
        return items[0]
    counted = [(item, len(list(alike))) for item, alike in groupby(items)]
    return "-".join(item if count == 1 else f"{item}x{count}" for item, count in counted)


def text_sketch(arch: ArchSpec) -> Sketch:
    """The summary's words for text models: shared layers, convolutions, norms and vocabulary."""
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
        SpecError: The models read different kinds of input.
    """
    if sub.reads != whole.reads:
        raise SpecError("must read the same kind of input as the larger model", field="stem")


def same_ends(sub: ArchSpec, whole: ArchSpec) -> None:
    """Checks that both models read the same kind of input, and that their heads agree in all that affects training.

    Raises:
        SpecError: The models' inputs or heads differ.
    """
    same_input(sub, whole)
    large = whole.head.as_trained().record()
    for name, value in sub.head.as_trained().record().items():
        if value != large.get(name):
            raise SpecError(f"{value} differs from the larger model's {large.get(name)}", field=name)


Axes = dict[str, dict[int, Index]]
"""For each weight, by axis: the indices to keep. Axes that are not listed keep their first values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HfFolders:
    """Functions that read and write Hugging Face folders for transformers' own classes.

    Attributes:
        write: Returns the config and the weights for transformers' class; None if no class computes the model
            exactly.
        readers: Maps each supported ``model_type`` to the function that reads folders of this type.
    """

    write: Callable[[ArchSpec, Tensors], tuple[dict[str, object], Tensors] | None]
    readers: Mapping[str, Reader]


def published_name(name: str, outside: Mapping[str, str], blocks: Mapping[str, str], layers: str) -> str:
    """The name that chipwise's weight ``name`` has in a published checkpoint.

    Args:
        name: The weight, such as ``layers.0.ffn.up.weight``.
        outside: Published names of the modules outside the layers.
        blocks: Published names of the modules in a layer.
        layers: Published name of the list of layers.
    """
    place, _, kind = name.rpartition(".")
    if place in outside:
        return f"{outside[place]}.{kind}"
    _, number, block = place.split(".", 2)
    return f"{layers}.{number}.{blocks[block]}.{kind}"


def random_tokens(arch: ArchSpec, generator: np.random.Generator, batch: int) -> tuple[AnyArray, ...]:
    """A batch of random texts."""
    return (generator.integers(0, arch.vocab_size, (batch, min(MOST_TOKENS, arch.max_tokens))),)


def random_signals(arch: ArchSpec, generator: np.random.Generator, batch: int) -> tuple[AnyArray, ...]:
    """A batch of random images or sounds with the stem's input shape."""
    return (generator.standard_normal((batch, *arch.stem.shape), np.float32),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A kind of model that chipwise builds.

    Attributes:
        name: The kind's name in messages.
        stem: The class or classes that the stem of such a model may have.
        head: The class or classes that the head of such a model may have.
        only: Given a model whose stem and head have these classes, returns whether the model is of this kind. It may be
            of this kind even if chipwise cannot build all of it.
        weights: Two functions, for stem and head, that return names and shapes of weights; None if the kind is not
            exported.
        operators: The operators that differ from those of other kinds; None if chipwise lists none for this kind.
        package: The package in ``chipwise.model.kinds`` whose ``graph`` adds the ONNX nodes and whose ``module`` has
            the torch module; empty if chipwise only predicts the costs of this kind.
        modelling: The modelling file for models that no class of transformers computes; None if the kind has no such
            file.
        folders: The module in ``chipwise.model.kinds`` whose ``FOLDERS`` (:class:`HfFolders`) handles Hugging Face
            folders for transformers' own classes; empty if there is no such module.
        inputs: Returns a batch of random inputs for the torch module.
        outputs: What the model outputs, in the plural ("logits").
        gives: What the ONNX file outputs: values for ``all`` positions, or the ``mean`` over positions.
        as_run: Returns the model without layers whose outputs are unused.
        departures: Yields a phrase for each block or field that prevents chipwise from building a model of this kind.
        other: The reason that an error message gives if a model is of another kind. If this is empty, ``departures``
            yields the reason.
        task: Returns the task whose data can train the model; None if chipwise does not train this kind.
        does: Returns in words what the model does, such as "classifies texts".
        sketch: Returns the words in a design's one-line summary that depend on the kind.
        check_cut: Raises an error if a model's stem cannot be cut from a larger model's.
        cut_axes: Returns which indices of the larger model's weights outside the layers to keep, as ``{weight: {axis:
            indices}}``. Axes that are not listed keep their first values.
            Arguments: the smaller model, the larger model, and a mapping from each weight's name in the smaller model
            to its name in the larger model.
        untrained: Why chipwise does not train this kind; empty if it does, or if there is no special reason.
        shrinks: Whether `chipwise shrink` can prune such a model.
        tables_shared: Whether data-parallel replicas may each store only a part of the embedding tables.
    """

    name: str
    departures: Callable[[ArchSpec], Iterator[str]]
    does: Callable[[ArchSpec], str]
    weights: tuple[Callable[[ArchSpec], Shapes], Callable[[ArchSpec], Shapes]] | None = None
    package: str = ""
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
        """The first reason why ``arch`` is not supported; None if there is none.

        With ``lowered``, it is enough that chipwise can list the model's operators.
        """
        if self.other and not self.matches(arch):
            return self.other
        found = next(self.departures(arch), None)
        if found is None and not self.package and not lowered:
            return (
                f"chipwise does not export a published {self.name}; export it to ONNX with other tools and measure "
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
            Unsupported: chipwise does not build the model; the message names the block or field, and where it is.
        """
        found = self._departure(arch, lowered=lowered)
        if found is not None:
            raise Unsupported(f"{arch.name} cannot be {work}: {found}; chipwise estimate can still predict its cost")
