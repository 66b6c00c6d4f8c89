"""Fleets: replicas behind a router, pools of different chips, prefill and decode on machines of their own, stages.

Every lane of a pool is one engine: a replica, or in a pipeline one of its microbatches, with its share of the cache; a
router deals requests out in turns. Where lanes are many, a few of them are replayed and stand for all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.core.errors import Unsupported
from chipwise.replay.cache import cache_of
from chipwise.replay.engine import UNSERVED, Served, replay
from chipwise.replay.load import Load
from chipwise.replay.policy import Policy, policy_of
from chipwise.replay.step_times import StepTimes, step_times
from chipwise.serve.request import Request, resolved

TRANSFER_S = 1e-3
"""Seconds to set up the transfer of a KV cache, on top of moving its bytes. Stated, not fitted."""

GOLDEN = (5**0.5 - 1) / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One copy of a model on its devices: what its steps take, how they are formed, what its cache holds."""

    request: Request
    table: StepTimes
    policy: Policy
    cache_tokens: float
    cache_bytes_per_token: float

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.request.tp * self.request.pp * self.request.dp

    @property
    def lanes(self) -> int:
        """Engines that a replica is replayed as: microbatches of its pipeline, ranks of its attention."""
        return self.request.pp * self.request.dp


def replica(
    request: Request, *, policy: Policy | None = None, longest: int = 32768, table: StepTimes | None = None
) -> Replica:
    """One copy of ``request``'s model as it is arranged there.

    Args:
        request: Model, device, runtime, formats, plan; its sizes are those of a typical request.
        policy: How steps are formed; the runtime's defaults unless given.
        longest: Positions of the longest sequence.
        table: Its step times, where they are known already.

    Raises:
        DoesNotFit: Weights and working memory need more than the devices have.
        Unsupported: A device lacks a rate.
    """
    found = resolved(request)
    chosen = policy or policy_of(found.setting.runtime, generates=found.setting.arch.causal)
    typical = request.prompt_tokens + request.new_tokens
    cache = cache_of(request, most_tokens=chosen.most_tokens, length=typical)
    if table is None:
        width = chosen.speculation.drafted + 1 if chosen.speculation else 1
        answer = step_times(
            [request],
            most_tokens=max(chosen.most_tokens, chosen.most_sequences * width),
            most_sequences=chosen.most_sequences,
            longest=longest,
        )[0]
        if isinstance(answer, Unsupported):
            raise answer
        table = answer
    return Replica(
        request=request,
        table=table,
        policy=chosen,
        cache_tokens=cache.tokens / request.pp,
        cache_bytes_per_token=cache.bytes_per_token,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """So many replicas of one sort behind a router; ``weight`` is the part of a mixed fleet's requests that it gets."""

    replica: Replica
    replicas: int = 1
    weight: float = 1.0

    @property
    def lanes(self) -> int:
        """Engines in the pool."""
        return self.replicas * self.replica.lanes

    @property
    def devices(self) -> int:
        """Devices in the pool."""
        return self.replicas * self.replica.devices


def serve(
    load: Load,
    pool: Pool,
    *,
    slow: tuple[float, float] = (1.0, 1.0),
    most_lanes: int | None = None,
    timeline: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Served:
    """What the requests of ``load`` meet in a pool that deals them out in turns.

    Args:
        load: The requests of the whole pool.
        pool: The replicas.
        slow: Factors of the decoding and of the reading part of every step.
        most_lanes: How many lanes are replayed, to stand for all; the others' requests are left out.
        timeline: Whether to keep what the first lane held over time.
        on_progress: Called with the requests that have ended and their number, now and then.

    Raises:
        DoesNotFit: A request is longer than a replica's cache.
    """
    lanes = pool.lanes
    kept = lanes if most_lanes is None else min(lanes, most_lanes)
    rows = [np.arange(lane, len(load), lanes) for lane in range(kept)]
    rows = [each for each in rows if len(each)]
    clients = load.clients
    answers = []
    done = 0
    total = sum(map(len, rows))
    for lane, chosen in enumerate(rows):
        own = load if lanes == 1 else load.taken(chosen)
        if clients is not None and lanes > 1:
            own = replace(own, clients=max(1, clients // lanes + (lane < clients % lanes)))

        def advance(ended: int, _: int, before: int = done) -> None:
            if on_progress is not None:
                on_progress(before + ended, total)

        answers.append(
            replay(
                own,
                pool.replica.table,
                pool.replica.policy,
                cache_tokens=pool.replica.cache_tokens,
                slow=slow,
                timeline=timeline and lane == 0,
                on_progress=advance if on_progress is not None else None,
            )
        )
        done += len(chosen)
    return answers[0] if len(answers) == 1 else joined(answers, load, rows)


def joined(answers: Sequence[Served], load: Load, rows: Sequence[npt.NDArray[np.int64]]) -> Served:
    """Several lanes' answers as one, in the order of ``load``; requests of lanes not replayed are left out."""
    places = np.concatenate(rows)
    order = np.argsort(places, kind="stable")

    def column(name: str) -> Any:
        return np.concatenate([getattr(each, name) for each in answers])[order]

    blocked = {name: sum(each.blocked[name] for each in answers) for name in answers[0].blocked}
    return Served(
        load=load.taken(places[order]),
        arrival_s=column("arrival_s"),
        scheduled_s=column("scheduled_s"),
        first_s=column("first_s"),
        last_s=column("last_s"),
        preemptions=column("preemptions"),
        computed_tokens=sum(each.computed_tokens for each in answers),
        steps=sum(each.steps for each in answers),
        busy_s=sum(each.busy_s for each in answers),
        reading_s=sum(each.reading_s for each in answers),
        blocked=blocked,
        timeline=answers[0].timeline,
    )


def serve_mixed(
    load: Load, pools: Sequence[Pool], *, slow: Sequence[tuple[float, float]] | None = None, timeline: bool = False
) -> Served:
    """What requests meet in pools of different chips behind one router, which deals them out by the pools' weights."""
    weights = np.array([pool.weight for pool in pools])
    spread = (np.arange(len(load)) + 0.5) * GOLDEN % 1.0  # as even as random numbers are not
    choice = np.minimum(np.searchsorted(np.cumsum(weights / weights.sum()), spread, side="right"), len(pools) - 1)
    rows = [np.flatnonzero(choice == i) for i in range(len(pools))]
    factors = slow or [(1.0, 1.0)] * len(pools)
    used = [i for i in range(len(pools)) if len(rows[i])]
    answers = [serve(load.taken(rows[i]), pools[i], slow=factors[i], timeline=timeline) for i in used]
    return joined(answers, load, [rows[i] for i in used])


def serve_apart(
    load: Load,
    reading: Pool,
    writing: Pool,
    *,
    link_bytes_per_s: float,
    slow: Sequence[tuple[float, float]] = ((1.0, 1.0), (1.0, 1.0)),
    timeline: bool = False,
) -> Served:
    """Prefill and decode on machines of their own: each prompt's cache crosses the link before decoding begins.

    Args:
        load: The requests.
        reading: The pool that reads prompts and gives first tokens.
        writing: The pool that gives the others.
        link_bytes_per_s: From one replica to another.
        slow: Factors of both pools' steps.
        timeline: Whether to keep what the first lane of the decoding pool held over time.
    """
    prompts = replace(load, new_tokens=np.minimum(load.new_tokens, 1))
    first = serve(prompts, reading, slow=slow[0])
    moved = TRANSFER_S + load.prompt_tokens * reading.replica.cache_bytes_per_token / link_bytes_per_s
    ready = np.where(first.done, first.first_s + moved, np.inf)
    order = np.argsort(ready, kind="stable")
    rest = order[(load.new_tokens[order] > 1) & np.isfinite(ready[order])]
    own = replace(load.taken(rest), arrival_s=ready[rest], prefilled=True)
    writer = replace(writing, replica=replace(writing.replica, policy=replace(writing.replica.policy, request_s=0.0)))
    if not len(rest):
        return first
    second = serve(own, writer, slow=slow[1], timeline=timeline)
    last = first.last_s.copy()
    last[rest] = second.last_s
    preemptions = first.preemptions.copy()
    preemptions[rest] += second.preemptions
    return replace(
        first,
        load=load,
        last_s=last,
        preemptions=preemptions,
        computed_tokens=first.computed_tokens + second.computed_tokens,
        steps=first.steps + second.steps,
        busy_s=first.busy_s + second.busy_s,
        reading_s=first.busy_s,
        blocked={name: first.blocked[name] + second.blocked[name] for name in first.blocked},
        timeline=second.timeline,
    )


def serve_stages(
    loads: Sequence[Load], pools: Sequence[Pool], *, slow: Sequence[tuple[float, float]] | None = None
) -> Served:
    """Stages one after another, each with a model of its own: a request enters the next when one has answered it.

    Args:
        loads: The same requests with each stage's tokens, in the same order; the first's arrivals count.
        pools: One a stage.
        slow: Factors of each stage's steps.

    The answer's first token is the last stage's; its arrival is that at the first.
    """
    factors = slow or [(1.0, 1.0)] * len(pools)
    arrival: Float64Array = loads[0].arrival_s
    answers = []
    for stage, (load, pool) in enumerate(zip(loads, pools, strict=True)):
        order = np.argsort(arrival, kind="stable")
        own = replace(load.taken(order), arrival_s=arrival[order], clients=None)
        found = serve(own, pool, slow=factors[stage])
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        answers.append((found, back))
        arrival = np.where(found.last_s[back] >= 0, found.last_s[back], np.inf)
    last, back = answers[-1]
    begun, home = answers[0]
    return Served(
        load=loads[-1],
        arrival_s=loads[0].arrival_s,
        scheduled_s=begun.scheduled_s[home],
        first_s=np.where(last.last_s[back] >= 0, last.first_s[back], UNSERVED),
        last_s=last.last_s[back],
        preemptions=np.sum([found.preemptions[place] for found, place in answers], axis=0),
        computed_tokens=sum(found.computed_tokens for found, _ in answers),
        steps=sum(found.steps for found, _ in answers),
        busy_s=sum(found.busy_s for found, _ in answers),
        reading_s=sum(found.reading_s for found, _ in answers),
        blocked={name: sum(found.blocked[name] for found, _ in answers) for name in last.blocked},
        timeline=last.timeline,
    )
