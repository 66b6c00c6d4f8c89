"""Predicts from a chip's data sheet how long each matrix takes in each GGUF format."""

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

_NAMES = {"F16": "fp16", "Q2_K": "q2_k_block"}  # names in data sheets, for formats where these are not in lower case
_CACHES = {USUAL_CACHE: "fp16", "q8_0": "int8", "q4_0": "int4"}  # cache formats -> names in data sheets
_RUNTIME = "llama.cpp"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipPrices:
    """Predicted seconds of a matrix product in each format and shape, and of everything else in a decode step."""

    prices: Prices
    rest_s: float
    low: float  # 90 % interval of a step's time, as shares of the prediction
    high: float
    extra_s: Mapping[str, float]  # by cache format, seconds of a step beyond those with the usual format


def predict_prices(
    arch: ArchSpec, shapes: Mapping[str, Shape], device: str, formats: Sequence[str], *, context: int
) -> ChipPrices:
    """Predicts times on ``device`` in llama.cpp, for those of ``formats`` that chipwise can predict.

    Raises:
        UnknownName: The device is unknown.
        Unsupported: No format can be predicted on the device.
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
        raise wrong or Unsupported(f"chipwise cannot predict the time of any GGUF format on {device}")
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
    """Shape of the matrices that an estimate calls ``place``, such as ``layers 0-29.attention.q`` or ``head``."""
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
    """Adds the head's time in each format; the head's times in the estimates are not used.

    The times of the layers' matrices are extrapolated to the head's number of bytes.
    """
    head = shapes.get("output.weight", shapes["token_embd.weight"])
    for kind in {kind for kind, _ in prices}:
        own = sorted(
            (TYPES[kind].matrix_bytes(*shape), price_s) for (name, shape), price_s in prices.items() if name == kind
        )
        (least, least_s), (most, most_s) = own[0], own[-1]
        per_byte = (most_s - least_s) / (most - least) if most > least else most_s / most
        if TYPES[kind].fits(head[1]):
            prices[kind, head] = most_s + per_byte * (TYPES[kind].matrix_bytes(*head) - most)
