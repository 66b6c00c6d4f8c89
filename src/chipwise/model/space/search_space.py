"""SearchSpace: each choice is one integer, called a gene; a candidate is a row of genes.

Global genes come first, then the layers' genes, slot by slot; a slot is one layer, or several layers whose choices are
tied. Genes that no layer reads (beyond the depth, or of layers that share weights) are inactive; in canonical rows they
are 0. Forbidden values are replaced with the nearest allowed value. So equal designs have equal canonical rows, and
every row encodes a design.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import AnyArray
from chipwise.core.fields import describe
from chipwise.core.rows import Rows as Rows
from chipwise.errors import SpecError
from chipwise.model.arch.design import Design
from chipwise.model.kinds.choices import Chosen
from chipwise.model.kinds.denoiser.denoiser import UNGUIDED
from chipwise.model.kinds.image.choices import GUIDANCE, LATENTS, SOLVER
from chipwise.model.space.conditions import Conditions
from chipwise.model.space.count import size
from chipwise.model.space.designs import design_of
from chipwise.model.space.space_spec import ATTENTION_PARTS, LAYER_WEIGHTS, Slots, SpaceSpec, slots_of


@dataclass(frozen=True)
class Gene:
    """One choice: its name, its possible values, and the number of its slot of layers (None for the whole model)."""

    name: str
    values: tuple[Any, ...]
    layer: int | None = None
    label: str = ""  # readable name: ``d_model``, ``layer3.ffn``, ``first.ffn_width``


@dataclass(frozen=True)
class SearchSpace:
    """All designs that a SpaceSpec allows, as integer rows of shape (n, genes).

    Raises:
        SpecError: Conditions name unknown choices, form a cycle, or leave a choice without values.
    """

    spec: SpaceSpec
    genes: tuple[Gene, ...] = field(init=False)
    cardinalities: NDArray[np.int64] = field(init=False, compare=False)
    slots: dict[str, Slots] = field(init=False, compare=False, repr=False)
    columns: dict[str, NDArray[np.int64]] = field(init=False, compare=False, repr=False)  # by choice and slot
    _conditions: Conditions = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        spec = self.spec
        if not isinstance(spec, SpaceSpec):
            raise SpecError(f"a search space is made from a SpaceSpec, not {describe(spec)}")
        slots = slots_of(spec)
        genes = [Gene(name, spec.values(name), None, name) for name in spec.globals]
        columns: dict[str, list[int]] = {name: [i] for i, name in enumerate(spec.globals)}
        for slot in range(max(len(item.labels) for item in slots.values())):
            for name in spec.layer_choices:
                if slot < len(slots[name].labels):
                    columns.setdefault(name, []).append(len(genes))
                    genes.append(Gene(name, spec.values(name), slot, _label(name, slots[name].labels[slot])))
        for name, value in (
            ("genes", tuple(genes)),
            ("cardinalities", np.array([len(gene.values) for gene in genes])),
            ("slots", slots),
            ("columns", {name: np.array(found) for name, found in columns.items()}),
            ("_conditions", Conditions(spec, slots)),
        ):
            object.__setattr__(self, name, value)

    @property
    def index(self) -> dict[str, int]:
        """The column of each global choice, by its name."""
        return {name: i for i, name in enumerate(self.spec.globals)}

    def size(self) -> int:
        """Exact number of distinct designs."""
        return size(self.spec, self.slots, self._conditions)

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """Samples ``count`` canonical rows; each gene is uniform over the values that earlier genes allow."""
        share = rng.random((count, len(self.genes)))
        rows = (share * self.cardinalities).astype(np.int64)
        for name, column, chosen in self._conditioned(rows):
            rows[:, column] = self._conditions.drawn(name, chosen, share[:, column])
        return self.canonical(rows)

    def drawn(self, count: int, seed: int) -> list[Design]:
        """The designs of ``count`` rows from :meth:`sample`."""
        return [self.design(row) for row in self.sample(count, np.random.default_rng(seed))]

    def values(self, rows: Rows, name: str) -> AnyArray:
        """The value of the global choice ``name`` in each row."""
        column = self.index[name]
        return np.asarray(self.genes[column].values)[rows[:, column]]

    def outputs(self, rows: Rows) -> NDArray[np.int64]:
        """For each candidate's design: the number of outputs of the head's matrix, (n,)."""
        image = self.spec.image
        if image is not None and image.steps:
            return np.asarray(self.values(rows, "patch"), np.int64) ** image.axes * image.channels * self.factors(rows)
        return np.asarray(self.values(rows, "vocab_size"), np.int64)

    def factors(self, rows: Rows) -> NDArray[np.int64]:
        """For each row's design: the side, in pixels, of the square that one latent represents, (n,).

        It is 1 for designs in pixel space.
        """
        found = self.values(rows, LATENTS) if LATENTS in self.index else np.ones(len(rows))
        return np.asarray(found, np.int64)

    def passes(self, rows: Rows) -> NDArray[np.int64]:
        """Number of forward passes per request for each row's design, (n,).

        It is a denoiser's number of steps (doubled with guidance), and 1 for other models.
        """
        guided = self.values(rows, GUIDANCE) != UNGUIDED if GUIDANCE in self.index else np.zeros(len(rows), bool)
        return np.asarray(self.steps(rows) * (1 + guided), np.int64)

    def steps(self, rows: Rows) -> NDArray[np.int64]:
        """For each row's design: the number of denoising steps, (n,); 1 for other models."""
        steps = self.spec.image is not None and self.spec.image.steps
        return np.asarray(self.values(rows, "steps"), np.int64) if steps else np.ones(len(rows), np.int64)

    def equal_steps(self, rows: Rows) -> NDArray[np.int64]:
        """For each row's design: the number of Euler steps with about the same image quality, (n,); 1 for other models.

        Three multistep steps are about as good as six Euler steps, four as good as ten (benchmarks/solver_steps.py).
        """
        steps = self.steps(rows)
        multistep = self.values(rows, SOLVER) == "multistep" if SOLVER in self.index else np.zeros(len(rows), bool)
        return np.where(multistep, steps * (steps + 1) // 2, steps)

    def active(self, rows: Rows) -> NDArray[np.bool_]:
        """Mask of the active genes, (n, genes): those that the design reads."""
        mask = np.ones(rows.shape, dtype=bool)
        where = rows[:, self.index["sharing"]], rows[:, self.index["depth"]]
        for name in self.spec.layer_choices:
            mask[:, self.columns[name]] = self.slots[name].used[where]
        return mask

    def canonical(self, rows: Rows) -> Rows:
        """``rows`` with inactive genes set to 0, and with the nearest allowed value instead of each forbidden value."""
        rows = np.array(np.atleast_2d(rows), dtype=np.int64)
        for name, column, chosen in self._conditioned(rows):
            rows[:, column] = self._conditions.mended(name, chosen, rows[:, column])
        return np.where(self.active(rows), rows, 0)

    def _conditioned(self, rows: Rows) -> Iterator[tuple[str, int, dict[str, NDArray[np.int64]]]]:
        """Yields name and column of each choice that has conditions, and the current values of all choices in ``rows``.

        A choice follows the choices that it depends on.
        """
        for name in self._conditions.order:
            if not self._conditions.rules[name]:
                continue
            for slot, column in enumerate(self.columns[name].tolist()):
                chosen = {other: rows[:, found[min(slot, len(found) - 1)]] for other, found in self.columns.items()}
                yield name, column, chosen | {"layer": np.full(len(rows), slot)}

    def layer_rows(self, rows: Rows) -> NDArray[np.int64]:
        """Each layer's choices, (n, max depth, choices), after sharing and ties. Entries past the depth are unused."""
        where = rows[:, self.index["sharing"]], rows[:, self.index["depth"]]
        parts = [
            np.take_along_axis(rows, self.columns[name][self.slots[name].of[where]], axis=1)
            for name in self.spec.layer_choices
        ]
        return np.stack(parts, axis=2)

    def choices(self, row: Sequence[int] | NDArray[np.int64]) -> dict[str, Any]:
        """The choices that ``row`` encodes, by name; the entry ``layers`` is a list with the choices of each layer."""
        one = self.canonical(np.asarray(row))[0]
        chosen: dict[str, Any] = {
            gene.name: gene.values[i] for gene, i in zip(self.genes, one, strict=True) if gene.layer is None
        }
        names = self.spec.layer_choices
        lists = [self.spec.values(name) for name in names]
        chosen["layers"] = [
            _layer({name: values[i] for name, values, i in zip(names, lists, layer, strict=True)})
            for layer in self.layer_rows(one[None])[0][: chosen["depth"]]
        ]
        return chosen

    def design(self, row: Sequence[int] | NDArray[np.int64], *, name: str = "candidate") -> Design:
        """The design that ``row`` encodes."""
        return design_of(self.choices(row), spec=self.spec, name=name)

    def row(self, choices: Chosen) -> Rows:
        """The canonical row, (genes,), that encodes ``choices``: the inverse of :meth:`choices`.

        Raises:
            SpecError: The space does not list a value, or its ties or conditions forbid it.
        """
        choices = {**choices, "layers": [self.spec.kind.completed(layer) for layer in choices["layers"]]}
        row = np.zeros(len(self.genes), dtype=np.int64)
        for name in self.spec.globals:
            row[self.index[name]] = _find(self.genes[self.index[name]], choices.get(name, self.spec.usual(name)))
        for layer, wanted in enumerate(choices["layers"]):
            for name in self.spec.layer_choices:
                column = self._column(row, name, layer)
                row[column] = _find(self.genes[column], self._chosen(wanted, name, choices))
        one: Rows = self.canonical(row)[0]
        found = self.choices(one)
        for name in (*self.spec.globals, "layers"):
            if found[name] != choices.get(name, self.spec.usual(name)):
                raise SpecError(f"{choices.get(name)!r} is ruled out by the space's ties or conditions", field=name)
        return one

    def nearest(self, choices: Chosen) -> Rows:
        """The canonical row, (genes,), closest to ``choices``, which may lie outside the space's lists.

        If the head size must change, the number of heads changes inversely, so that attention keeps its width.
        """
        row = np.zeros(len(self.genes), dtype=np.int64)
        for name in self.spec.globals:
            row[self.index[name]] = _closest(self.genes[self.index[name]], [choices.get(name, self.spec.usual(name))])
        size = self.spec.head_size[row[self.index["head_size"]]]
        layers = [_as_wide(layer, choices.get("head_size", size) / size) for layer in choices["layers"]]
        for name in self.spec.layer_choices:
            members: dict[int, list[Any]] = {}
            for layer in range(self.spec.depth[row[self.index["depth"]]]):
                wanted = layers[min(layer, len(layers) - 1)]
                members.setdefault(self._column(row, name, layer), []).append(self._chosen(wanted, name, choices))
            for column, values in members.items():
                row[column] = _closest(self.genes[column], values)
        one: Rows = self.canonical(row)[0]
        return one

    def _chosen(self, layer: Chosen, name: str, whole: Chosen) -> Any:
        """The value of ``layer`` for the choice ``name``.

        A layer that states no weight format has the model's format, which is in ``whole``.
        """
        if name == "attention":
            return self.spec.kind.parts(layer)
        return layer.get("weights", whole["weights"]) if name == LAYER_WEIGHTS else layer[name]

    def _column(self, row: NDArray[np.int64], name: str, layer: int) -> int:
        """The column of the choice ``name`` for ``layer`` in ``row``."""
        slot = self.slots[name].of[row[self.index["sharing"]], row[self.index["depth"]], layer]
        return int(self.columns[name][slot])


def _label(name: str, slot: str) -> str:
    part = name.removeprefix("layer_")
    return f"layer{slot}.{part}" if slot.isdigit() else f"{slot}.{part}"


def _layer(chosen: Chosen) -> dict[str, Any]:
    """The choices of a layer, by their names in the run file."""
    layer = dict(zip(ATTENTION_PARTS, chosen["attention"], strict=False))
    layer |= {"ffn": chosen["ffn"], "ffn_width": chosen["ffn_width"]}
    return layer | ({"weights": chosen[LAYER_WEIGHTS]} if LAYER_WEIGHTS in chosen else {})


def _as_wide(layer: Chosen, times: float) -> Chosen:
    """``layer`` with its numbers of heads multiplied by ``times``, if it has attention."""
    if times == 1:
        return layer
    counts = {name: layer[name] * times for name in ATTENTION_PARTS[:2] if isinstance(layer.get(name), int)}
    return {**layer, **counts}


def _closest(gene: Gene, values: Sequence[Any]) -> int:
    return int(np.argmin([sum(_distance(one, value) for value in values) for one in gene.values]))


def _distance(one: Any, other: Any) -> float:
    """Distance between two values of a gene: the logarithm of the ratio for sizes; 0 or 1 for all other values."""
    if isinstance(one, tuple):
        return sum(_distance(a, b) for a, b in zip(one, other, strict=True))
    if isinstance(one, bool | str) or isinstance(other, str):
        return float(one != other)
    return abs(math.log(one / other))


def _find(gene: Gene, value: object) -> int:
    try:
        return gene.values.index(value)
    except ValueError:
        raise SpecError(f"{value!r} is not in the space; it lists {list(gene.values)}", field=gene.label) from None
