"""Texts for metrics, gains and side effects."""

from __future__ import annotations

from chipwise.core import units
from chipwise.predict.explain.advice import Advice, Gain

KINDS = {
    "ttft_p50": "time",
    "tpot_p50": "time",
    "step": "time",
    "throughput": "rate",
    "joules_per_token": "energy",
    "usd_per_1k_tokens": "token_price",
    "peak_memory": "bytes",
}
_NAMES = {
    "ttft_p50": "TTFT",
    "tpot_p50": "TPOT",
    "step": "step time",
    "throughput": "throughput",
    "joules_per_token": "energy per token",
    "usd_per_1k_tokens": "price",
    "peak_memory": "memory",
}
_BETTER = {"throughput": "more", "joules_per_token": "less", "usd_per_1k_tokens": "cheaper", "peak_memory": "smaller"}
SIDE_EFFECT = 0.02  # smaller changes of other metrics are not mentioned


def metric_name(metric: str) -> str:
    """Short name of a metric."""
    return _NAMES.get(metric, metric.replace("_", " "))


def gain_text(gain: Gain) -> str:
    """Text such as ``TPOT 12 ms -> 8 ms``."""
    kind = KINDS.get(gain.metric, "count")
    before = units.show(gain.before, kind).removesuffix(" per million tokens")
    return f"{metric_name(gain.metric)} {before} -> {units.show(gain.after, kind)}"


def factor_text(gain: Gain) -> str:
    """Text such as ``1.5x faster (1.2 to 1.8)``. Memory is counted exactly, so its text has no interval."""
    ratio, better = gain.ratio, _BETTER.get(gain.metric, "faster")
    within = "" if ratio.low == ratio.high else f" ({units.interval(ratio.value, ratio.low, ratio.high, 'count')})"
    return f"{units.number(ratio.value)}x {better}{within}"


def side_effects(advice: Advice) -> str:
    """Text on how metrics other than the headline change, such as ``TTFT -46 %, price +240 %``; may be empty."""
    changes = [(gain.metric, gain.after / gain.before - 1) for gain in advice.gains if gain != advice.headline]
    return ", ".join(
        f"{metric_name(metric)} {units.signed_percent(change)}"
        for metric, change in changes
        if abs(change) >= SIDE_EFFECT
    )
