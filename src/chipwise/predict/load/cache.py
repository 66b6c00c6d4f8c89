"""Number of positions that the KV cache of one replica holds in the memory left by weights and working memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chipwise.core import units
from chipwise.errors import DoesNotFit
from chipwise.predict.served.groups import Group, groups_of, memory_of
from chipwise.predict.served.memory import DeviceMemory
from chipwise.predict.served.request import Request, resolved
from chipwise.predict.served.shortage import changes_that_fit, shortage_text, would_fit

UTILISATION = 0.9
"""Share of a device's memory that a server uses, as set by vLLM's gpu_memory_utilization and similar options."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The KV cache of one replica: the number of positions, and the bytes of one position on all devices together."""

    tokens: float
    bytes_per_token: float


def cache_of(
    request: Request, *, most_tokens: int, length: int, utilisation: float = UTILISATION, draft: Request | None = None
) -> Cache:
    """The KV cache of one replica of ``request``'s deployment.

    Args:
        request: States model, device, runtime, formats and plan; its numbers of tokens and requests are not used.
        most_tokens: Maximum tokens of a step, for which working memory is reserved.
        length: Number of positions of a typical sequence. The bytes per position depend on the length, because windowed
            layers and recurrent states do not keep all positions.
        utilisation: Share of the memory that the server uses.
        draft: The request to the draft model, if any. Every device of the replica holds the draft model's weights and
            cache.

    Raises:
        DoesNotFit: Weights and working memory leave no room for a cache; the message says how much memory is missing
            and what would fit.
    """
    requests = most_tokens // resolved(request).setting.arch.stem.units(most_tokens)  # requests that fill a step
    longest, batch = max(length, 2), request.deployment.dp * requests
    group = groups_of(
        [
            replace(request, batch=batch, prompt_tokens=tokens, new_tokens=1, cached_tokens=0)
            for tokens in (max(most_tokens, 2), longest - 1)
        ]
    )[0]
    memory = memory_of(group)
    free = utilisation * group.device.usable_bytes - float(
        memory.weights[0] + memory.activations[0] + memory.runtime[0]
    )
    each = float(memory.cache[1]) / longest
    if draft is not None:
        alone = replace(draft, batch=1, prompt_tokens=longest - 1, new_tokens=1, cached_tokens=0)
        own = memory_of(groups_of([alone])[0])
        free -= float(own.weights[0])
        each += float(own.cache[0]) / longest
    if free < (each * min(longest, 16) if group.generates else 0):
        raise DoesNotFit(_too_large(request, group, memory))
    if not group.generates:
        return Cache(tokens=np.inf, bytes_per_token=0.0)
    plan = group.setting.plan
    return Cache(tokens=free / each if each else np.inf, bytes_per_token=each * plan.tp * plan.pp)


def _too_large(request: Request, group: Group, memory: DeviceMemory) -> str:
    least = replace(request, batch=1, prompt_tokens=16, new_tokens=1)
    said = shortage_text(group, memory, 1) or (
        f"{group.setting.arch.name} leaves no room for a cache on {group.device.label}: a server uses at most "
        f"{units.show(UTILISATION, 'share')} of the memory"
    )
    return f"{said}; {would_fit(changes_that_fit([least])[0])}"
