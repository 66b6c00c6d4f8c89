"""Several models one after another, such as an encoder that finds texts and a model that answers: one design for all.

Each model is planned within its own limits. Then the chain is replayed whole, and where its limits do not hold the
model whose next replica shortens the broken time most for a dollar gets one more, until they do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from chipwise.core import units
from chipwise.core.files import read_yaml
from chipwise.core.results import Result
from chipwise.core.statistics import Z90
from chipwise.design.fleet.answer import FleetPlan, planned
from chipwise.design.fleet.evaluating import Candidate, Evaluator, deviations
from chipwise.design.fleet.holding import exceeded
from chipwise.design.fleet.left_out import broken_limits
from chipwise.design.fleet.question import FORMER, FleetQuestion, limits_of, mapping, question_from
from chipwise.errors import Infeasible, SpecError
from chipwise.predict.cost.model import Predicted
from chipwise.predict.load.fleet import Pool, serve_stages
from chipwise.predict.load.load import generate_load
from chipwise.predict.load.outcome import metrics_of, steady

MOST_ADDED = 64  # replicas, beyond those that each model's own limits ask for
SIZES = ("prompt", "new", "spread", "shared", "prefixes")
PER_MODEL = ("model", "classes", "prompt", "new", "spread", "shared", "prefixes", "limits", "devices", "runtimes",
             "weights", *FORMER, "tp", "pp", "ep", "dp", "speculation", "kv")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Chain(Result):
    """Plans chains of models, with end-to-end times in seconds."""

    plans: tuple[FleetPlan, ...]
    replicas: tuple[int, ...]
    times: Mapping[str, Predicted]
    usd_per_h: float | None

    def headline(self) -> str:
        """The fleets and the whole chain's P99."""
        fleets = [
            f"{plan.question.model} on {count * plan.best.arrangement.devices} x {plan.best.device}"
            for plan, count in zip(self.plans, self.replicas, strict=True)
        ]
        whole = self.times["e2e_p99"]
        price = "price unknown" if self.usd_per_h is None else f"${self.usd_per_h:,.2f}/h"
        shown = units.span(whole.value, whole.low, whole.high, "time")
        return f"{', then '.join(fleets)}: P99 end to end {shown}, {price}"

    def rows(self) -> list[Mapping[str, object]]:
        """One row a model."""
        return [
            {"model": plan.question.model, "replicas": count, **plan.best.rows()[0]}
            for plan, count in zip(self.plans, self.replicas, strict=True)
        ]


def read_chain(path: Path) -> tuple[list[FleetQuestion], dict[str, float]] | None:
    """The questions of a file with ``models``, and the limits of the whole chain; None of a file without.

    Raises:
        SpecError: A field is unknown, missing or wrong.
    """
    data = read_yaml(path)
    models = data.pop("models", None)
    if models is None:
        return None
    if not isinstance(models, list) or not models or not all(isinstance(each, Mapping) for each in models):
        raise SpecError("must be a list of models with their tokens", file=str(path), field="models")
    for name, why in (("model", "stands in models"), ("trace", "is of one model; give a rate")):
        if name in data:
            raise SpecError(why, file=str(path), field=name)
    if data.get("fleets", "together") not in ("together", ["together"]):
        raise SpecError("models that follow one another each have a fleet of one pool", file=str(path), field="fleets")
    try:
        limits = limits_of(mapping(data.pop("limits", {}), "limits"))
    except SpecError as error:
        raise error.inside(file=str(path)) from None
    questions = []
    for i, each in enumerate(models):
        given: dict[str, Any] = {**data, **each}
        unknown = [name for name in each if name not in PER_MODEL]
        if unknown:
            raise SpecError(f"unknown field {unknown[0]!r} of a model", file=str(path), field=f"models[{i}]")
        if "classes" not in given:
            sizes = {
                name: given.pop(name) for name in ("prompt", "new", "spread", "shared", "prefixes") if name in given
            }
            given["classes"] = [{"name": "requests", **sizes}]
        questions.append(question_from(given, file=str(path)))
    return questions, limits


def planned_chain(
    questions: Sequence[FleetQuestion],
    limits: Mapping[str, float],
    *,
    on_progress: Callable[[int, int], None] | None = None,
) -> Chain:
    """The plan for models that follow one another.

    Args:
        questions: One a model, at one rate.
        limits: On the whole chain, by metric.
        on_progress: Called with arrangements looked at and their number, of each model in turn.

    Raises:
        Infeasible: A model's limits, or the chain's, cannot be met; names them.
    """
    plans = [planned(question, on_progress=on_progress) for question in questions]
    evaluators = [Evaluator(question) for question in questions]
    candidates = [_candidate(evaluator, plan) for evaluator, plan in zip(evaluators, plans, strict=True)]
    replicas = [plan.best.replicas for plan in plans]
    z = deviations(max(question.confidence for question in questions))
    metrics = _metrics(evaluators, candidates, replicas, z)
    for _ in range(MOST_ADDED):
        worst = exceeded(metrics, limits)
        if worst <= 1.0:
            break
        tried = []
        for i, candidate in enumerate(candidates):
            more = [count + (i == j) for j, count in enumerate(replicas)]
            found = _metrics(evaluators, candidates, more, z)
            gained = worst - exceeded(found, limits)
            tried.append((gained / (candidate.usd_per_s or math.inf), i, found))
        gain, chosen, metrics = max(tried, key=lambda each: each[0])
        replicas[chosen] += 1
        if gain <= 1e-9:
            break
    if exceeded(metrics, limits) > 1.0:
        predicted = _metrics(evaluators, candidates, replicas, 0.0)
        broken = broken_limits(limits, metrics, predicted, max(question.confidence for question in questions))
        raise Infeasible(f"the chain does not meet {' and '.join(broken)}, however many replicas its models have")
    middle, low, high = (_metrics(evaluators, candidates, replicas, at) for at in (0.0, -Z90, Z90))
    prices = [candidate.usd_per_s_of(count) for candidate, count in zip(candidates, replicas, strict=True)]
    known = [each for each in prices if each is not None]
    return Chain(
        plans=tuple(plans),
        replicas=tuple(replicas),
        times={
            name: Predicted(value=value, low=min(low[name], value), high=max(high[name], value))
            for name, value in middle.items()
        },
        usd_per_h=3600 * sum(known) if len(known) == len(prices) else None,
    )


def _candidate(evaluator: Evaluator, plan: FleetPlan) -> Candidate:
    return evaluator.candidates([plan.best.arrangement])[0][0]


def _metrics(
    evaluators: Sequence[Evaluator], candidates: Sequence[Candidate], replicas: Sequence[int], z: float
) -> dict[str, float]:
    """Seconds by metric of the whole chain, the errors of all models going together."""
    first = evaluators[0].question
    count = first.requests * 2
    loads = [
        generate_load(
            evaluator.question.classes, count=count, rate_per_s=first.rate_per_s, arrivals=first.arrivals,
            burstiness=first.burstiness, seed=first.seed,
        )
        for evaluator in evaluators
    ]  # fmt: skip
    pools = [Pool(replica=each.copy, replicas=n) for each, n in zip(candidates, replicas, strict=True)]
    served = serve_stages(loads, pools, slow=[each.slow(z) for each in candidates])
    found = metrics_of(steady(served))
    return {name: value for name, value in found.items() if np.isfinite(value)}
