"""Fleets: replicas behind a router, pools of different chips, prefill and decode apart, chained stages.

Every lane of a pool is one engine: a replica, or in a pipeline one of its microbatches, with its share of the cache; a
router deals requests out in turns. Where lanes are many, a few of them are replayed and stand for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.predict.load.cache import cache_of
from chipwise.predict.load.engine import Served, replay
from chipwise.predict.load.load import Load
from chipwise.predict.load.policy import Policy, policy_of
from chipwise.predict.load.step_times import StepTimes, step_times
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.request import Request, resolved

TRANSFER_S = 1e-3
"""Seconds to set up the transfer of a KV cache, on top of moving its bytes. Stated, not fitted."""

GOLDEN = (5**0.5 - 1) / 2
PADDING = 0.01  # part of a vocabulary by which two models' may differ: rows that no token uses


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One copy of a model on its devices: step times, scheduling rules, cache size."""

    request: Request
    table: StepTimes
    policy: Policy
    cache_tokens: float
    cache_bytes_per_token: float

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.request.deployment.devices

    @property
    def lanes(self) -> int:
        """Engines that a replica is replayed as: microbatches of its pipeline, ranks of its attention."""
        return self.request.deployment.pp * self.request.deployment.dp


def draft_of(request: Request, policy: Policy) -> Request | None:
    """The request to the model that drafts for ``request``'s, whole on each of its devices; None if none does.

    Raises:
        SpecError: It has another vocabulary.
    """
    name = policy.speculation.draft if policy.speculation else None
    if name is None:
        return None
    alone = Deployment(device=request.device, runtime=request.deployment.runtime)
    own = replace(request, model=name, deployment=alone, batch=12)
    check_draft(*(resolved(each).setting.arch for each in (request, own)))
    return own


def check_draft(arch: ArchSpec, draft: ArchSpec) -> None:
    """Checks that ``draft`` can draft for ``arch``.

    Raises:
        SpecError: It has another vocabulary, or generates nothing.
    """
    rows = arch.vocab_size, draft.vocab_size
    if abs(rows[0] - rows[1]) > PADDING * max(rows):
        raise SpecError(
            f"{draft.name} has {rows[1]:,} tokens and {arch.name} {rows[0]:,}: what it drafts cannot be checked; name "
            "a model of the same vocabulary",
            field="draft",
        )
    if not draft.causal:
        raise SpecError(f"{draft.name} generates nothing that could be a draft", field="draft")


def replica(
    request: Request,
    *,
    policy: Policy | None = None,
    longest: int = 32768,
    table: StepTimes | None = None,
    draft: StepTimes | None = None,
) -> Replica:
    """One copy of ``request``'s model in its deployment.

    Args:
        request: Model, device, runtime, formats, plan; its sizes are those of a typical request.
        policy: How steps are formed; the runtime's defaults unless given.
        longest: Positions of the longest sequence.
        table: Its step times, where they are known already.
        draft: Those of the model that drafts for it, likewise.

    Raises:
        DoesNotFit: Weights and working memory need more than the devices have.
        SpecError: The model that drafts has another vocabulary.
        Unsupported: A device lacks a rate.
    """
    found = resolved(request)
    arch = found.setting.arch
    chosen = policy or policy_of(found.setting.runtime, generates=arch.causal, stem=arch.stem is not None)
    typical = request.prompt_tokens + request.new_tokens
    drafting = draft_of(request, chosen)
    cache = cache_of(request, most_tokens=chosen.most_tokens, length=typical, draft=drafting)
    if table is None:
        table = _table(request, chosen, longest, chosen.width)
    if drafting is not None:
        table = table.drafted_by(_table(drafting, chosen, longest, 1) if draft is None else draft)
    return Replica(
        request=request,
        table=table,
        policy=chosen,
        cache_tokens=cache.tokens / request.deployment.pp,
        cache_bytes_per_token=cache.bytes_per_token,
    )


def _table(request: Request, policy: Policy, longest: int, width: int) -> StepTimes:
    answer = step_times(
        [request],
        most_tokens=max(policy.most_tokens, policy.most_sequences * width),
        most_sequences=policy.most_sequences,
        longest=longest,
        width=width,
    )[0]
    if isinstance(answer, Unsupported):
        raise answer
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Replicas of one kind behind a router; ``weight`` is their share of a mixed fleet's requests."""

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
    """Replays ``load`` in a pool with round-robin routing.

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
    return serve_lanes(
        load, pool, pool.lanes, slow=slow, most_lanes=most_lanes, timeline=timeline, on_progress=on_progress
    )


def serve_lanes(
    load: Load,
    pool: Pool,
    lanes: int,
    *,
    slow: tuple[float, float] = (1.0, 1.0),
    most_lanes: int | None = None,
    timeline: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Served:
    """Replays as :func:`serve` does, with a given number of engines, whatever the pool's number of replicas."""
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

    def column(columns: Iterable[Float64Array]) -> Float64Array:
        return np.concatenate(list(columns))[order]

    blocked = {name: sum(each.blocked[name] for each in answers) for name in answers[0].blocked}
    return Served(
        load=load.taken(places[order]),
        arrival_s=column(each.arrival_s for each in answers),
        scheduled_s=column(each.scheduled_s for each in answers),
        first_s=column(each.first_s for each in answers),
        last_s=column(each.last_s for each in answers),
        preemptions=np.concatenate([each.preemptions for each in answers])[order],
        computed_tokens=sum(each.computed_tokens for each in answers),
        steps=sum(each.steps for each in answers),
        busy_s=sum(each.busy_s for each in answers),
        reading_s=sum(each.reading_s for each in answers),
        blocked=blocked,
        timeline=answers[0].timeline,
    )


def serve_mixed(
    load: Load,
    pools: Sequence[Pool],
    *,
    slow: Sequence[tuple[float, float]] | None = None,
    most_lanes: int | None = None,
    timeline: bool = False,
) -> Served:
    """Replays requests in pools of different chips behind one router, which splits them by the pools' weights.

    Args:
        load: The requests of all pools.
        pools: The pools.
        slow: Factors of each pool's steps.
        most_lanes: How many lanes of the smallest pool are replayed, and as large a part of the others; about so.
        timeline: Whether to keep what each pool's first lane held over time.
    """
    weights = np.array([pool.weight for pool in pools])
    spread = (np.arange(len(load)) + 0.5) * GOLDEN % 1.0  # as even as random numbers are not
    choice = np.minimum(np.searchsorted(np.cumsum(weights / weights.sum()), spread, side="right"), len(pools) - 1)
    factors = slow or [(1.0, 1.0)] * len(pools)
    replayed = parts_mixed([pool.lanes for pool in pools], most_lanes)
    answers, rows = [], []
    for number, pool in enumerate(pools):
        own = np.flatnonzero(choice == number)
        if not len(own):
            continue
        kept = replayed[number]
        rows.append(own[np.arange(len(own)) % pool.lanes < kept])
        answers.append(serve(load.taken(own), pool, slow=factors[number], most_lanes=kept, timeline=timeline))
    return joined(answers, load, rows)


def parts_mixed(lanes: Sequence[int], most: int | None) -> list[int]:
    """Replayed lanes of each pool: at most so many of the smallest pool, and an equal share of the others."""
    part = 1.0 if most is None else min(1.0, most / min(lanes))
    return [max(1, round(part * each)) for each in lanes]


def link_of(copy: Replica) -> float:
    """Bytes a second from one replica to another: the network's, else the host's link of all its devices together.

    Raises:
        SpecError: The data sheet lists neither.
    """
    device = resolved(copy.request).device
    for target in ("network", "host", "device"):
        found = [link.bandwidth.number for link in device.links if link.to == target]
        if found:
            return max(found) * copy.devices
    raise SpecError(f"{device.name} lists no link; say how fast a cache is handed over", field="link")


def serve_apart(
    load: Load,
    reading: Pool,
    writing: Pool,
    *,
    link_bytes_per_s: float,
    slow: Sequence[tuple[float, float]] = ((1.0, 1.0), (1.0, 1.0)),
    most_lanes: int | None = None,
    timeline: bool = False,
) -> Served:
    """Prefill and decode on separate machines: each prompt's cache crosses the link before decoding begins.

    A reading replica hands over one cache after another; the writing replicas get them in turns.

    Args:
        load: The requests.
        reading: The pool that reads prompts and gives first tokens.
        writing: The pool that gives the others.
        link_bytes_per_s: From one replica to another.
        slow: Factors of both pools' steps.
        most_lanes: How many reading lanes are replayed at least, and as large a part of the others, to stand for all.
        timeline: Whether to keep what the first lane of the decoding pool held over time.
    """
    prompts = replace(load, new_tokens=np.minimum(load.new_tokens, 1))
    reads = replace(reading.replica.policy, speculation=None)
    reader = replace(reading, replica=replace(reading.replica, policy=reads))
    read, written, share = parts_apart(reading.lanes, writing.lanes, most_lanes)
    first = serve(prompts, reader, slow=slow[0], most_lanes=read)
    rows = np.arange(len(load))
    if read < reading.lanes:
        rows = rows[rows % reading.lanes < read]
        load = load.taken(rows)
    sent = load.prompt_tokens.astype(np.float64) * reading.replica.cache_bytes_per_token
    moved_s = np.asarray(TRANSFER_S + sent / link_bytes_per_s, np.float64)
    ready = handed_over(first.first_s, moved_s, rows % reading.lanes)
    order = np.argsort(ready, kind="stable")
    order = order[np.isfinite(ready[order])]
    if share < 1:  # of what the replayed lanes read, the part that the replayed lanes write
        order = order[np.floor((np.arange(len(order)) + 1) * share) > np.floor(np.arange(len(order)) * share)]
    rest = order[load.new_tokens[order] > 1]
    own = replace(load.taken(rest), arrival_s=ready[rest], prefilled=True)
    writer = replace(
        writing, replicas=1, replica=replace(writing.replica, policy=replace(writing.replica.policy, request_s=0.0))
    )
    if not len(rest):
        return first
    second = serve_lanes(own, writer, written, slow=slow[1], timeline=timeline)
    last = first.last_s.copy()
    last[rest] = second.last_s
    preemptions = first.preemptions.copy()
    preemptions[rest] += second.preemptions
    kept = np.sort(order) if share < 1 else np.arange(len(load))
    return replace(
        first,
        load=load.taken(kept),
        arrival_s=first.arrival_s[kept],
        scheduled_s=first.scheduled_s[kept],
        first_s=first.first_s[kept],
        last_s=last[kept],
        preemptions=preemptions[kept],
        computed_tokens=first.computed_tokens + second.computed_tokens,
        steps=first.steps + second.steps,
        busy_s=first.busy_s + second.busy_s,
        reading_s=first.busy_s,
        blocked={name: first.blocked[name] + second.blocked[name] for name in first.blocked},
        timeline=second.timeline,
    )


def parts_apart(reading: int, writing: int, most: int | None) -> tuple[int, int, float]:
    """Replayed lanes for prefill and decode, and the share of prefills that the decode lanes receive."""
    if most is None or reading + writing <= 2 * most:
        return reading, writing, 1.0
    read = min(reading, max(most, -(-reading // writing)))
    written = max(1, writing * read // reading)
    return read, written, min(1.0, written * reading / (writing * read))


def handed_over(ready_s: Float64Array, moved_s: Float64Array, sender: npt.NDArray[np.int64]) -> Float64Array:
    """Arrival time of each cache, (n,): a sender transfers one at a time, in order of readiness.

    ``UNSERVED`` in ``ready_s`` becomes infinite: there is nothing to hand over.
    """
    found = np.full(len(ready_s), np.inf)
    free: dict[int, float] = {}
    for i in np.argsort(ready_s, kind="stable").tolist():
        if ready_s[i] < 0:
            continue
        lane = int(sender[i])
        free[lane] = found[i] = max(float(ready_s[i]), free.get(lane, 0.0)) + float(moved_s[i])
    return found
