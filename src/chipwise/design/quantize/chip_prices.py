"""Predicted seconds of each GGUF format for each matrix on a chip that is not here, from its data sheet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from chipwise.deploy.export.gguf import PROJECTIONS, layout
from chipwise.deploy.runtimes.ggml import TYPES
from chipwise.design.quantize.kv_cache import USUAL_CACHE
from chipwise.design.quantize.mixes import Prices, Shape
from chipwise.errors import ChipwiseError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.predict.cost.model import CostEstimate
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import estimates
from chipwise.predict.served.request import Request

_NAMES = {"F16": "fp16", "Q2_K": "q2_k_block"}  # of formats whose names in data sheets are not the lower-case ones
_CACHES = {USUAL_CACHE: "fp16", "q8_0": "int8", "q4_0": "int4"}  # as data sheets name cache formats
_RUNTIME = "llama.cpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipPrices:
    """Prices of formats by shape, and seconds of everything else in a decode step."""

    prices: Prices
    rest_s: float
    low: float  # bounds of a step's time as shares of the prediction, nine times in ten
    high: float
    extra_s: Mapping[str, float]  # seconds of a step with each cache format beyond those with the usual one


def predict_prices(
    arch: ArchSpec, shapes: Mapping[str, Shape], device: str, formats: Sequence[str], *, context: int
) -> ChipPrices:
    """Prices on ``device`` in llama.cpp, of the formats that predictions know.

    Raises:
        UnknownName: The device is unknown.
        Unsupported: No format can be priced there.
    """
    requests = [
        Request(
            model=arch,
            deployment=Deployment(device=device, runtime=_RUNTIME, weights=_NAMES.get(name, name.lower())),
            prompt_tokens=context,
            new_tokens=1,
        )
        for name in formats
    ]
    found = dict(zip(formats, estimates(requests), strict=True))
    prices: Prices = {}
    rest_s: list[float] = []
    low = high = 1.0
    for kind, estimate in found.items():
        if not isinstance(estimate, CostEstimate):
            continue
        products = 0.0
        for cost in estimate.decode:
            shape = _shape_of(cost.place, arch, shapes)
            if shape is None or cost.kind != "matmul":
                continue
            products += cost.latency_s
            if cost.place.rpartition(".")[2] != "head" and TYPES[kind].fits(shape[1]):
                prices[kind, shape] = cost.latency_s / cost.count
        rest_s.append(estimate.tpot_s - products)
        step = estimate.metrics["tpot_p50"]
        if step.low is not None and step.high is not None:
            low, high = min(low, step.low / step.value), max(high, step.high / step.value)
    if not prices:
        wrong = next((each for each in found.values() if isinstance(each, ChipwiseError)), None)
        raise wrong or Unsupported(f"no GGUF format can be priced on {device}")
    _price_heads(prices, shapes)
    usual = next(
        request for name, request in zip(formats, requests, strict=True) if isinstance(found[name], CostEstimate)
    )
    caches = [replace(usual, deployment=replace(usual.deployment, kv=kv)) for kv in _CACHES.values()]
    steps = {
        name: each.tpot_s
        for name, each in zip(_CACHES, estimates(caches), strict=True)
        if isinstance(each, CostEstimate)
    }
    extra_s = {name: step_s - steps[USUAL_CACHE] for name, step_s in steps.items()}
    return ChipPrices(prices=prices, rest_s=min(rest_s), low=low, high=high, extra_s=extra_s)


def _shape_of(place: str, arch: ArchSpec, shapes: Mapping[str, Shape]) -> Shape | None:
    """Shape of the matrix at ``layers 0-29.attention.q`` or ``head``."""
    if place == "head":
        return shapes.get("output.weight", shapes["token_embd.weight"])
    first = re.match(r"layers? (\d+)[^.]*\.(\w+\.\w+)$", place)
    if first is None or first[2] not in PROJECTIONS:
        return None
    layer, part = int(first[1]), first[2]
    for number, block in enumerate(layout(arch)):
        owner = block.ffn if part.startswith("ffn") else block.attention
        if owner is not None and owner[1] == layer:
            return shapes[f"blk.{number}.{PROJECTIONS[part]}.weight"]
    return None


def _price_heads(prices: Prices, shapes: Mapping[str, Shape]) -> None:
    """Adds the head, whose format in an estimate is its file's: its bytes cost what more bytes cost in a layer."""
    head = shapes.get("output.weight", shapes["token_embd.weight"])
    for kind in {kind for kind, _ in prices}:
        own = sorted(
            (TYPES[kind].matrix_bytes(*shape), price_s) for (name, shape), price_s in prices.items() if name == kind
        )
        (least, least_s), (most, most_s) = own[0], own[-1]
        per_byte = (most_s - least_s) / (most - least) if most > least else most_s / most
        if TYPES[kind].fits(head[1]):
            prices[kind, head] = most_s + per_byte * (TYPES[kind].matrix_bytes(*head) - most)
