"""Choices of a format for each product (operator with weights): uniform recipes, and the exact best choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from chipwise.design.strategies.exact import Option, choose
from chipwise.errors import Infeasible

Formats = Mapping[str, str]
"""Formats by node name; nodes that are not listed are left unchanged."""
OTHERS = "*"  # key for all operators between products that the runtime can run on integers
PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "LSTM", "MatMul")
TABLE = "Gather"  # operator that looks up stored rows
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
    """An operator that multiplies by stored weights, or looks up rows of a stored table."""

    node: str
    operator: str  # type of the operator
    weights: int  # number of stored weights


def uniform(products: Sequence[Product]) -> dict[str, Formats]:
    """Maps names to uniform recipes: one format for all products that support it, or for all products of one kind.

    Convolutions are always slow in formats whose ranges are computed at run time. These formats are therefore not tried
    for convolutions alone, but only for all products together.
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
    """A possible format of one product: the share of the model's time that it saves, and its loss for each output."""

    format: str
    saved: float
    loss: Mapping[str, float]


def mixed(candidates: Mapping[str, Sequence[Candidate]], budget: Mapping[str, float]) -> Formats:
    """Formats that save the most time while each output's summed losses stay within ``budget``; proved optimal.

    Raises:
        Infeasible: A budget is negative, so not even the original model meets it.
        MissingExtra: scipy is not installed.
    """
    nothing = Option(loss=0.0, costs=dict.fromkeys(budget, 0.0))
    nodes = [node for node, options in candidates.items() if options]
    if not nodes:
        return {}
    if min(budget.values(), default=0.0) < 0:
        raise Infeasible("the loss budget must be at least 0")
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
    """The format ``name``, and the formats that differ from it only in how ranges or scales are chosen."""
    return next((each for each in (DYNAMIC, STATIC) if name in each), (name,))


def told(formats: Formats, products: Sequence[Product]) -> str:
    """Describes formats in words: how many products of each kind have which format."""
    if OTHERS in formats and len(formats) == 1:
        return formats[OTHERS]
    counts = Counter((item.operator, formats.get(item.node, FP32)) for item in products)
    said = [f"{count} {operator} {name}" for (operator, name), count in counts.items()]
    return ", ".join(said) + (f", other operators {formats[OTHERS]}" if OTHERS in formats else "") or "no products"
