"""Replays a load on a fleet: replicas behind a router, or separate pools of replicas for prefill and decode.

A pool consists of lanes. Each lane is one engine with its own part of the cache: an attention replica, or in a pipeline
one microbatch of an attention replica. A router assigns the requests to the lanes in turn. If there are many lanes,
only a few of them are replayed, which represent all lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from chipwise.core.arrays import Float64Array
from chipwise.errors import SpecError, Unsupported
from chipwise.model.arch.arch import ArchSpec
from chipwise.predict.load.cache import cache_of
from chipwise.predict.load.engine import COLUMNS, Served, replay
from chipwise.predict.load.gaps import joined_spans
from chipwise.predict.load.load import Load
from chipwise.predict.load.policy import Policy, policy_of
from chipwise.predict.load.step_times import StepTimes, step_times
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.request import Request, resolved

TRANSFER_S = 1e-3
"""Seconds that the transfer of a KV cache takes in addition to moving its bytes. Assumed, not fitted."""

PADDING = 0.01  # tolerated relative difference between vocabulary sizes (padding rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One copy of a model on its devices, with its step times, scheduling rules and cache size."""

    request: Request
    table: StepTimes
    policy: Policy
    cache_tokens: float
    cache_bytes_per_token: float

    @property
    def devices(self) -> int:
        """Number of devices of one replica."""
        return self.request.deployment.devices

    @property
    def lanes(self) -> int:
        """Number of lanes that represent a replica: its attention replicas times the microbatches of its pipeline."""
        return self.request.deployment.pp * self.request.deployment.dp


def draft_of(request: Request, policy: Policy) -> Request | None:
    """A copy of ``request`` with the policy's draft model as its model; None if the policy has no draft model.

    The draft model runs unsharded on each device.

    Raises:
        SpecError: The draft model has a different vocabulary.
    """
    name = policy.speculation.draft if policy.speculation else None
    if name is None:
        return None
    alone = Deployment(device=request.device, runtime=request.deployment.runtime)
    own = replace(request, model=name, deployment=alone, batch=12)
    check_draft(*(resolved(each).setting.arch for each in (request, own)))
    return own


def check_draft(arch: ArchSpec, draft: ArchSpec) -> None:
    """Checks that ``draft`` can be the draft model of ``arch``.

    Raises:
        SpecError: ``draft`` has a different vocabulary, or generates nothing.
    """
    rows = arch.vocab_size, draft.vocab_size
    if abs(rows[0] - rows[1]) > PADDING * max(rows):
        raise SpecError(
            f"{draft.name} has a vocabulary of {rows[1]:,} tokens and {arch.name} one of {rows[0]:,}; name a draft "
            "model with the same vocabulary",
            field="draft",
        )
    if not draft.causal:
        raise SpecError(f"{draft.name} does not generate text, so it cannot be the draft model", field="draft")


def replica(
    request: Request,
    *,
    policy: Policy | None = None,
    longest: int = 32768,
    table: StepTimes | None = None,
    draft: StepTimes | None = None,
) -> Replica:
    """Builds one replica of ``request``'s model in its deployment.

    Args:
        request: States model, device, runtime, formats and plan. Its prompt and answer have typical lengths.
        policy: Scheduling rules. Default: the runtime's.
        longest: Positions of the longest sequence.
        table: The replica's step times, if already known.
        draft: Step times of the draft model, if already known.

    Raises:
        DoesNotFit: Weights and working memory need more memory than the devices have.
        SpecError: The draft model has a different vocabulary.
        Unsupported: A device lacks a rate.
    """
    found = resolved(request)
    arch = found.setting.arch
    chosen = policy or policy_of(found.setting.runtime, generates=arch.causal, stem=not arch.reads_tokens)
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
    """Equal replicas of a model behind one router."""

    replica: Replica
    replicas: int = 1

    @property
    def lanes(self) -> int:
        """Number of lanes in the pool."""
        return self.replicas * self.replica.lanes

    @property
    def devices(self) -> int:
        """Number of devices in the pool."""
        return self.replicas * self.replica.devices


def serve(
    load: Load,
    pool: Pool,
    *,
    lanes: int | None = None,
    slow: tuple[float, float] = (1.0, 1.0),
    most_lanes: int | None = None,
    timeline: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> Served:
    """Replays ``load`` on a pool with round-robin routing.

    Args:
        load: The requests to the whole pool.
        pool: The replicas.
        lanes: Number of lanes that share the load. Default: all lanes of the pool.
        slow: Two factors on every step: on the time of its decode part, and on the time of its prefill part.
        most_lanes: Maximum number of lanes to replay. They represent all lanes; requests to other lanes are left out.
        timeline: Whether to record the first lane's state over time.
        on_progress: Called from time to time with the number of finished requests and the total number.

    Raises:
        DoesNotFit: A request is longer than a replica's cache.
    """
    lanes = lanes or pool.lanes
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
    """Joins the results of several lanes. The replayed requests are in the order of ``load``; others are left out."""
    places = np.concatenate(rows)
    order = np.argsort(places, kind="stable")
    columns = {name: np.concatenate([getattr(each, name) for each in answers])[order] for name in COLUMNS}
    number = np.argsort(order, kind="stable")  # of each request, lane after lane
    ends = np.cumsum([len(each) for each in rows])
    blocked = {name: sum(each.blocked[name] for each in answers) for name in answers[0].blocked}
    return Served(
        load=load.taken(places[order]),
        spans=joined_spans([each.spans for each in answers], np.split(number, ends[:-1])),
        computed_tokens=sum(each.computed_tokens for each in answers),
        steps=sum(each.steps for each in answers),
        busy_s=sum(each.busy_s for each in answers),
        reading_s=sum(each.reading_s for each in answers),
        blocked=blocked,
        timeline=answers[0].timeline,
        **columns,
    )


def link_of(copy: Replica) -> float:
    """Bandwidth for transfers from one replica to another, summed over the replica's devices.

    Each device uses its link to the network; without one, its link to the host, or else its link to other devices.

    Raises:
        SpecError: The data sheet lists no such link.
    """
    device = resolved(copy.request).device
    for target in ("network", "host", "device"):
        found = [link.bandwidth.number for link in device.links if link.to == target]
        if found:
            return max(found) * copy.devices
    raise SpecError(f"{device.name} lists no link; state the bandwidth for transferring caches", field="link")


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
    """Replays prefill and decode on separate machines. A prompt's KV cache is sent over the link before decode begins.

    Each prefill lane sends one cache at a time. The requests are assigned to the decode lanes in turn.

    Args:
        load: The requests.
        reading: The pool for prefill and first tokens.
        writing: The pool for decode.
        link_bytes_per_s: Bandwidth from one replica to another.
        slow: For the prefill pool and for the decode pool: two factors, as in :func:`serve`.
        most_lanes: Number of prefill lanes to replay. The same share of the decode lanes is replayed; if this share is
            less than one lane, more prefill lanes are replayed. None: all lanes.
        timeline: Whether to record the state of the first decode lane over time.
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
    if share < 1:  # share of the replayed prefills that go to replayed decode lanes
        order = order[np.floor((np.arange(len(order)) + 1) * share) > np.floor(np.arange(len(order)) * share)]
    rest = order[load.new_tokens[order] > 1]
    own = replace(load.taken(rest), arrival_s=ready[rest], prefilled=True)
    writer = replace(
        writing, replicas=1, replica=replace(writing.replica, policy=replace(writing.replica.policy, request_s=0.0))
    )
    if not len(rest):
        return first
    second = serve(own, writer, lanes=written, slow=slow[1], timeline=timeline)
    last = first.last_s.copy()
    last[rest] = second.last_s
    preemptions = first.preemptions.copy()
    preemptions[rest] += second.preemptions
    waited_s = np.where(second.done, second.first_s - first.first_s[rest] + writer.replica.policy.answer_s, 0.0)
    whole = replace(
        first,
        load=load,
        last_s=last,
        preemptions=preemptions,
        spans=joined_spans([second.spans.later(waited_s)], [rest]),
        computed_tokens=first.computed_tokens + second.computed_tokens,
        steps=first.steps + second.steps,
        busy_s=first.busy_s + second.busy_s,
        reading_s=first.busy_s,
        blocked={name: first.blocked[name] + second.blocked[name] for name in first.blocked},
        timeline=second.timeline,
    )
    return whole if share == 1 else whole.taken(np.sort(order))


def parts_apart(reading: int, writing: int, most: int | None) -> tuple[int, int, float]:
    """Number of prefill lanes to replay, number of decode lanes to replay, and a share of requests.

    Of the requests in the replayed prefill lanes, this share continues in the replayed decode lanes.
    """
    if most is None or reading + writing <= 2 * most:
        return reading, writing, 1.0
    read = min(reading, max(most, -(-reading // writing)))
    written = max(1, writing * read // reading)
    return read, written, min(1.0, written * reading / (writing * read))


def handed_over(ready_s: Float64Array, moved_s: Float64Array, sender: npt.NDArray[np.int64]) -> Float64Array:
    """Time at which each KV cache arrives, (n,).

    A sender transfers one cache at a time, in the order in which the caches are ready. A request whose ``ready_s`` is
    ``UNSERVED`` has no cache, and its time is infinite.
    """
    found = np.full(len(ready_s), np.inf)
    free: dict[int, float] = {}
    for i in np.argsort(ready_s, kind="stable").tolist():
        if ready_s[i] < 0:
            continue
        lane = int(sender[i])
        free[lane] = found[i] = max(float(ready_s[i]), free.get(lane, 0.0)) + float(moved_s[i])
    return found
