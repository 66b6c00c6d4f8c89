"""Throughput of a saturated replica, and the resource that limits it.

In the steady state with n decoding sequences, each sequence that ends is replaced by a new request, whose prompt is
processed. The table of step times gives the time of this mix of decoding and prompts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chipwise.predict.load.fleet import Replica

GAIN = 0.05  # if the last tenth of the sequences adds at least this share to the rate, more sequences would help


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturation:
    """A saturated replica: its throughput, number of sequences, share of time spent on prompts, and bottleneck."""

    requests_per_s: float
    sequences: int  # sequences per lane
    reading_share: float
    bottleneck: str

    def at_speed(self, speed: float) -> Saturation:
        """The same replica at ``speed`` times its usual speed."""
        return replace(self, requests_per_s=self.requests_per_s * speed)


def saturation(copy: Replica, *, prompt: float, new: float, cached: float = 0.0, prefilled: bool = False) -> Saturation:
    """Throughput of one saturated replica, and its bottleneck.

    Args:
        copy: The replica.
        prompt: Mean prompt tokens.
        new: Mean new tokens; 0 for models that do not generate.
        cached: Mean number of prompt tokens that are found in the prefix cache.
        prefilled: Whether another machine processes the prompts, so requests arrive with their KV caches.
    """
    policy = copy.policy
    read = 0.0 if prefilled else max(prompt - cached, 1.0)
    if new < 1:
        together = max(int(policy.most_tokens // read), 1)
        together = min(together, policy.most_sequences)
        step_s = copy.table.mixed_s(0, 0, [(round(read), 0)] * together, ending=together)
        return Saturation(
            requests_per_s=copy.lanes * together / step_s, sequences=together, reading_share=1.0, bottleneck="computing"
        )
    context = prompt + new / 2
    room = copy.cache_tokens / max(context - cached, 1.0)
    most = max(int(min(policy.most_sequences, room)), 1)
    tried = np.unique(np.round(np.geomspace(1, most, 24)).astype(int))
    rates = [_rate(copy, int(n), read=read, new=new, context=context, cached=cached) for n in tried]
    best = int(np.argmax([rate for rate, _ in rates]))
    rate, share = rates[best]
    fewer = _rate(copy, max(int(tried[best] * 0.9), 1), read=read, new=new, context=context, cached=cached)[0]
    if best < len(tried) - 1 or (most > 1 and rate / fewer - 1 < GAIN):
        lacking = "reading prompts" if share > 0.5 else "decoding"
    else:
        lacking = "KV memory" if room < policy.most_sequences else "sequences at once"
    return Saturation(
        requests_per_s=copy.lanes * rate, sequences=int(tried[best]), reading_share=share, bottleneck=lacking
    )


def _rate(copy: Replica, n: int, *, read: float, new: float, context: float, cached: float) -> tuple[float, float]:
    """Requests per second of one lane with ``n`` decoding sequences, and the share of time spent on prefill."""
    table, policy = copy.table, copy.policy
    speculation = policy.speculation
    pace = speculation.tokens_per_step if speculation else 1.0
    plain_s = table.decode_s(n, context)
    steps = max(new - 1, 1.0) / pace  # decode steps per request
    if not read:
        return n / steps / plain_s, 0.0
    if not policy.mixed:
        together = max(int(policy.most_tokens // read), 1)
        prompt_s = table.mixed_s(0, 0, [(round(read), round(cached))] * together, ending=together) / together
        seconds = steps * plain_s / n + prompt_s
        return 1 / seconds, prompt_s / seconds
    chunk = read * n / steps  # mean prompt tokens per step
    if chunk + n * policy.width > policy.most_tokens:
        chunk = max(policy.most_tokens - n * policy.width, 1)
    past = cached + max(read - chunk, 0.0) / 2
    whole_s = table.mixed_s(n, context, [(max(round(chunk), 1), round(past))])
    rate = min(n / steps, chunk / read) / whole_s
    return rate, max(whole_s - plain_s, 0.0) / whole_s
