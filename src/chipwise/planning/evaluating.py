"""Evaluates arrangements: a replica's step times once, then replays of one lane at each number of replicas.

Replays are kept by what was asked, so that a question asked twice (without one of its limits, at another quantile of
the step times) costs nothing, and so that a plan that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from chipwise.core.errors import ChipwiseError, Unsupported
from chipwise.core.statistics import Z90
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.planning.question import Question
from chipwise.replay.engine import Served
from chipwise.replay.fleet import Pool, Replica, replica, serve
from chipwise.replay.load import Load, made
from chipwise.replay.outcome import metrics_of, outcome, steady
from chipwise.replay.policy import Policy, policy_of
from chipwise.replay.saturation import saturation
from chipwise.replay.step_times import step_times
from chipwise.replay.traces import read_trace
from chipwise.serve.request import Request, resolved
from chipwise.spec.hf import resolve

UNCHECKED_PROMPT = 0.35
"""Least half-width of reading prompts, in logarithms, where no own one was validated: nine of ten TTFT means of runs
under load lie within 0.21 on H100 (``chipwise validate load``), and devices not checked are less sure."""
NODES = (-Z90, -0.8, 0.0, 0.8, Z90)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """One way to run one replica; everything that :class:`Request` needs except its sizes."""

    device: str
    runtime: str
    weights: str
    tp: int = 1
    pp: int = 1

    @property
    def devices(self) -> int:
        """Devices of one replica."""
        return self.tp * self.pp

    def request(self, question: Question) -> Request:
        """A typical request of ``question`` to this arrangement, a dozen of them in flight."""
        shares = np.array([each.share for each in question.classes])
        prompt, new = (
            round(float(np.average([getattr(each, name) for each in question.classes], weights=shares)))
            for name in ("prompt_tokens", "new_tokens")
        )
        return Request(
            model=question.model, device=self.device, runtime=self.runtime, weights=self.weights, kv=question.kv,
            tp=self.tp, pp=self.pp, batch=12 * self.pp, prompt_tokens=max(prompt, 1), new_tokens=max(new, 1),
        )  # fmt: skip

    @property
    def key(self) -> str:
        """Its name in files."""
        return f"{self.device}/{self.runtime}/{self.weights}/tp{self.tp}/pp{self.pp}"


@dataclass(slots=True, kw_only=True)
class Candidate:
    """An arrangement that fits, with what is known of it before any limit is looked at."""

    arrangement: Arrangement
    device: DeviceProfile
    copy: Replica
    capacity_per_s: float  # requests per second of one replica that never lacks any
    reading_share: float  # of a step's time, at that capacity
    bottleneck: str
    usd_per_s: float | None  # of one replica

    @property
    def widths(self) -> tuple[float, float]:
        """Half-widths of 90 % of decoding and of reading, in logarithms."""
        table = self.copy.table
        first = table.prompt_halfwidth
        return table.decode_halfwidth, max(table.decode_halfwidth, UNCHECKED_PROMPT) if first is None else first

    def slow(self, z: float) -> tuple[float, float]:
        """Factors of both parts of a step ``z`` deviations from what is predicted; their errors go together."""
        return tuple(math.exp(z * width / Z90) for width in self.widths)  # type: ignore[return-value]


class Evaluator:
    """Answers what a question's load meets at arrangements.

    Args:
        question: What is asked.
        known: Metrics of replays made before, by key.
    """

    def __init__(self, question: Question, known: Mapping[str, Mapping[str, float]] | None = None) -> None:
        if not resolve(question.model).causal:  # reads, and writes nothing
            classes = tuple(replace(each, new_tokens=0) for each in question.classes)
            question = replace(question, classes=classes)
        self.question = question
        self.known: dict[str, dict[str, float]] = {key: dict(value) for key, value in (known or {}).items()}
        self.replays = 0
        self._loads: dict[int, Load] = {}
        self._trace: Load | None = None
        if question.trace is not None:
            self._trace, _ = read_trace(question.trace)
            self.rate_per_s = self._trace.rate_per_s
        else:
            self.rate_per_s = question.rate_per_s
        self.longest = int(self.load(1).longest)

    def load(self, lanes: int) -> Load:
        """The requests of a pool of ``lanes`` engines, as many for each lane as the question says."""
        if self._trace is not None:
            return self._trace
        found = self._loads.get(lanes)
        if found is None:
            question = self.question
            found = self._loads[lanes] = made(
                question.classes,
                count=min(question.requests * lanes, 200_000),
                rate_per_s=question.rate_per_s,
                arrivals=question.arrivals,
                burstiness=question.burstiness,
                seed=question.seed,
            )
        return found

    def candidates(self, arrangements: Sequence[Arrangement]) -> tuple[list[Candidate], dict[str, str]]:
        """The arrangements that fit, and why the others do not, by key. Step times of all are priced together."""
        requests, kept, problems = [], [], {}
        for each in arrangements:
            request = each.request(self.question)
            try:
                resolved(request)
            except ChipwiseError as error:
                problems[each.key] = str(error)
                continue
            requests.append(request)
            kept.append(each)
        fitting, problems_of_memory = self._fitting(kept, requests)
        problems |= problems_of_memory
        found = []
        by_policy: dict[tuple[int, int], list[int]] = {}
        for i in fitting:
            policy = _policy(requests[i])
            by_policy.setdefault((policy.most_tokens, policy.most_sequences), []).append(i)
        for (tokens, sequences), members in by_policy.items():
            tables = step_times(
                [requests[i] for i in members], most_tokens=tokens, most_sequences=sequences, longest=self.longest
            )
            for i, table in zip(members, tables, strict=True):
                if isinstance(table, Unsupported):
                    problems[kept[i].key] = str(table)
                    continue
                try:
                    copy = replica(requests[i], table=table)
                    found.append(self._candidate(kept[i], copy))
                except ChipwiseError as error:
                    problems[kept[i].key] = str(error)
        return found, problems

    def _fitting(
        self, arrangements: Sequence[Arrangement], requests: Sequence[Request]
    ) -> tuple[list[int], dict[str, str]]:
        from chipwise.replay.cache import cache_of

        fitting, problems = [], {}
        for i, request in enumerate(requests):
            policy = _policy(request)
            try:
                cache = cache_of(
                    request, most_tokens=policy.most_tokens, length=request.prompt_tokens + request.new_tokens
                )
            except ChipwiseError as error:
                problems[arrangements[i].key] = str(error)
                continue
            if cache.tokens / request.pp < self.longest:
                problems[arrangements[i].key] = (
                    f"the cache holds {cache.tokens:,.0f} positions and the longest request has {self.longest:,}"
                )
                continue
            fitting.append(i)
        return fitting, problems

    def _candidate(self, arrangement: Arrangement, copy: Replica) -> Candidate:
        load = self.load(1)
        cached = np.where(load.prefix >= 0, load.prefix_tokens, 0).mean() if copy.policy.prefix_cache else 0.0
        full = saturation(
            copy, prompt=float(load.prompt_tokens.mean()), new=float(load.new_tokens.mean()), cached=float(cached)
        )
        device = resolved(copy.request).device
        price = self.question.prices.get(arrangement.device)
        if price is None and device.price is not None:
            price = device.price_usd_per_s
        return Candidate(
            arrangement=arrangement,
            device=device,
            copy=copy,
            capacity_per_s=full.requests_per_s,
            reading_share=full.reading_share,
            bottleneck=full.bottleneck,
            usd_per_s=None if price is None else price * arrangement.devices,
        )

    def served(self, candidate: Candidate, replicas: int, z: float, *, timeline: bool = False) -> Served:
        """The replay of one lane of ``replicas`` replicas, its step times ``z`` deviations from what is predicted."""
        pool = Pool(replica=candidate.copy, replicas=replicas)
        self.replays += 1
        return serve(self.load(pool.lanes), pool, slow=candidate.slow(z), most_lanes=1, timeline=timeline)

    def metrics(self, candidate: Candidate, replicas: int, z: float) -> dict[str, float]:
        """Seconds by metric, and those of each class as ``class:metric``; of the load's steady part."""
        key = f"{candidate.arrangement.key}/x{replicas}/z{z:.4f}"
        found = self.known.get(key)
        if found is None:
            served = self.served(candidate, replicas, z)
            part = served if self._trace is not None else steady(served)
            found = metrics_of(part)
            for number, each in enumerate(self.question.classes):
                if each.name in self.question.class_limits and len(self.question.classes) > 1:
                    rows = np.flatnonzero(part.load.kind == number)
                    if len(rows):
                        found |= {f"{each.name}:{name}": value for name, value in metrics_of(_rows(part, rows)).items()}
                elif each.name in self.question.class_limits:
                    found |= {f"{each.name}:{name}": value for name, value in metrics_of(part).items()}
            figures = outcome(served)
            found |= {
                "in_flight": figures.mean_in_flight,
                "busy": figures.busy_share,
                "reading": figures.reading_share,
                "preemptions": float(figures.preemptions),
            }
            self.known[key] = found
        return found

    def capacity_per_s(self, candidate: Candidate, z: float) -> float:
        """Requests per second of one replica that never lacks any, its step times ``z`` deviations off."""
        slow, reading = candidate.slow(z), candidate.reading_share
        return candidate.capacity_per_s / (slow[0] * (1 - reading) + slow[1] * reading)

    def overloaded(self, candidate: Candidate, replicas: int, z: float) -> bool:
        """Whether more arrives than so many replicas can serve, for whatever time they have."""
        return self.rate_per_s > replicas * self.capacity_per_s(candidate, z) * (1 + 1e-9)


def _policy(request: Request) -> Policy:
    setting = resolved(request).setting
    return policy_of(setting.runtime, generates=setting.arch.causal)


def _rows(served: Served, rows: np.ndarray) -> Served:
    return replace(
        served,
        load=served.load.taken(rows),
        arrival_s=served.arrival_s[rows],
        scheduled_s=served.scheduled_s[rows],
        first_s=served.first_s[rows],
        last_s=served.last_s[rows],
        preemptions=served.preemptions[rows],
    )


def deviations(confidence: float) -> float:
    """Standard deviations above the prediction that are not exceeded with probability ``confidence``."""
    return NormalDist().inv_cdf(confidence)
