"""Chooses a cut: exactly from the losses of single blocks, by search with a supernet, or plain truncation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

from chipwise.design.shrink.block_costs import Costs
from chipwise.design.shrink.block_losses import Replacement
from chipwise.design.shrink.sizes import Sizes, blocks, cut_arch, whole_sizes
from chipwise.design.strategies.exact import Option, choose
from chipwise.errors import Infeasible
from chipwise.model.arch.arch import ArchSpec

Method = Literal["exact", "shared", "truncate"]
METHODS: tuple[Method, ...] = ("exact", "shared", "truncate")
_SHARES = {"attention": (0.25, 0.5, 0.75), "ffn": (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)}
_PARENTS, _MUTATED = 12, 2
STEP = 16  # FFN neurons are multiples of this, for which matrix products are fast


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a cut: seconds by name of the time (see :mod:`block_costs`), bytes of weights, parameters."""

    times_s: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: float | None = None  # None: no limit
    parameters: int | None = None


def options_of(arch: ArchSpec) -> dict[str, tuple[int, ...]]:
    """Sizes that each kind of block may have, from none to full."""
    whole = whole_sizes(arch)
    heads, neurons = max(whole.heads), max(whole.neurons)
    kept = {round(share * heads) for share in _SHARES["attention"]}
    wide = {round(share * neurons / STEP) * STEP for share in _SHARES["ffn"]}
    return {
        "attention": tuple(sorted({0, heads} | {size for size in kept if 0 < size < heads})),
        "ffn": tuple(sorted({0, neurons} | {size for size in wide if 0 < size < neurons})),
    }


def bytes_of(arch: ArchSpec, sizes: Sizes, value_bytes: float) -> float:
    """Bytes of a cut's weights: the token table in FP32, the rest at ``value_bytes`` a value."""
    cut = cut_arch(arch, sizes)
    table = cut.vocab_size * cut.d_model
    return 4 * table + (cut.parameters() - table) * value_bytes


def choose_exactly(
    arch: ArchSpec,
    replacements: Sequence[Replacement],
    costs: Mapping[str, Costs],
    limits: Limits,
    *,
    value_bytes: float = 4.0,
) -> Sizes:
    """The cut within ``limits`` with the least sum of block losses, proved optimal by an integer programme.

    Raises:
        Infeasible: No cut keeps the limits.
    """
    whole, bare = whole_sizes(arch), bare_sizes(arch)
    parts, sizes_of = [], []
    for i, kind in blocks(arch):
        items = sorted((r.size, r.loss) for r in replacements if (r.layer, r.kind) == (i, kind))
        top = whole.block(i, kind)
        found = [*items, (top, 0.0)]
        parts.append([_option(arch, costs, i, kind, size, loss, value_bytes) for size, loss in found])
        sizes_of.append([size for size, _ in found])
    within = {name: limit_s - costs[name].base_s for name, limit_s in limits.times_s.items()}
    if limits.memory_bytes is not None:
        within["memory"] = limits.memory_bytes - bytes_of(arch, bare, value_bytes)
    if limits.parameters is not None:
        within["parameters"] = limits.parameters - cut_arch(arch, bare).parameters()
    picked = choose(parts, within)
    chosen = whole
    for (i, kind), sizes, number in zip(blocks(arch), sizes_of, picked, strict=True):
        chosen = chosen.with_block(i, kind, sizes[number])
    return chosen


def _option(
    arch: ArchSpec, costs: Mapping[str, Costs], layer: int, kind: str, size: int, loss: float, value_bytes: float
) -> Option:
    held, without = (whole_sizes(arch).with_block(layer, kind, n) for n in (size, 0))
    return Option(
        loss=loss,
        costs={name: item.of(kind, size) for name, item in costs.items()}
        | {
            "memory": bytes_of(arch, held, value_bytes) - bytes_of(arch, without, value_bytes),
            "parameters": cut_arch(arch, held).parameters() - cut_arch(arch, without).parameters(),
        },
    )


def bare_sizes(arch: ArchSpec) -> Sizes:
    """Sizes without any block, the lower bound of every cut."""
    none = (0,) * len(arch.layers)
    return whole_sizes(arch).with_kind("attention", none).with_kind("ffn", none)


def choose_first_layers(
    arch: ArchSpec, costs: Mapping[str, Costs], limits: Limits, *, value_bytes: float = 4.0
) -> Sizes:
    """Plain truncation: as many of the first layers, unchanged, as keep ``limits``.

    Raises:
        Infeasible: Not even one layer keeps them.
    """
    whole = whole_sizes(arch)
    for depth in range(len(arch.layers), 0, -1):
        gone = (0,) * (len(arch.layers) - depth)
        sizes = replace(whole, heads=whole.heads[:depth] + gone, neurons=whole.neurons[:depth] + gone)
        if keeps(arch, sizes, costs, limits, value_bytes):
            return sizes
    raise Infeasible("not even the first layer alone keeps the limits; loosen them")


class Sampler:
    """Random cuts near the limits, for training a supernet and searching in it.

    Args:
        arch: The original, its weights ordered by importance.
        options: Sizes by kind of block.
        widths: Widths of the residual stream to choose from.
        costs: Seconds of blocks.
        limits: Limits of a cut.
        value_bytes: Bytes of one weight.
        seed: Random seed of the cuts.
    """

    def __init__(
        self,
        arch: ArchSpec,
        options: Mapping[str, Sequence[int]],
        costs: Mapping[str, Costs],
        limits: Limits,
        *,
        widths: Sequence[int] = (),
        value_bytes: float = 4.0,
        seed: int,
    ) -> None:
        self.arch, self.options, self.costs, self.limits = arch, options, costs, limits
        self.widths = tuple(widths) or (arch.d_model,)
        self.value_bytes, self.seed = value_bytes, seed
        self._places = list(blocks(arch))

    def fits(self, sizes: Sizes) -> bool:
        """Whether a cut keeps the limits."""
        return keeps(self.arch, sizes, self.costs, self.limits, self.value_bytes)

    def draw(self, number: int) -> Sizes:
        """Cut number ``number``, which keeps the limits and nearly fills them; deterministic.

        Raises:
            Infeasible: Even the smallest cut breaks a limit.
        """
        random = np.random.default_rng([self.seed, number])
        sizes = replace(whole_sizes(self.arch), width=int(random.choice(self.widths)))
        return self._into_limits(sizes, random)

    def change(self, sizes: Sizes, random: np.random.Generator) -> Sizes:
        """A neighbour of a cut: a few blocks at other sizes, then shrunk or grown to fill the limits."""
        for _ in range(_MUTATED):
            i, kind = self._places[int(random.integers(len(self._places)))]
            sizes = sizes.with_block(i, kind, int(random.choice(self._sizes(i, kind))))
        return self._grown(self._into_limits(sizes, random), random)

    def _into_limits(self, sizes: Sizes, random: np.random.Generator) -> Sizes:
        """Shrinks random blocks step by step until the limits are kept."""
        while not self.fits(sizes):
            open_places = [(i, kind) for i, kind in self._places if sizes.block(i, kind) > 0]
            if not open_places:
                raise Infeasible("even without any block the limits are broken; loosen them")
            i, kind = open_places[int(random.integers(len(open_places)))]
            smaller = [size for size in self._sizes(i, kind) if size < sizes.block(i, kind)]
            sizes = sizes.with_block(i, kind, smaller[-1])
        return sizes

    def _grown(self, sizes: Sizes, random: np.random.Generator) -> Sizes:
        """Grows blocks in random order while the limits allow it."""
        for place in random.permutation(len(self._places)):
            i, kind = self._places[int(place)]
            larger = [size for size in self._sizes(i, kind) if size > sizes.block(i, kind)]
            if larger and self.fits(sizes.with_block(i, kind, larger[0])):
                sizes = sizes.with_block(i, kind, larger[0])
        return sizes

    def _sizes(self, layer: int, kind: str) -> list[int]:
        top = whole_sizes(self.arch).block(layer, kind)
        return sorted({min(size, top) for size in self.options[kind]})


def search_shared(
    sampler: Sampler,
    loss_of: Callable[[Sizes], float],
    *,
    trials: int,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Sizes, float]:
    """The cut with the least loss under inherited weights, among random cuts and then neighbours of the best twelve."""
    random = np.random.default_rng([sampler.seed, 1])
    seen: dict[Sizes, float] = {}
    for number in range(trials):
        if number < max(_PARENTS, trials // 3):
            sizes = sampler.draw(number)
        else:
            best = sorted(seen, key=lambda item: seen[item])[:_PARENTS]
            sizes = sampler.change(best[int(random.integers(len(best)))], random)
        if sizes not in seen:
            seen[sizes] = loss_of(sizes)
        on_progress(number + 1, trials)
    winner = min(seen, key=lambda item: seen[item])
    return winner, seen[winner]


def keeps(arch: ArchSpec, sizes: Sizes, costs: Mapping[str, Costs], limits: Limits, value_bytes: float = 4.0) -> bool:
    """Whether a cut is predicted to keep ``limits``."""
    slow = any(costs[name].cut_s(arch, sizes) > limit_s for name, limit_s in limits.times_s.items())
    big = limits.memory_bytes is not None and bytes_of(arch, sizes, value_bytes) > limits.memory_bytes
    many = limits.parameters is not None and cut_arch(arch, sizes).parameters() > limits.parameters
    return not (slow or big or many)
