"""Distribution of tokens over experts: rows, active experts and padded rows of the busiest device.

There are three routings. ``uniform``: each token chooses its experts at random. ``balanced``: all experts get as equal
numbers of tokens as possible. ``power_law_A``: the experts' popularities follow a density x^-A between a least and a
greatest value; benchmark tools imitate real routers in this way.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import Size
from chipwise.errors import SpecError, Unsupported
from chipwise.predict.kernels.times import together

QUANTILES = 12  # number of quantiles that represent the experts' popularities; enough for hundreds of experts


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutedLoad:
    """Expected load of the busiest device."""

    rows: Float64Array  # rows: token-expert pairs
    met: Float64Array  # active experts (with at least one row)
    padded: Float64Array  # rows after each expert's are padded to whole tiles


def skew(routing: str) -> float | None:
    """The exponent A of the routing ``power_law_A``; 0 for ``uniform``, and None for ``balanced``.

    Raises:
        Unsupported: The routing is unknown.
    """
    if routing == "uniform":
        return 0.0
    if routing == "balanced":
        return None
    kind, _, exponent = routing.rpartition("_")
    try:
        if kind == "power_law":
            return float(exponent)
    except ValueError:
        pass
    raise Unsupported(f"unknown routing {routing!r}; known: uniform, balanced, power_law_A such as power_law_1.2")


def load(tokens: Size, topk: Size, experts: Size, local: Size, *, routing: str, tile: Size) -> RoutedLoad:
    """Rows, active experts and padded rows of the busiest device. All arguments broadcast.

    Uniform: of E experts, of which each token chooses k, E(1 - (1 - k/E)^tokens) are active, and all active experts
    count with the mean number of rows. Balanced: all devices have the same number of rows (at least one, because the
    busiest device determines the time), and min(local, rows) of a device's experts are active.

    Raises:
        SpecError: A size is below one.
        Unsupported: The routing is unknown.
    """
    tokens, topk, experts, local, tile = together(tokens, topk, experts, local, tile)
    for name, values in (("tokens", tokens), ("topk", topk), ("experts", experts), ("local_experts", local)):
        if not np.all(values >= 1):
            raise SpecError(f"must be at least one, not {np.min(values):g}", field=name)
    exponent = skew(routing)
    pairs = tokens * topk
    if exponent is None:
        rows = np.maximum(pairs * local / experts, 1.0)
        met = np.minimum(local, rows)
        return RoutedLoad(rows=rows, met=met, padded=met * tile * np.ceil(rows / met / tile))
    if exponent == 0.0:
        rows = pairs * local / experts
        met = local * -np.expm1(tokens * np.log1p(-np.minimum(topk / experts, 1 - 1e-12)))
        each = rows / met
        return RoutedLoad(rows=rows, met=met, padded=met * (each + _waste(each, tile)))
    popularity = _popularities(exponent, pairs, experts, tokens)  # (quantiles, …), mean 1
    heaviest = np.maximum(_heaviest(popularity, experts, local), 1.0)
    rows = np.minimum(pairs * local / experts * heaviest, tokens * np.minimum(topk, local))
    each = np.minimum(rows / local * popularity, tokens)
    met = np.minimum(local * np.mean(-np.expm1(-each), axis=0), rows)
    padded = local * np.mean(-np.expm1(-each) * (np.maximum(each, 1.0) + _waste(np.maximum(each, 1.0), tile)), axis=0)
    return RoutedLoad(rows=rows, met=np.maximum(met, 1e-3), padded=np.maximum(padded, rows))


def _waste(each: Float64Array, tile: Float64Array) -> Float64Array:
    """Mean number of padding rows of an expert with about ``each`` rows.

    If the rows fit in one tile, padding fills the rest of the tile. Otherwise half a tile is padding on average.
    """
    waste: Float64Array = np.where(each < tile, tile - each, tile / 2)
    return waste


def _popularities(exponent: float, pairs: Float64Array, experts: Float64Array, tokens: Float64Array) -> Float64Array:
    """Quantiles (quantiles, …) of the experts' popularities, relative to their mean.

    The density of a popularity x is proportional to x^-exponent. ``pairs`` is the number of token-expert pairs: a token
    forms one pair with each expert that it chose. If there are more pairs than experts, x ranges from 1 to 0.8·tokens
    (at least 1.5). Otherwise x ranges from 0.01 to 2.
    """
    busy = pairs > experts
    least = np.where(busy, 1.0, 0.01)
    most = np.where(busy, np.maximum(0.8 * tokens, 1.5), 2.0)
    power = 1 - exponent
    shape = (QUANTILES,) + (1,) * pairs.ndim
    quantile = ((np.arange(QUANTILES) + 0.5) / QUANTILES).reshape(shape)
    drawn = (quantile * (most**power - least**power) + least**power) ** (1 / power)
    popularity: Float64Array = drawn / drawn.mean(axis=0)
    return popularity


def _heaviest(popularity: Float64Array, experts: Float64Array, local: Float64Array) -> Float64Array:
    """Load of the busiest device, divided by the mean load: 1 + deviation · √(2 ln devices).

    The number of devices is ``experts`` / ``local``.
    """
    devices = np.maximum(experts / local, 1.0)
    deviation = popularity.std(axis=0) / np.sqrt(local)
    heaviest: Float64Array = np.minimum(1 + deviation * np.sqrt(2 * np.log(devices)), devices)
    return heaviest
