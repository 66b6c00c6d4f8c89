"""How metrics and gains read."""

from __future__ import annotations

from chipwise.core import units
from chipwise.explaining.advice import Gain

KINDS = {
    "ttft_p50": "time",
    "tpot_p50": "time",
    "step": "time",
    "throughput": "rate",
    "joules_per_token": "energy",
    "usd_per_1k_tokens": "token_price",
    "peak_memory": "bytes",
}
_WORDS = {
    "ttft_p50": "TTFT",
    "tpot_p50": "TPOT",
    "step": "a step",
    "throughput": "throughput",
    "joules_per_token": "energy of a token",
    "usd_per_1k_tokens": "price",
    "peak_memory": "memory",
}


def metric_word(metric: str) -> str:
    """The metric in a word or two."""
    return _WORDS.get(metric, metric.replace("_", " "))


def gain_text(gain: Gain) -> str:
    """Such as ``TPOT 12 ms -> 8 ms``."""
    kind = KINDS.get(gain.metric, "count")
    return f"{metric_word(gain.metric)} {units.show(gain.before, kind)} -> {units.show(gain.after, kind)}"
