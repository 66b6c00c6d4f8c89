"""Additive prices: each operator has a price vector, and the vectors of a model's operators are summed.

The price vectors of millions of models are then converted to seconds in one call. A price is not an amount of money.
It has one value for each of ``PRICE_COLUMNS``: seconds that do not depend on the rest of the model, bytes that only
occupy caches, and streamed bytes for each bandwidth curve. The rate of streamed bytes depends on the working set of the
whole pass. The last columns hold seconds by group of operators and the number of nodes. The corrections learnt from
measurements of whole models use these columns (``predict/cost/residual.py``).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.dtypes import Size
from chipwise.hardware.device import Curve, MachineProfile
from chipwise.model.ops.op import Op
from chipwise.model.ops.workload import Phase
from chipwise.predict.cost.residual import factors
from chipwise.predict.cost.terms import terms

STREAMS = tuple(f"matmul.{weights}.{shape}" for weights in ("fp32", "int8", "int4") for shape in ("vector", "matrix"))
GROUPS = ("node", "attention", "pointwise", "norm", "conv", "other", *STREAMS)
PRICE_COLUMNS = ("fixed_s", "resident_bytes", *STREAMS, *(f"{group}_s" for group in GROUPS), "nodes")
_STREAMED = slice(2, 2 + len(STREAMS))
_GROUPED = slice(_STREAMED.stop, _STREAMED.stop + len(GROUPS))


def op_price(op: Op, profile: MachineProfile) -> Float64Array:
    """The price of ``op``: one value per column of ``PRICE_COLUMNS``. The operators' prices add up to a pass's price.

    Raises:
        Unsupported: The profile has no rates for this operator.
    """
    price = np.zeros(len(PRICE_COLUMNS))
    for term in terms(op):
        rates = profile.rates(term.model)
        # If the profile was fitted without this feature, other features account for its time.
        seconds = sum(rates.get(name, 0.0) * amount for name, amount in term.amounts.items())
        nodes = term.amounts["node"]
        launch = rates["node"] * nodes
        price[0] += seconds
        price[1] += term.resident_bytes
        price[_GROUPED.start] += launch
        price[_GROUPED.start + GROUPS.index(_group(term.model))] += seconds - launch
        price[-1] += nodes
        if term.streamed_bytes:
            price[PRICE_COLUMNS.index(term.model)] += term.streamed_bytes
    return price


def _group(model: str) -> str:
    """The group of ``GROUPS`` to which the rate model ``model`` belongs."""
    if model in STREAMS:
        return model
    kind, _, rest = model.partition(".")
    if rest.startswith("pointwise"):  # pointwise attention uses other nodes
        kind = "pointwise"
    return kind if kind in GROUPS else "other"


def total_price(ops: Iterable[Op], profile: MachineProfile) -> Float64Array:
    """The sum of the prices of ``ops``."""
    total = np.zeros(len(PRICE_COLUMNS))
    for op in ops:
        total += op_price(op, profile)
    return total


def combine(prices: Size, profile: MachineProfile, phase: Phase, *, logits: Size) -> Float64Array:
    """Median seconds of a pass for each row of ``prices`` (…, columns).

    Args:
        prices: Each row is the price of a pass: the sum of its operators' prices from :func:`op_price`.
        profile: The machine for which the prices were computed.
        phase: Prefill or decode.
        logits: Number of logits from which tokens are chosen: batch times vocabulary size. One number for all rows,
            or one per row.
    """
    prices = np.asarray(prices, dtype=np.float64)
    whole = profile.passes[phase.value]
    working_set = working_set_bytes(prices)
    seconds = prices[..., 0].copy()
    for column, name in enumerate(STREAMS, start=2):
        if name in profile.curves:
            seconds += prices[..., column] * s_per_byte(profile.curves[name], working_set)
    result: Float64Array = (
        whole.scale * seconds + whole.call_s + whole.per_logit_s * np.asarray(logits, dtype=np.float64)
    )
    if phase.value in profile.residuals:
        parts, figures = anatomy(prices, profile, phase, logits=logits)
        result = result * factors(parts, figures, profile.residuals[phase.value], PARTS)
    return result


PARTS = (*GROUPS, "call", "logits")


def anatomy(prices: Size, profile: MachineProfile, phase: Phase, *, logits: Size) -> tuple[Float64Array, Float64Array]:
    """Seconds of each part of a pass (…, ``PARTS``), and the features of the pass (…, ``residual.FIGURES``).

    The features are the inputs of the smooth correction (``predict/cost/residual.py``).
    Both are computed with the profile's rates, before any correction.
    """
    prices = np.asarray(prices, dtype=np.float64)
    whole, working_set = profile.passes[phase.value], working_set_bytes(prices)
    grouped = whole.scale * prices[..., _GROUPED]
    for i, name in enumerate(STREAMS):
        if name in profile.curves:
            streamed = prices[..., 2 + i] * s_per_byte(profile.curves[name], working_set)
            grouped[..., GROUPS.index(name)] += whole.scale * streamed
    logits = np.broadcast_to(np.asarray(logits, dtype=np.float64), working_set.shape)
    call = np.full(working_set.shape, whole.call_s)
    parts = np.concatenate([grouped, np.stack([call, whole.per_logit_s * logits], axis=-1)], axis=-1)
    bytes_of = {w: prices[..., 2 + i] + prices[..., 3 + i] for i, w in ((0, "fp32"), (2, "int8"), (4, "int4"))}
    streamed_bytes = np.maximum(sum(bytes_of.values()), 1.0)
    figures = np.stack(
        [
            np.log(np.maximum(parts.sum(axis=-1), 1e-12)),
            np.log(np.maximum(working_set, 1.0)),
            np.log(np.maximum(prices[..., -1], 1.0)),
            np.log(np.maximum(logits, 1.0)),
            bytes_of["int8"] / streamed_bytes,
            bytes_of["int4"] / streamed_bytes,
        ],
        axis=-1,
    )
    return parts, figures


def working_set_bytes(prices: Float64Array) -> Float64Array:
    """Bytes that a whole pass reads: the streamed weights, and other bytes that occupy caches, such as the KV cache."""
    result: Float64Array = prices[..., 1 : _STREAMED.stop].sum(axis=-1)
    return result


def s_per_byte(curve: Curve, working_set: Size) -> Float64Array:
    """Seconds per streamed byte, interpolated on ``curve`` at each size of the working set."""
    knots = np.log2(np.asarray(curve.working_set_bytes))
    result: Float64Array = np.interp(np.log2(np.maximum(working_set, 1.0)), knots, np.asarray(curve.s_per_byte))
    return result
