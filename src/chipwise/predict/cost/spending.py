"""Throughput, power, energy and price of requests, from the seconds of their passes.

A request consists of the pass over its prompt, which gives the first token, and one decode step for each further token.
Its energy is its time multiplied by the stated power, which is an average over requests served one after another.
"""

from __future__ import annotations

from dataclasses import dataclass

from chipwise.core.arrays import Number
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.hardware.power_draw import limit_w
from chipwise.model.ops.workload import Workload
from chipwise.predict.cost.request import request_total, throughput


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Power of a device in watts, and its price per second; None if unknown."""

    power_w: float | None = None
    usd_per_s: float | None = None


def require(device: DeviceProfile, metric: str) -> None:
    """Checks that the data sheet lists the price or the power that ``metric`` needs.

    Raises:
        Unsupported: The sheet lists no price, or no board power; the message names the missing fact and the file.
    """
    _ = device.price_usd_per_s if metric == "usd_per_1k_tokens" else limit_w(device)


def spent(ttft_s: Number, tpot_s: Number, workload: Workload, rates: Rates) -> dict[str, Number]:
    """Returns ``throughput``, and if the rates are known ``power``, ``joules_per_token`` and ``usd_per_1k_tokens``.

    Values may be numbers or arrays of one shape.

    Args:
        ttft_s: Seconds of one pass over the prompts of all requests.
        tpot_s: Seconds of one decode step of all requests.
        workload: The requests.
        rates: Power and price of the device.
    """
    tokens = workload.new_tokens * workload.batch
    request_s = request_total(ttft_s, tpot_s, workload.new_tokens)
    found = {"throughput": throughput(ttft_s, tpot_s, workload.new_tokens, workload.batch)}
    if rates.power_w is not None:
        found |= {"power": rates.power_w + 0 * request_s, "joules_per_token": rates.power_w * request_s / tokens}
    if rates.usd_per_s is not None:
        found["usd_per_1k_tokens"] = 1000 * rates.usd_per_s * request_s / tokens
    return found


def refused(metric: str) -> Unsupported:
    """The exception to raise if this machine's power or price was not stated; its message says where to state it."""
    field, what, example = (
        ("price", "the price of this machine per hour", "0.10 USD/h")
        if metric == "usd_per_1k_tokens"
        else ("power", "the power of this machine under load", "15 W")
    )
    return Unsupported(f"{what} must be stated; add it to target in this file, such as {field}: {example}")
