"""Number of positions in the KV cache of one replica, after weights and working memory."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from chipwise.core import units
from chipwise.errors import DoesNotFit
from chipwise.predict.served.groups import Group, grouped, memory_of
from chipwise.predict.served.memory import DeviceMemory
from chipwise.predict.served.request import Request, resolved
from chipwise.predict.served.shortage import changes_that_fit, shortage_text, would_fit

UTILISATION = 0.9
"""Share of the memory that a server uses (vLLM's gpu_memory_utilization, TensorRT-LLM's free_gpu_memory_fraction)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cache:
    """The cache of one replica: positions, and bytes of one position over all of its devices."""

    tokens: float
    bytes_per_token: float


def cache_of(
    request: Request, *, most_tokens: int, length: int, utilisation: float = UTILISATION, draft: Request | None = None
) -> Cache:
    """The cache of one replica of ``request``'s arrangement.

    Args:
        request: Names model, device, runtime, formats and plan; its sizes do not matter.
        most_tokens: Maximum tokens of a step, to reserve working memory for it.
        length: Positions of a typical sequence, needed because windowed layers and recurrent states do not keep all.
        utilisation: Share of the memory that the server uses.
        draft: The draft model, if any, which also needs weights and cache on every device of the replica.

    Raises:
        DoesNotFit: Weights and working memory need too much memory; the message says how much is missing and what would
            fit.
    """
    requests = most_tokens // resolved(request).setting.arch.stem.units(most_tokens)  # requests that fill a step
    longest, batch = max(length, 2), request.deployment.dp * requests
    asked = [
        replace(request, batch=batch, prompt_tokens=max(most_tokens, 2), new_tokens=1, cached_tokens=0),
        replace(request, batch=batch, prompt_tokens=longest - 1, new_tokens=1, cached_tokens=0),
    ]
    groups, errors = grouped(asked)
    if errors:
        raise next(iter(errors.values()))
    group = groups[0]
    memory = memory_of(group)
    free = utilisation * group.device.usable_bytes - float(
        memory.weights[0] + memory.activations[0] + memory.runtime[0]
    )
    each = float(memory.cache[1]) / longest
    if draft is not None:
        beside, problems = grouped([replace(draft, batch=1, prompt_tokens=longest - 1, new_tokens=1, cached_tokens=0)])
        if problems:
            raise next(iter(problems.values()))
        own = memory_of(beside[0])
        free -= float(own.weights[0])
        each += float(own.cache[0]) / longest
    if not group.generates:
        if free < 0:
            raise DoesNotFit(_too_large(request, group, memory))
        return Cache(tokens=np.inf, bytes_per_token=0.0)
    if free < each * min(longest, 16):
        raise DoesNotFit(_too_large(request, group, memory))
    plan = group.setting.plan
    return Cache(tokens=free / each if each else np.inf, bytes_per_token=each * plan.tp * plan.pp)


def _too_large(request: Request, group: Group, memory: DeviceMemory) -> str:
    least = replace(request, batch=1, prompt_tokens=16, new_tokens=1)
    said = shortage_text(group, memory, 1) or (
        f"{group.setting.arch.name} leaves no room for a cache on {group.device.label}, where a server may use "
        f"{units.show(UTILISATION, 'share')}"
    )
    return f"{said}; {would_fit(changes_that_fit([least])[0])}"
