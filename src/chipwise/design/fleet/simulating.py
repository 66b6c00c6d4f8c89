"""Simulates one arrangement under load: times with intervals, bottleneck, price, energy, state over time."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from chipwise.core import units
from chipwise.core.results import Result
from chipwise.core.statistics import Z90
from chipwise.design.fleet.arrangements import Arrangement
from chipwise.design.fleet.evaluating import joules_per_token, scaled, slow_by, usd_per_million
from chipwise.design.fleet.serving_commands import commands_of, dynamo_yaml
from chipwise.hardware import instances
from chipwise.predict.cost.model import Predicted
from chipwise.predict.load.disturbances import UNDISTURBED, Disturbances
from chipwise.predict.load.engine import Served
from chipwise.predict.load.fleet import Pool, link_of, replica, serve, serve_apart
from chipwise.predict.load.load import Load
from chipwise.predict.load.outcome import MEASURES, STATISTICS, metrics_of, outcome, over_time, steady
from chipwise.predict.load.policy import Policy
from chipwise.predict.load.saturation import saturation
from chipwise.predict.served.request import Request, resolved, taken_for


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGroup:
    """A pool of equal replicas: arrangement and scheduling rules."""

    request: Request
    replicas: int = 1
    policy: Policy | None = None
    step_scale: float = 1.0  # factor on all step times, learnt from a load test


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Simulation(Result):
    """Result of a simulation. Times are predicted, in seconds, with 90 % intervals.

    Keys of ``times`` are metrics (``ttft_p99``, ``tpot_p50``, ``e2e_mean``, ``queue_p90``, …). ``state`` is the state
    of the first replica over time: running sequences, waiting sequences, and the share of the KV cache in use.
    """

    label: str
    times: Mapping[str, Predicted]
    requests: int
    failed: int
    requests_per_s: float
    output_tokens_per_s: float
    offered_per_s: float | None
    mean_in_flight: float
    busy_share: float
    preemptions: int
    saturation_per_s: float | None
    bottleneck: str
    cache_tokens: float
    usd_per_h: float | None
    usd_per_million_input_tokens: float | None
    usd_per_million_output_tokens: float | None
    joules_per_output_token: float | None
    provenance: str
    notes: tuple[str, ...] = ()
    state: Mapping[str, Sequence[float]] = field(default_factory=dict)
    deployment: str = ""  # for separate prefill and decode: YAML for NVIDIA Dynamo
    model: str = ""
    load: str = ""  # description of the load
    commands: tuple[str, ...] = ()

    def headline(self) -> str:
        """Summarises the main latencies, and the request rate at which the fleet is saturated."""
        parts = []
        names = {"ttft": "P99 TTFT", "tpot": "P99 TPOT", "itl": "P99 gap between tokens", "e2e": "P99 end to end"}
        for name, label in names.items():
            if f"{name}_p99" in self.times:
                each = self.times[f"{name}_p99"]
                parts.append(f"{label} {units.span(each.value, each.low, each.high, 'time')}")
        full = ""
        if self.saturation_per_s is not None:
            full = f"; saturates at {units.number(self.saturation_per_s)} requests/s ({self.bottleneck})"
        return f"{self.label}: {', '.join(parts)}{full}"

    def rows(self) -> list[Mapping[str, object]]:
        """One row per quantity (TTFT, TPOT, …), with its mean and percentiles in seconds."""
        return [
            {"measure": measure, **{name: self.times[f"{measure}_{name}"].value for name in STATISTICS}}
            for measure in MEASURES
            if f"{measure}_p50" in self.times
        ]


def simulated(
    loads: Sequence[Load],
    part: ReplicaGroup,
    *,
    apart: ReplicaGroup | None = None,
    link_bytes_per_s: float | None = None,
    closed: bool = False,
    asked_per_s: float | None = None,
    about_load: str = "",
    by: Disturbances = UNDISTURBED,
    on_progress: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Simulates a load with several random seeds on one pool, or on separate pools for prefill and decode.

    Args:
        loads: One load per seed; results are means over the seeds.
        part: The pool, or the prefill pool.
        apart: The decode pool, if it is separate.
        link_bytes_per_s: Bandwidth between the two pools. Default: that of the prefill device's links.
        closed: Whether metrics count all requests, instead of only those in the steady part of the load.
        asked_per_s: Rate for which the loads were generated, in requests per second. Default: the rate of the first
            load.
        about_load: The load in words.
        by: Disturbances: slow steps caused by neighbours on the machine, and network delays.
        on_progress: Called with the number of finished requests and of all requests.

    Raises:
        DoesNotFit: The weights need more memory than the devices have, or a request needs more KV cache than is left.
        Unsupported: A device's data sheet lacks a necessary rate.
    """
    longest = max(load.longest for load in loads)
    pools = [_pool(part, longest) for part in ([part, apart] if apart else [part])]
    total = (6 if by.slow_share else 3) * sum(map(len, loads))
    ended = 0

    def at(load: Load, z: float, timeline: bool, factor: float) -> Served:
        nonlocal ended

        def advance(done: int, _: int) -> None:
            if on_progress is not None:
                on_progress(ended + done, total)

        slow = [scaled(slow_by(pool.replica.table, z), factor) for pool in pools]
        if apart is not None:
            bandwidth = link_bytes_per_s or link_of(pools[0].replica)
            served = serve_apart(load, *pools, link_bytes_per_s=bandwidth, slow=slow, timeline=timeline)
        else:
            served = serve(load, pools[0], slow=slow[0], timeline=timeline, on_progress=advance)
        ended += len(load)
        if on_progress is not None:
            on_progress(ended, total)
        return served

    found: dict[float, list[dict[str, float]]] = {}
    middle: Served | None = None
    for z in (0.0, -Z90, Z90):
        for load in loads:
            parts = by.replays(functools.partial(at, load, z, middle is None))
            middle = middle or parts[0]
            found.setdefault(z, []).append(metrics_of(*(p if closed else steady(p) for p in parts), by=by))
    assert middle is not None
    return _simulation(loads, pools, apart, middle, found, about_load, asked_per_s, by)


def _pool(part: ReplicaGroup, longest: int) -> Pool:
    copy = replica(part.request, policy=part.policy, longest=longest)
    if part.step_scale != 1.0:
        copy = replace(copy, table=copy.table.scaled(part.step_scale))
    return Pool(replica=copy, replicas=part.replicas)


def _simulation(
    loads: Sequence[Load],
    pools: Sequence[Pool],
    apart: ReplicaGroup | None,
    middle: Served,
    found: Mapping[float, Sequence[Mapping[str, float]]],
    about_load: str,
    asked_per_s: float | None,
    by: Disturbances,
) -> Simulation:
    def mean(z: float, name: str) -> float:
        return float(np.mean([each[name] for each in found[z] if name in each]))

    times = {
        name: Predicted(value=mean(0.0, name), low=min(mean(-Z90, name), mean(0.0, name)),
                        high=max(mean(Z90, name), mean(0.0, name)))
        for name in found[0.0][0]
    }  # fmt: skip
    lanes = sum(pool.lanes for pool in pools)
    figures = outcome(middle, lanes=lanes)
    load = loads[0]
    prices = [_price(pool) for pool in pools]
    price = None if any(each is None for each in prices) else sum(each for each in prices if each is not None)
    padded = any(pool.replica.policy.padded for pool in pools)  # the amount of padding is random
    drafts = pools[0].replica.policy.speculation
    free = []
    if drafts is not None and drafts.draft is None:
        free = ["drafts are n-grams copied from the text, which cost no time; to simulate a draft model, set draft"]
    full, lacking = (None, "padding") if padded else _saturations(pools, load, apart, by)
    offered: float | None = load.rate_per_s if asked_per_s is None else asked_per_s
    if load.clients is not None or not math.isfinite(offered or 0.0):
        offered = None
    lasting = figures.requests_per_s  # rate of an endless load; a replay's last requests end after its last arrival
    if offered is not None and not figures.failed and full is not None and offered <= full:
        lasting = offered
    inputs, outputs = usd_per_million(price, load, requests_per_s=lasting, reading_share=figures.reading_share)
    asked = [pool.replica.request for pool in pools]
    notes = list(dict.fromkeys(said for each in asked for said in taken_for(each.model, each.device)))
    notes += [] if (pause := load.silence()) is None else [pause]
    if by.slow_share:
        notes.append("requests in flight, preemptions and energy are computed without slow steps")
    if full is not None and offered is not None and offered > full:
        notes.append(
            f"{units.number(offered)} requests/s exceed the {units.number(full)} that the fleet can serve: the "
            f"queue keeps growing, and times depend on the number of replayed requests"
        )
    return Simulation(
        label=" + ".join(_label(pool) for pool in pools),
        times=times,
        requests=figures.requests,
        failed=figures.failed,
        requests_per_s=figures.requests_per_s,
        output_tokens_per_s=figures.output_tokens_per_s,
        offered_per_s=offered,
        mean_in_flight=figures.mean_in_flight,
        busy_share=figures.busy_share,
        preemptions=figures.preemptions,
        saturation_per_s=full,
        bottleneck=lacking,
        cache_tokens=pools[0].replica.cache_tokens if math.isfinite(pools[0].replica.cache_tokens) else 0.0,
        usd_per_h=None if price is None else 3600 * price,
        usd_per_million_input_tokens=inputs,
        usd_per_million_output_tokens=outputs,
        joules_per_output_token=_joules(pools, figures.mean_in_flight, load) if apart is None else None,
        provenance="; ".join(dict.fromkeys(pool.replica.table.provenance for pool in pools)),
        notes=(*free, *notes),
        model=_name(pools),
        load=", ".join(text for text in (about_load, by.describe()) if text),
        commands=() if apart is not None else _commands(pools, max(load.longest for load in loads)),
        deployment="" if apart is None else dynamo_yaml(_name(pools), *((_arrangement(p), p.replicas) for p in pools)),
        state={name: values.tolist() for name, values in over_time(middle).items()} if middle.timeline else {},
    )


def _arrangement(pool: Pool) -> Arrangement:
    request, found = pool.replica.request, resolved(pool.replica.request)
    return Arrangement(
        deployment=replace(
            request.deployment,
            device=found.device.name,
            runtime=found.setting.runtime.name,
            weights=found.setting.formats.weights,
        ),
        speculation=pool.replica.policy.speculation,
    )


def _name(pools: Sequence[Pool]) -> str:
    """The model's name, as the user wrote it."""
    model = pools[0].replica.request.model
    return str(getattr(model, "name", model))


def _commands(pools: Sequence[Pool], longest: int) -> tuple[str, ...]:
    """The commands that start the pools."""
    model, context = _name(pools), resolved(pools[0].replica.request).setting.arch.context
    return tuple(
        line
        for pool in pools
        for line in commands_of(model, _arrangement(pool), pool.replicas, pool.replica.policy, longest, context=context)
    )


def _saturations(
    pools: Sequence[Pool], load: Load, apart: ReplicaGroup | None, by: Disturbances
) -> tuple[float | None, str]:
    prompt, new = float(load.prompt_tokens.mean()), float(load.new_tokens.mean())
    cached = float(np.where(load.prefix >= 0, load.prefix_tokens, 0).mean())
    found = []
    for i, pool in enumerate(pools):
        reads = apart is not None and i == 0
        full = saturation(
            pool.replica,
            prompt=prompt,
            new=0.0 if reads else new,
            cached=cached if pool.replica.policy.prefix_cache else 0.0,
            prefilled=apart is not None and i == 1,
        )
        found.append((pool.replicas * by.speed * full.requests_per_s, full.bottleneck))
    if apart is None:
        return found[0]
    return min(found)[0], f"{'prefill' if found[0] <= found[1] else 'decode'}: {min(found)[1]}"


def _price(pool: Pool) -> float | None:
    device = resolved(pool.replica.request).device
    return None if device.price is None else device.price_usd_per_s * instances.paid(device.label, pool.devices)


def _label(pool: Pool) -> str:
    arrangement = _arrangement(pool)
    where = instances.counted(resolved(pool.replica.request).device.label, pool.devices)
    return f"{where}, {arrangement.spread}, {arrangement.weights}, {arrangement.runtime}"


def _joules(pools: Sequence[Pool], in_flight: float, load: Load) -> float | None:
    """Joules per output token at the mean number of requests in flight; None if power is unknown."""
    read, written = round(float(load.prompt_tokens.mean())), round(float(load.new_tokens.mean()))
    if load.new_tokens.mean() < 1:
        return None
    return joules_per_token(
        [
            replace(
                pool.replica.request,
                batch=max(round(in_flight * pool.replica.lanes), 1),
                prompt_tokens=max(read, 1),
                new_tokens=written,
            )
            for pool in pools
        ]
    )
