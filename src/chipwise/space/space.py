"""SearchSpace: every choice is one integer gene, a candidate is a row of them.

Global genes come first, then the genes of layer 0, 1, …; genes of layers past the depth, or of layers that use an
earlier layer's weights, are inactive and held at 0 in canonical rows, so that equal designs are equal rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chipwise.core.dtypes import weight_format
from chipwise.core.errors import ChipwiseError, SpecError
from chipwise.spec import ArchSpec, Attention, Design, FeedForward, Layer
from chipwise.spec.arch import Activation

Rows = NDArray[np.int64]
FfnName = Literal["relu", "gelu", "silu", "reglu", "geglu", "swiglu"]
FFN_KINDS: dict[str, tuple[Activation, bool]] = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "silu": ("silu", False),
    "reglu": ("relu", True),
    "geglu": ("gelu", True),
    "swiglu": ("silu", True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpace:
    """What every layer chooses for itself."""

    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    ffn: tuple[FfnName, ...] = ("swiglu",)
    ffn_width: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSpec:
    """The space as a file states it. Every field lists the values that may be chosen."""

    d_model: tuple[int, ...]
    depth: tuple[int, ...]
    vocab_size: tuple[int, ...]
    layer: LayerSpace
    head_size: tuple[int, ...] = (32,)
    tie_embeddings: tuple[bool, ...] = (True,)
    weights: tuple[str, ...] = ("fp32",)
    sharing: tuple[Literal["none", "pairs"], ...] = ("none",)  # pairs: layers 1, 3, … use the weights of 0, 2, …
    layers: Literal["each", "alike"] = "each"
    norm: Literal["rmsnorm", "layernorm"] = "rmsnorm"
    max_tokens: int = 512

    def __post_init__(self) -> None:
        for name in ("d_model", "depth", "vocab_size", "head_size", "tie_embeddings", "weights", "sharing"):
            _listed(name, getattr(self, name))
        for name in ("heads", "kv_heads", "ffn", "ffn_width"):
            _listed(f"layer.{name}", getattr(self.layer, name))
        for name in self.weights:
            try:
                weight_format(name)
            except ChipwiseError as error:
                raise SpecError(str(error), field="weights") from None
        if any(size % 2 for size in self.head_size):
            raise SpecError("rotary positions need even head sizes", field="head_size")
        if not self.attention_choices():
            raise SpecError(
                f"no pair fits: none of kv_heads {list(self.layer.kv_heads)} divides any of heads "
                f"{list(self.layer.heads)}",
                field="layer.kv_heads",
            )

    def attention_choices(self) -> tuple[tuple[int, int], ...]:
        """The (heads, KV heads) pairs in which KV heads divide heads."""
        pairs = itertools.product(self.layer.heads, self.layer.kv_heads)
        return tuple((heads, kv) for heads, kv in pairs if heads % kv == 0)


def _listed(name: str, values: Sequence[object]) -> None:
    if not values:
        raise SpecError("the list is empty, so nothing can be chosen; name at least one value", field=name)
    if len(set(values)) != len(values):
        raise SpecError(f"a value is listed twice in {list(values)}", field=name)
    for value in values:
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise SpecError(f"must be at least 1, not {value}", field=name)


@dataclass(frozen=True)
class Gene:
    """One choice: its name, its values, and the layer it belongs to (None for the whole model)."""

    name: str
    values: tuple[Any, ...]
    layer: int | None = None


@dataclass(frozen=True)
class SearchSpace:
    """All designs that a SpaceSpec allows, as integer rows of shape (n, genes)."""

    spec: SpaceSpec
    genes: tuple[Gene, ...] = field(init=False)
    cardinalities: NDArray[np.int64] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        spec = self.spec
        names = ("d_model", "depth", "vocab_size", "head_size", "tie_embeddings", "weights", "sharing")
        genes = [Gene(name, tuple(getattr(spec, name))) for name in names]
        for layer in range(max(spec.depth) if spec.layers == "each" else 1):
            genes.append(Gene("attention", spec.attention_choices(), layer))
            genes.append(Gene("ffn", spec.layer.ffn, layer))
            genes.append(Gene("ffn_width", spec.layer.ffn_width, layer))
        object.__setattr__(self, "genes", tuple(genes))
        object.__setattr__(self, "cardinalities", np.array([len(gene.values) for gene in genes]))

    @property
    def index(self) -> dict[str, int]:
        """Column of each global gene."""
        return {gene.name: i for i, gene in enumerate(self.genes) if gene.layer is None}

    @property
    def first_layer_gene(self) -> int:
        """Column at which the layers' genes begin; each layer has three: attention, ffn, ffn_width."""
        return len(self.index)

    def size(self) -> int:
        """How many distinct designs there are."""
        per_layer = math.prod(len(gene.values) for gene in self.genes if gene.layer == 0)
        rest = math.prod(len(g.values) for g in self.genes if g.layer is None and g.name not in ("depth", "sharing"))
        total = 0
        for depth, sharing in itertools.product(self.spec.depth, self.spec.sharing):
            if depth == 1 and sharing == "pairs" and "none" in self.spec.sharing:
                continue  # one layer has nobody to share with
            free = (depth + 1) // 2 if sharing == "pairs" else depth
            total += per_layer ** (free if self.spec.layers == "each" else 1)
        return rest * total

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """``count`` canonical rows, every gene uniform."""
        rows = (rng.random((count, len(self.genes))) * self.cardinalities).astype(np.int64)
        return self.canonical(rows)

    def values(self, rows: Rows, name: str) -> NDArray[Any]:
        """The global choice ``name`` of each row."""
        column = self.index[name]
        return np.asarray(self.genes[column].values)[rows[:, column]]

    def active(self, rows: Rows) -> NDArray[np.bool_]:
        """Which genes count, (n, genes)."""
        mask = np.ones(rows.shape, dtype=bool)
        if self.spec.layers == "alike":
            return mask
        depth = self.values(rows, "depth")
        paired = self.values(rows, "sharing") == "pairs"
        for column, gene in enumerate(self.genes):
            if gene.layer is not None:
                mask[:, column] = (gene.layer < depth) & ~(paired & (gene.layer % 2 == 1))
        return mask

    def canonical(self, rows: Rows) -> Rows:
        """The same designs with inactive genes at 0."""
        rows = np.array(np.atleast_2d(rows), dtype=np.int64)
        if "none" in self.spec.sharing:  # one layer has nobody to share with
            rows[self.values(rows, "depth") == 1, self.index["sharing"]] = self.spec.sharing.index("none")
        return np.where(self.active(rows), rows, 0)

    def layer_rows(self, rows: Rows) -> NDArray[np.int64]:
        """The genes of every layer, (n, max depth, 3), sharing and tying resolved; layers past the depth hold 0."""
        start, deepest = self.first_layer_gene, max(self.spec.depth)
        genes = rows[:, start:].reshape(len(rows), (rows.shape[1] - start) // 3, 3)
        if self.spec.layers == "alike":
            return np.repeat(genes, deepest, axis=1)
        paired = self.values(rows, "sharing") == "pairs"
        owner = np.arange(deepest)
        return np.where(paired[:, None, None], genes[:, owner - owner % 2], genes)

    def choices(self, row: Sequence[int] | NDArray[np.int64]) -> dict[str, Any]:
        """What ``row`` chooses, by name; layers as a list."""
        one = self.canonical(np.asarray(row))[0]
        chosen: dict[str, Any] = {
            gene.name: gene.values[i] for gene, i in zip(self.genes, one, strict=True) if gene.layer is None
        }
        pairs, kinds, widths = self._layer_values()
        chosen["layers"] = [
            {"heads": pairs[a][0], "kv_heads": pairs[a][1], "ffn": kinds[f], "ffn_width": widths[w]}
            for a, f, w in self.layer_rows(one[None])[0][: chosen["depth"]]
        ]
        return chosen

    def _layer_values(self) -> tuple[tuple[tuple[int, int], ...], tuple[str, ...], tuple[int, ...]]:
        return self.spec.attention_choices(), self.spec.layer.ffn, self.spec.layer.ffn_width

    def design(self, row: Sequence[int] | NDArray[np.int64], *, name: str = "candidate") -> Design:
        """The design that ``row`` stands for."""
        return design_of(self.choices(row), spec=self.spec, name=name)

    def row(self, choices: Mapping[str, Any]) -> Rows:
        """The canonical row, (genes,), of ``choices``, the inverse of :meth:`choices`.

        Raises:
            SpecError: A value that the space does not list.
        """
        row = np.zeros(len(self.genes), dtype=np.int64)
        for column, gene in enumerate(self.genes):
            if gene.layer is None:
                row[column] = _find(gene, choices[gene.name])
            elif gene.layer < len(choices["layers"]):
                layer = choices["layers"][gene.layer]
                value = (layer["heads"], layer["kv_heads"]) if gene.name == "attention" else layer[gene.name]
                row[column] = _find(gene, value)
        one: Rows = self.canonical(row)[0]
        return one

    def nearest(self, choices: Mapping[str, Any]) -> Rows:
        """The canonical row, (genes,), closest to ``choices``, which may lie outside the space's lists."""
        row = np.zeros(len(self.genes), dtype=np.int64)
        for column, gene in enumerate(self.genes):
            if gene.layer is None:
                value: Any = choices[gene.name]
            else:
                layer = choices["layers"][min(gene.layer, len(choices["layers"]) - 1)]
                value = (layer["heads"], layer["kv_heads"]) if gene.name == "attention" else layer[gene.name]
            row[column] = int(np.argmin([_distance(one, value) for one in gene.values]))
        one: Rows = self.canonical(row)[0]
        return one


def _distance(one: Any, other: Any) -> float:
    """How far two values of a gene are apart: sizes by their ratio, all else equal or not."""
    if isinstance(one, tuple):
        return sum(_distance(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, bool | str):
        return float(one != other)
    return abs(math.log(one / other))


def _find(gene: Gene, value: object) -> int:
    try:
        return gene.values.index(value)
    except ValueError:
        where = gene.name if gene.layer is None else f"layers[{gene.layer}].{gene.name}"
        raise SpecError(f"{value!r} is not in the space; it lists {list(gene.values)}", field=where) from None


def design_of(choices: Mapping[str, Any], *, spec: SpaceSpec, name: str = "candidate") -> Design:
    """The design that ``choices`` describe; values outside the space's lists are allowed (baselines are)."""
    paired = choices["sharing"] == "pairs"
    layers = []
    for i, layer in enumerate(choices["layers"]):
        activation, gated = FFN_KINDS[layer["ffn"]]
        layers.append(
            Layer(
                attention=Attention(heads=layer["heads"], kv_heads=layer["kv_heads"], head_size=choices["head_size"]),
                ffn=FeedForward(width=layer["ffn_width"], activation=activation, gated=gated),
                shares=i - 1 if paired and i % 2 else None,
            )
        )
    arch = ArchSpec(
        name=name,
        vocab_size=choices["vocab_size"],
        d_model=choices["d_model"],
        layers=tuple(layers),
        max_tokens=spec.max_tokens,
        tie_embeddings=choices["tie_embeddings"],
        norm=spec.norm,
    )
    return Design(arch=arch, weights=choices["weights"])


def summary(design: Design) -> str:
    """One line a person can compare: width, depth, heads, FFN, vocabulary, format."""
    arch = design.arch
    attention = [layer.attention for layer in arch.layers if layer.attention]
    ffn = [layer.ffn for layer in arch.layers if layer.ffn]
    heads = _joined([f"{a.heads}/{a.kv_heads}" for a in attention])
    kinds = {(act, gated): kind for kind, (act, gated) in FFN_KINDS.items()}
    feed = _joined([f"{kinds.get((f.activation, f.gated), f.activation)}:{f.width}" for f in ffn])
    tied = "tied" if arch.tie_embeddings else "untied"
    shared = " shared" if any(layer.shares is not None for layer in arch.layers) else ""
    return f"d{arch.d_model} L{len(arch.layers)}{shared} h{heads} {feed} v{arch.vocab_size} {tied} {design.weights}"


def _joined(items: list[str]) -> str:
    return items[0] if len(set(items)) == 1 else "-".join(items)
