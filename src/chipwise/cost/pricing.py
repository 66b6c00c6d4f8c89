"""Prices that add: one vector per operator, sums of vectors per model, seconds for a million sums at once.

A price is a row of ``PRICE_COLUMNS``: seconds that do not depend on the rest of the model, bytes that only take room
in the caches, and streamed bytes per curve, whose rate depends on the working set of the whole pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from chipwise.cost.terms import terms
from chipwise.hardware.device import Curve, MachineProfile
from chipwise.ops import Op, Phase

Array = npt.NDArray[np.float64]
STREAMS = tuple(f"matmul.{weights}.{shape}" for weights in ("fp32", "int8", "int4") for shape in ("vector", "matrix"))
PRICE_COLUMNS = ("fixed_s", "resident_bytes", *STREAMS)


def op_price(op: Op, profile: MachineProfile) -> Array:
    """The price of ``op``: one value per column of ``PRICE_COLUMNS``. Prices of a pass's operators add up.

    Raises:
        Unsupported: The profile has no rates for this operator.
    """
    price = np.zeros(len(PRICE_COLUMNS))
    for term in terms(op):
        rates = profile.rates(term.model)
        price[0] += sum(rates[name] * amount for name, amount in term.amounts.items())
        price[1] += term.resident_bytes
        if term.streamed_bytes:
            price[PRICE_COLUMNS.index(term.model)] += term.streamed_bytes
    return price


def total_price(ops: Iterable[Op], profile: MachineProfile) -> Array:
    """The sum of the prices of ``ops``."""
    total = np.zeros(len(PRICE_COLUMNS))
    for op in ops:
        total += op_price(op, profile)
    return total


def combine(prices: Any, profile: MachineProfile, phase: Phase, *, logits: Any) -> Array:
    """Median seconds of a pass for each row of ``prices`` (…, columns): sums of :func:`op_price`.

    Args:
        prices: Sums of operator prices.
        profile: The machine they were priced for.
        phase: Which pass it is.
        logits: Batch times vocabulary size, from which tokens are chosen; broadcast against the rows.
    """
    prices = np.asarray(prices, dtype=np.float64)
    whole = profile.passes[phase.value]
    working_set = working_set_bytes(prices)
    seconds = prices[..., 0].copy()
    for column, name in enumerate(STREAMS, start=2):
        if name in profile.curves:
            seconds += prices[..., column] * s_per_byte(profile.curves[name], working_set)
    result: Array = whole.scale * seconds + whole.call_s + whole.per_logit_s * np.asarray(logits, dtype=np.float64)
    return result


def working_set_bytes(prices: Array) -> Array:
    """Bytes that a whole pass touches: streamed weights and the cache."""
    result: Array = prices[..., 1:].sum(axis=-1)
    return result


def s_per_byte(curve: Curve, working_set: Any) -> Array:
    """Seconds per streamed byte at each working set."""
    knots = np.log2(np.asarray(curve.working_set_bytes))
    result: Array = np.interp(np.log2(np.maximum(working_set, 1.0)), knots, np.asarray(curve.s_per_byte))
    return result
