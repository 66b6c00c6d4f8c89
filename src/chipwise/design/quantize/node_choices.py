"""Uniform recipes, and the exact choice of a format for each product from losses and times of single formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chipwise.design.strategies.exact import Option, choose
from chipwise.errors import Infeasible

Formats = Mapping[str, str]
"""Format by name of a node; other nodes stay as they are."""
OTHERS = "*"  # instead of a node's name: all operators that the runtime can run on integers between products
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "LSTM", "MatMul")
TABLE = "Gather"  # of stored rows
DYNAMIC, BLOCKS = ("dynamic", "dynamic-channel"), ("int4", "int8-blocks")
TABLE_FORMAT = "int8-blocks"
STATIC = ("static", "static-tensor", "static-percentile")
OPERATORS = {
    **dict.fromkeys(DYNAMIC, ("MatMul", "Conv", "LSTM")),
    **dict.fromkeys(STATIC, ("Conv", "ConvTranspose", "Gemm", "MatMul")),
    **dict.fromkeys(BLOCKS, ("MatMul",)),
}
WHOLE = "all products"
FP32 = "fp32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """An operator that multiplies by stored weights, or takes rows of a stored table."""

    node: str
    operator: str  # its type
    weights: int  # stored numbers


def uniform(products: Sequence[Product]) -> dict[str, Formats]:
    """The runtime's recipes by name: each format for all products it can take, and for one kind of them.

    Convolutions with ranges found as they run are tried only together with all others: they are always slow.
    """
    found: dict[str, Formats] = {"fp32, constants folded": {}}
    for name, operators in OPERATORS.items():
        taken = {item.node: item.operator for item in products if item.operator in operators}
        if not taken:
            continue
        kinds = sorted(set(taken.values()))
        for kind in kinds if name not in DYNAMIC else [kind for kind in kinds if "Conv" not in kind]:
            found[f"{name}, {kind}"] = {node: name for node, each in taken.items() if each == kind}
        if len(kinds) > 1:
            found[f"{name}, {WHOLE}"] = dict.fromkeys(taken, name)
        if name in STATIC:
            found[f"{name}, all operators"] = dict.fromkeys((*taken, OTHERS), name)
    return found | {"fp16": {OTHERS: "fp16"}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A format for one product: the share of the original's time it saves, and what it adds to each output's loss."""

    format: str
    saved: float
    loss: Mapping[str, float]


def mixed(candidates: Mapping[str, Sequence[Candidate]], budget: Mapping[str, float]) -> Formats:
    """The formats that save the most time while each output's sum of losses stays within ``budget``, proved optimal.

    Raises:
        Infeasible: Not even the original keeps the budget.
        MissingExtra: scipy is not installed.
    """
    nothing = Option(loss=0.0, costs=dict.fromkeys(budget, 0.0))
    nodes = [node for node, options in candidates.items() if options]
    if not nodes:
        return {}
    if min(budget.values(), default=0.0) < 0:
        raise Infeasible("the budget of a loss must not be negative")
    parts = [
        [
            nothing,
            *(Option(loss=-item.saved, costs={name: item.loss[name] for name in budget}) for item in candidates[node]),
        ]
        for node in nodes
    ]
    picked = choose(parts, budget)
    return {node: candidates[node][i - 1].format for node, i in zip(nodes, picked, strict=True) if i}


def family(name: str) -> Sequence[str]:
    """The formats of which a file holds at most one: they differ only in how ranges or scales are chosen."""
    return next((each for each in (DYNAMIC, STATIC) if name in each), (name,))


def told(formats: Formats, products: Sequence[Product]) -> str:
    """Formats as text: how many products of each kind have each format."""
    if OTHERS in formats and len(formats) == 1:
        return formats[OTHERS]
    counts: dict[tuple[str, str], int] = {}
    for item in products:
        pair = item.operator, formats.get(item.node, FP32)
        counts[pair] = counts.get(pair, 0) + 1
    said = [f"{count} {operator} {name}" for (operator, name), count in counts.items()]
    return ", ".join(said) + (f", other operators {formats[OTHERS]}" if OTHERS in formats else "") or "no products"
