"""The record that describes a kind of model; each kind's folder makes one, and ``kinds/table.py`` lists them."""

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
from chipwise.model.blocks.cut import Index
from chipwise.model.blocks.lowering import Operators
from chipwise.model.blocks.weights import Shape, Shapes

MOST_TOKENS = 32  # of random texts
Tensors = Mapping[str, Float32Array]


class Checkpoint(NamedTuple):
    """What a Hugging Face folder holds of a model."""

    config: Mapping[str, object]
    tensors: Iterator[tuple[str, Float32Array]]
    shapes: Mapping[str, Shape]  # of the model's weights, by our names


Reader = Callable[[ArchSpec, Checkpoint], tuple[ArchSpec, Tensors]]
"""The model and its weights by our names; unknown names are kept."""


class Modelling(NamedTuple):
    """The modelling file of a kind of model that transformers does not have."""

    file: str
    auto: str  # class of transformers that finds it
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """Words for what sets a design of a kind apart, in the line that designs are compared by.

    Attributes:
        first: Before width and depth: the stem.
        layers: Behind the depth, with a space before each.
        attention: Behind the heads, with a space before each.
        last: Before the formats.
        groups: Whether heads are given with those of keys and values, rather than with their size.
    """

    first: str = ""
    layers: str = ""
    attention: str = ""
    last: str = ""
    groups: bool = False


def joined(items: list[str]) -> str:
    """Words of layers in order, with counts of equal neighbours: ``swiglu:64-swiglu:128x3``."""
    if len(set(items)) == 1:
        return items[0]
    counted = [(item, len(list(alike))) for item, alike in groupby(items)]
    return "-".join(item if count == 1 else f"{item}x{count}" for item, count in counted)


def text_sketch(arch: ArchSpec) -> Sketch:
    """Shared layers and convolutions, and the table of tokens."""
    tied = "tied" if arch.tie_embeddings else "untied"
    shared = " shared" if any(layer.shares is not None for layer in arch.layers) else ""
    blocks = "both" if arch.layers[0].ffn_conv else "attention" if arch.layers[0].attention_conv else ""
    shared += f" conv:{blocks}" if blocks else ""
    return Sketch(layers=shared, last=f"v{arch.vocab_size} {tied}", groups=True)


def same_input(sub: ArchSpec, whole: ArchSpec) -> None:
    """Checks that both read the same kind of thing.

    Raises:
        SpecError: They do not.
    """
    if sub.reads != whole.reads:
        raise SpecError("images are cut into other patches than the whole's", field="stem")


Axes = dict[str, dict[int, Index]]
"""Rows of axes that are not cut from the front, by weight and axis."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HfFolders:
    """Reads and writes Hugging Face folders of a kind's classes that transformers has.

    Attributes:
        write: Config and weights as transformers' class has them; None where no class computes exactly the model.
        readers: By the model type of a config.
    """

    write: Callable[[ArchSpec, Tensors], tuple[dict[str, object], Tensors] | None]
    readers: Mapping[str, Reader]


def random_tokens(arch: ArchSpec, generator: np.random.Generator, batch: int) -> tuple[AnyArray, ...]:
    """Random texts."""
    return (generator.integers(0, arch.vocab_size, (batch, min(MOST_TOKENS, arch.max_tokens))),)


def random_signals(arch: ArchSpec, generator: np.random.Generator, batch: int) -> tuple[AnyArray, ...]:
    """Random images or sounds, as the stem takes them."""
    return (generator.standard_normal((batch, *arch.stem.shape), np.float32),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """A kind of model that chipwise builds, by what it reads and makes.

    Attributes:
        name: What messages call such a model.
        matches: Whether a model is of this kind, whether all of it is built or not.
        weights: Names and shapes of the weights before the layers, and of those behind them.
        operators: What tells its operators from another kind's; None if none are listed.
        graph: The module of ``chipwise.model.kinds`` that makes ONNX nodes of it.
        module: The module of ``chipwise.model.kinds`` with its torch module.
        modelling: What loads a folder of it that transformers has no code for; None where nothing is saved.
        folders: The module of ``chipwise.model.kinds`` for folders of classes that transformers has (its
            :class:`HfFolders`, ``FOLDERS``); empty where there are none.
        inputs: Random inputs of its torch module, so many at once.
        outputs: What its outputs are called.
        gives: Whether its ONNX file gives the outputs of all positions, or their mean.
        as_run: The model without the layers that nothing reads.
        departures: Half a sentence for each block or field of a model of this kind with which it is not built.
        other: Half a sentence for a model that does not match; empty where ``departures`` say what is missing.
        task: The task of a run file whose data trains it, if any does.
        does: What it reads and makes, in words.
        sketch: What its designs are compared by beside their layers.
        check_cut: Refuses a model whose weights are no part of a larger one's, by what stands before its layers.
        cut_axes: Of that model, the larger one, and the larger one's weight that each of its weights is cut from: what
            is not cut from the front of weights outside the layers.
        untrained: Why chipwise trains none, where there is no task; empty for what departs from it.
        shrinks: Whether `chipwise shrink` cuts smaller models from it.
        fusions: Operators that its graphs may write as one.
        tables_shared: Whether data-parallel copies may each hold a part of its tables.
    """

    name: str
    matches: Callable[[ArchSpec], bool]
    departures: Callable[[ArchSpec], Iterator[str]]
    does: Callable[[ArchSpec], str]
    weights: tuple[Callable[[ArchSpec], Shapes], Callable[[ArchSpec], Shapes]]
    graph: str
    module: str
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
    fusions: tuple[str, ...] = ()
    tables_shared: bool = False

    def hf_folders(self) -> HfFolders | None:
        """What reads and writes folders of transformers' classes, if it has any."""
        if not self.folders:
            return None
        found: HfFolders = import_module(f"{__package__}.{self.folders}").FOLDERS
        return found

    def builds(self, arch: ArchSpec) -> bool:
        """Whether chipwise builds ``arch`` as this kind."""
        return self._departure(arch) is None

    def _departure(self, arch: ArchSpec) -> str | None:
        """The first reason why ``arch`` is not built as this kind."""
        if self.other and not self.matches(arch):
            return self.other
        return next(self.departures(arch), None)

    def require(self, arch: ArchSpec, *, work: str) -> None:
        """Checks that chipwise builds ``arch`` as this kind.

        Args:
            arch: The model.
            work: What was requested, for the error message ("exported to ONNX").

        Raises:
            Unsupported: It does not; names the block or field, and where it stands.
        """
        found = self._departure(arch)
        if found is not None:
            raise Unsupported(f"{arch.name} cannot be {work}: {found}; chipwise estimate prices it all the same")
