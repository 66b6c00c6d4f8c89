"""Chooses the sizes of a pruned model in one of three ways.

Either the sum of block losses is least, or all layers have the same sizes, or only the first layers are kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from chipwise.design.shrink.block_costs import Costs
from chipwise.design.shrink.block_losses import Replacement
from chipwise.design.shrink.sizes import Sizes, blocks, cut_arch, whole_sizes
from chipwise.design.strategies.exact import Option, choose
from chipwise.errors import Infeasible
from chipwise.model.arch.arch import ArchSpec

Method = Literal["exact", "uniform", "truncate"]
METHODS: tuple[Method, ...] = ("exact", "uniform", "truncate")
_SHARES = {"attention": (0.25, 0.5, 0.75), "ffn": (0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875)}
STEP = 16  # sizes of FFNs are multiples of this, for which matrix products are fast


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a pruned model: seconds (of ``ttft``, ``tpot`` or ``request``), bytes of weights, parameters."""

    times_s: Mapping[str, float] = field(default_factory=dict)
    memory_bytes: float | None = None  # None: no limit
    parameters: int | None = None


def options_of(arch: ArchSpec) -> dict[str, tuple[int, ...]]:
    """Sizes that each kind of block may have in a pruned model, from 0 (no block) to the full size."""
    whole = whole_sizes(arch)
    heads, neurons = max(whole.heads), max(whole.neurons)
    kept = {round(share * heads) for share in _SHARES["attention"]}
    wide = {round(share * neurons / STEP) * STEP for share in _SHARES["ffn"]}
    return {
        "attention": tuple(sorted({0, heads} | {size for size in kept if 0 < size < heads})),
        "ffn": tuple(sorted({0, neurons} | {size for size in wide if 0 < size < neurons})),
    }


def bytes_of(arch: ArchSpec, sizes: Sizes, value_bytes: float) -> float:
    """Bytes of a pruned model's weights: 4 per value of the token table, ``value_bytes`` per value of all others."""
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
    """The sizes within ``limits`` with the smallest sum of block losses; an integer program proves them optimal.

    Raises:
        Infeasible: No pruned model meets the limits.
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
    """Sizes of a model without any block; every pruned model is at least as large and slow."""
    none = (0,) * len(arch.layers)
    return whole_sizes(arch).with_kind("attention", none).with_kind("ffn", none)


def choose_first_layers(
    arch: ArchSpec, costs: Mapping[str, Costs], limits: Limits, *, value_bytes: float = 4.0
) -> Sizes:
    """Plain truncation: keeps as many of the first layers, unchanged, as meet ``limits``.

    Raises:
        Infeasible: Not even the first layer alone meets the limits.
    """
    whole = whole_sizes(arch)
    for depth in range(len(arch.layers), 0, -1):
        gone = (0,) * (len(arch.layers) - depth)
        sizes = replace(whole, heads=whole.heads[:depth] + gone, neurons=whole.neurons[:depth] + gone)
        if keeps(arch, sizes, costs, limits, value_bytes):
            return sizes
    raise Infeasible("not even the first layer alone meets the limits; loosen them")


def choose_uniform(arch: ArchSpec, costs: Mapping[str, Costs], limits: Limits, *, value_bytes: float = 4.0) -> Sizes:
    """Of the pruned models with equal sizes in all layers, the largest one (by parameters) that meets ``limits``.

    The most important heads and neurons are kept, as in Minitron's width pruning (arXiv:2407.14679).

    Raises:
        Infeasible: Not even the smallest sizes meet the limits.
    """
    whole, options = whole_sizes(arch), options_of(arch)
    made = [
        replace(
            whole,
            heads=tuple(min(heads, most) for most in whole.heads),
            neurons=tuple(min(neurons, most) for most in whole.neurons),
        )
        for heads in options["attention"][1:]
        for neurons in options["ffn"][1:]
    ]
    kept = [sizes for sizes in made if keeps(arch, sizes, costs, limits, value_bytes)]
    if not kept:
        raise Infeasible("no design with the same sizes in all layers meets the limits; loosen them")
    return max(kept, key=lambda sizes: cut_arch(arch, sizes).parameters())


def keeps(arch: ArchSpec, sizes: Sizes, costs: Mapping[str, Costs], limits: Limits, value_bytes: float = 4.0) -> bool:
    """Whether a pruned model is predicted to meet ``limits``."""
    slow = any(costs[name].cut_s(arch, sizes) > limit_s for name, limit_s in limits.times_s.items())
    big = limits.memory_bytes is not None and bytes_of(arch, sizes, value_bytes) > limits.memory_bytes
    many = limits.parameters is not None and cut_arch(arch, sizes).parameters() > limits.parameters
    return not (slow or big or many)
