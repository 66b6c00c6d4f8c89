"""Evaluates arrangements: predicts a replica's step times once, then replays the load for each number of replicas.

Only one lane is replayed: one engine with its share of the requests. Metrics of replays are stored, so an interrupted
plan continues where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from chipwise.core.statistics import Z90
from chipwise.design.fleet.arrangements import Arrangement, check_positions
from chipwise.design.fleet.question import FleetQuestion
from chipwise.errors import ChipwiseError, DoesNotFit, SpecError, Unsupported, counted
from chipwise.hardware import instances
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.published.read import resolve
from chipwise.predict.load.cache import cache_of
from chipwise.predict.load.engine import Served
from chipwise.predict.load.fleet import (  # fmt: skip
    Pool,
    Replica,
    check_draft,
    draft_of,
    link_of,
    parts_apart,
    replica,
    serve,
    serve_apart,
)
from chipwise.predict.load.load import Load, RequestClass, generate_load
from chipwise.predict.load.outcome import metrics_of, outcome, steady
from chipwise.predict.load.policy import Policy, policy_of
from chipwise.predict.load.saturation import Saturation, saturation
from chipwise.predict.load.step_times import StepTimes, step_times
from chipwise.predict.load.traces import read_trace
from chipwise.predict.served.energy import energies
from chipwise.predict.served.estimate import cost_of
from chipwise.predict.served.intervals import UNCHECKED_PROMPT
from chipwise.predict.served.request import Request, resolved

NODES = (-Z90, -0.8, 0.0, 0.8, Z90)
MOST_LANES = 2  # lanes that are replayed in each of two pools, as a sample of all lanes


@dataclass(slots=True, kw_only=True)
class Candidate:
    """An arrangement that fits in memory, with its step times, saturations and price.

    None of these depend on the question's limits.
    """

    arrangement: Arrangement
    device: DeviceProfile
    copy: Replica
    full: Saturation  # load at which one replica is saturated
    reading: Saturation | None  # the same with prefill only; None for models that do not generate
    writing: Saturation | None  # the same with decode only; None for models that do not generate
    usd_per_s: float | None  # price of one replica

    def usd_per_s_of(self, replicas: int) -> float | None:
        """Price of ``replicas`` replicas in dollars per second; a cloud machine is paid for with all of its chips."""
        if self.usd_per_s is None:
            return None
        each = self.arrangement.devices
        return instances.paid(self.arrangement.device, replicas * each) / each * self.usd_per_s

    def slow(self, z: float) -> tuple[float, float]:
        """Factors on the decode part and on the prompt part of the replica's step times; see :func:`slow_by`."""
        return slow_by(self.copy.table, z)

    def per_s(self, saturated: Saturation | None, z: float) -> float:
        """Requests per second at saturation if step times are ``z`` standard deviations above the prediction.

        0 if ``saturated`` is None: models that do not generate have no saturation for prefill or decode alone.
        """
        if saturated is None:
            return 0.0
        step, prompt = self.slow(z)
        return saturated.requests_per_s / (step * (1 - saturated.reading_share) + prompt * saturated.reading_share)


def slow_by(table: StepTimes, z: float) -> tuple[float, float]:
    """Factors by which the decode part and the prompt part of step times exceed the prediction.

    Both parts are assumed to have the same error: ``z`` standard deviations above the prediction.
    """
    prompt = max(table.decode_halfwidth, UNCHECKED_PROMPT) if table.prompt_halfwidth is None else table.prompt_halfwidth
    return math.exp(z * table.decode_halfwidth / Z90), math.exp(z * prompt / Z90)


def scaled(slow: tuple[float, float], factor: float) -> tuple[float, float]:
    """The two factors of :func:`slow_by`, each multiplied by ``factor``."""
    return slow[0] * factor, slow[1] * factor


def usd_per_million(
    usd_per_s: float | None, load: Load, *, requests_per_s: float, reading_share: float
) -> tuple[float | None, float | None]:
    """Dollars per million input tokens and per million output tokens; each is None if it is unknown."""
    if usd_per_s is None or not requests_per_s:
        return None, None
    read, written = float(load.prompt_tokens.mean()), float(load.new_tokens.mean())
    inputs = 1e6 * usd_per_s * reading_share / (requests_per_s * read)
    return inputs, 1e6 * usd_per_s * (1 - reading_share) / (requests_per_s * written) if written else None


def joules_per_token(requests: Sequence[Request]) -> float | None:
    """Joules of all devices per output token, prefill included, as the mean over ``requests``; None if unknown."""
    total = 0.0
    for request in requests:
        try:
            found = energies([cost_of(request)])[0]
        except ChipwiseError:
            return None
        if isinstance(found, ChipwiseError):
            return None
        total += float(found.token_j[0])
    return total / len(requests)


class Evaluator:
    """Evaluates arrangements under a question's load.

    Args:
        question: The question.
        known: Metrics of earlier replays, by key.
    """

    def __init__(self, question: FleetQuestion, known: Mapping[str, Mapping[str, float]] | None = None) -> None:
        arch = resolve(question.model)
        _check(question, arch)
        self.context = arch.context
        self.question = question = replace(question, classes=tuple(each.as_read(arch) for each in question.classes))
        self.known: dict[str, dict[str, float]] = {key: dict(value) for key, value in (known or {}).items()}
        self.replays = 0
        self._loads: dict[int, Load] = {}
        self._trace: Load | None = None
        if question.trace is not None:
            self._trace, _ = read_trace(question.trace, longest=self.context)
            self.rate_per_s = self._trace.rate_per_s
            if not math.isfinite(self.rate_per_s):
                raise SpecError(
                    "all requests arrive at once, so there is no rate to plan for; use chipwise simulate --trace",
                    file=question.trace,
                )
            if arch.reads == "token":
                self.question = replace(question, classes=(_typical(self._trace, generates=arch.causal),))
        else:
            self.rate_per_s = question.rate_per_s
        self.longest = int(self.load(1).longest)

    def load(self, lanes: int) -> Load:
        """The load for a pool of ``lanes`` engines: the question's number of requests per lane, or its whole trace."""
        if self._trace is not None:
            return self._trace
        found = self._loads.get(lanes)
        if found is None:
            question = self.question
            found = generate_load(
                question.classes,
                count=min(question.requests * lanes, 200_000),
                rate_per_s=question.rate_per_s,
                arrivals=question.arrivals,
                burstiness=question.burstiness,
                seed=question.seed,
            )
            self._loads[lanes] = found = found if self.context is None else found.within(self.context)
        return found

    def candidates(self, arrangements: Sequence[Arrangement]) -> tuple[list[Candidate], dict[str, str]]:
        """Returns the arrangements that can run, and a mapping from the keys of the others to why they cannot run."""
        asked: list[tuple[Arrangement, Request, Policy, Request | None]] = []
        problems: dict[str, str] = {}
        for each in arrangements:
            machine = instances.named(each.device)
            if machine is not None and each.devices > machine.chips:
                problems[each.key] = (
                    f"{machine.name} has {counted(machine.chips, 'chip')}; a replica cannot extend over several "
                    f"machines, so lower its parallel degrees"
                )
                continue
            request = each.request(self.question)
            try:
                policy = _policy(request, each)
                draft = draft_of(request, policy)
                self._fits(request, policy, draft)
            except ChipwiseError as error:
                problems[each.key] = str(error)
                continue
            asked.append((each, request, policy, draft))
        tables = self._tables([(request, policy, policy.width) for _, request, policy, _ in asked])
        drafts = {request: policy for _, _, policy, request in asked if request is not None}
        drafting = self._tables([(request, policy, 1) for request, policy in drafts.items()])
        found = []
        for arrangement, request, policy, draft in asked:
            table = tables[request, policy.width]
            own = None if draft is None else drafting[draft, 1]
            if isinstance(table, Unsupported) or isinstance(own, Unsupported):
                problems[arrangement.key] = str(table if isinstance(table, Unsupported) else own)
                continue
            try:
                copy = replica(request, policy=policy, table=table, draft=own)
                found.append(self._candidate(arrangement, copy))
            except ChipwiseError as error:
                problems[arrangement.key] = str(error)
        return found, problems

    def _tables(
        self, asked: Sequence[tuple[Request, Policy, int]]
    ) -> dict[tuple[Request, int], StepTimes | Unsupported]:
        """Maps each request and width to step times; width is the number of tokens per sequence in a decode step."""
        sizes: dict[tuple[int, int, int], dict[Request, None]] = {}
        for request, policy, width in asked:
            tokens = max(policy.most_tokens, policy.most_sequences * width)
            sizes.setdefault((tokens, policy.most_sequences, width), {})[request] = None
        found: dict[tuple[Request, int], StepTimes | Unsupported] = {}
        for (tokens, sequences, width), members in sizes.items():
            requests = list(members)
            tables = step_times(
                requests, most_tokens=tokens, most_sequences=sequences, longest=self.longest, width=width
            )
            found |= {(request, width): table for request, table in zip(requests, tables, strict=True)}
        return found

    def _fits(self, request: Request, policy: Policy, draft: Request | None) -> None:
        """Checks that the weights and the longest request fit in memory.

        Raises:
            DoesNotFit: The devices have too little memory.
        """
        length = request.prompt_tokens + request.new_tokens
        cache = cache_of(request, most_tokens=policy.most_tokens, length=length, draft=draft)
        if cache.tokens / request.deployment.pp < self.longest:
            raise DoesNotFit(
                f"the KV cache has room for {cache.tokens:,.0f} tokens, but the longest request has {self.longest:,}"
            )

    def _candidate(self, arrangement: Arrangement, copy: Replica) -> Candidate:
        load, speed = self.load(1), self.question.disturbances.speed
        cached = np.where(load.prefix >= 0, load.prefix_tokens, 0).mean() if copy.policy.prefix_cache else 0.0
        prompt, new = float(load.prompt_tokens.mean()), float(load.new_tokens.mean())
        apart = "apart" in self.question.fleets and new > 0
        device = resolved(copy.request).device
        price = self.question.prices.get(arrangement.device)
        machine = instances.named(arrangement.device)
        if price is not None and machine is not None:
            price /= machine.chips  # the stated price is that of the whole machine
        if price is None and device.price is not None:
            price = device.price_usd_per_s
        return Candidate(
            arrangement=arrangement,
            device=device,
            copy=copy,
            full=saturation(copy, prompt=prompt, new=new, cached=float(cached)).at_speed(speed),
            reading=saturation(copy, prompt=prompt, new=0.0, cached=float(cached)).at_speed(speed) if apart else None,
            writing=saturation(copy, prompt=prompt, new=new, prefilled=True).at_speed(speed) if apart else None,
            usd_per_s=None if price is None else price * arrangement.devices,
        )

    def served(
        self, candidate: Candidate, replicas: int, z: float, *, factor: float = 1.0, timeline: bool = False
    ) -> Served:
        """Replays one lane of ``replicas`` replicas; step times are ``z`` standard deviations above the prediction.

        ``factor`` multiplies all step times.
        """
        pool = Pool(replica=candidate.copy, replicas=replicas)
        self.replays += 1
        slow = scaled(candidate.slow(z), factor)
        return serve(self.load(pool.lanes), pool, slow=slow, most_lanes=1, timeline=timeline)

    def metrics(self, candidate: Candidate, replicas: int, z: float) -> dict[str, float]:
        """Maps each time, named ``METRIC`` or ``CLASS:METRIC``, to seconds.

        Only the steady part of a generated load counts; a trace counts in full. The result also has the state of the
        engines: ``in_flight``, ``busy``, ``reading`` and ``preemptions``.
        """
        key = f"{candidate.arrangement.key}/x{replicas}/z{z:.4f}"
        return self._metrics(key, lambda factor: self.served(candidate, replicas, z, factor=factor), 1)

    def served_by_two(self, pools: Sequence[tuple[Candidate, int]], z: float, *, factor: float = 1.0) -> Served:
        """Replays some lanes of two pools; step times are ``z`` standard deviations above the prediction."""
        self.replays += 1
        slow = [scaled(candidate.slow(z), factor) for candidate, _ in pools]
        reading, writing = (Pool(replica=candidate.copy, replicas=count) for candidate, count in pools)
        link = self.question.link_bytes_per_s or link_of(reading.replica)
        return serve_apart(
            self.load(max(reading.lanes, writing.lanes)), reading, writing, link_bytes_per_s=link, slow=slow,
            most_lanes=MOST_LANES,
        )  # fmt: skip

    def metrics_of_two(self, pools: Sequence[tuple[Candidate, int]], z: float) -> dict[str, float]:
        """The same as :meth:`metrics`, for a fleet of two pools."""
        key = "apart/" + " + ".join(f"{each.arrangement.key}/x{count}" for each, count in pools) + f"/z{z:.4f}"
        lanes = [candidate.copy.lanes * count for candidate, count in pools]
        replayed = parts_apart(lanes[0], lanes[1], MOST_LANES)[:2]
        return self._metrics(key, lambda factor: self.served_by_two(pools, z, factor=factor), sum(replayed))

    def _metrics(self, key: str, replayed: Callable[[float], Served], lanes: int) -> dict[str, float]:
        """Metrics of a fleet's replays; stored metrics are reused.

        ``replayed`` takes a factor and replays the load with all step times multiplied by it.
        """
        if key in self.known:
            return self.known[key]
        by, parts = self.question.disturbances, self.question.disturbances.replays(replayed)
        served = parts[0]
        if self._trace is None:
            parts = [steady(part) for part in parts]
        found = metrics_of(*parts, by=by)
        for number, each in enumerate(self.question.classes):
            if each.name not in self.question.class_limits:
                continue
            rows = [np.flatnonzero(part.load.kind == number) for part in parts]
            if all(map(len, rows)):
                own = [part.taken(chosen) for part, chosen in zip(parts, rows, strict=True)]
                found |= {f"{each.name}:{name}": value for name, value in metrics_of(*own, by=by).items()}
        figures = outcome(served, lanes=lanes)
        self.known[key] = found | {
            "in_flight": figures.mean_in_flight,
            "busy": figures.busy_share,
            "reading": figures.reading_share,
            "preemptions": float(figures.preemptions),
        }
        return self.known[key]


def _check(question: FleetQuestion, arch: ArchSpec) -> None:
    """Checks that a question fits its model; checks only what is the same for all arrangements.

    Raises:
        SpecError: Requests are longer than the context, a draft has another vocabulary, or a model that does not
            generate has drafts or a separate decode pool.
    """
    generates = arch.causal and arch.reads_tokens
    if not generates and (question.speculation or "apart" in question.fleets):
        what = "speculation" if question.speculation else "fleets"
        raise SpecError(
            f"{arch.name} does not generate text, so speculative decoding and separate decode pools do not apply",
            field=what,
        )
    if question.trace is None:
        for number, each in enumerate(question.classes):
            field = f"classes[{number}]" if len(question.classes) > 1 else "prompt"
            check_positions(arch, each.prompt_tokens, each.new_tokens if generates else 0, field=field)
    for drafts in question.speculation:
        if drafts.draft is not None:
            check_draft(arch, resolve(drafts.draft))


def _policy(request: Request, arrangement: Arrangement) -> Policy:
    setting = resolved(request).setting
    arch = setting.arch
    policy = policy_of(setting.runtime, generates=arch.causal, stem=not arch.reads_tokens)
    if arrangement.speculation is None:
        return policy
    if not setting.arch.causal:
        raise Unsupported(f"{setting.arch.name} does not generate text, so speculative decoding does not apply")
    return replace(policy, speculation=arrangement.speculation)


def _typical(load: Load, *, generates: bool) -> RequestClass:
    """A class of requests that all have the mean sizes of a trace."""
    new = round(float(load.new_tokens.mean())) if generates else 0
    return RequestClass(prompt_tokens=max(round(float(load.prompt_tokens.mean())), 1), new_tokens=new)


def deviations(confidence: float) -> float:
    """The normal distribution's quantile at ``confidence``: standard deviations above the prediction."""
    return NormalDist().inv_cdf(confidence)
