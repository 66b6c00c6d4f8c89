"""Tokens per second, watts, joules and dollars of requests, from the seconds of their passes.

A request is a prompt's pass, which gives the first token, and one step for each further token. Its joules are its
seconds times the stated watts. Power is the mean over consecutive requests.
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
    """Power of a device and price of its time; None if unknown."""

    power_w: float | None = None
    usd_per_s: float | None = None


def require(device: DeviceProfile, metric: str) -> None:
    """Raises an error for a metric of ``SPENDING`` if the data sheet lacks the facts for it.

    Raises:
        Unsupported: The sheet lists no board power or no price; the message names the fact and the file.
    """
    _ = device.price_usd_per_s if metric == "usd_per_1k_tokens" else limit_w(device)


def spent(ttft_s: Number, tpot_s: Number, workload: Workload, rates: Rates) -> dict[str, Number]:
    """``throughput``, and if known ``power``, ``joules_per_token`` and ``usd_per_1k_tokens``.

    Values may be arrays of one shape.

    Args:
        ttft_s: Seconds of the prompt's pass for all requests at once.
        tpot_s: Seconds of a decode step for all requests at once.
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
    """The error for an unknown power or price of this machine; it says where to state the value."""
    field, what, example = (
        ("price", "the price of this machine per hour", "0.10 USD/h")
        if metric == "usd_per_1k_tokens"
        else ("power", "the power of this machine under load", "15 W")
    )
    return Unsupported(f"nothing states {what}; add it to target in this file, such as {field}: {example}")
