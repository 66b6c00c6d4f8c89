"""Advice: every rule proposes, all proposals are priced in one call, and only what is surely a gain is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from chipwise.core.errors import ChipwiseError
from chipwise.cost.model import CostEstimate, OpCost, Predicted
from chipwise.explain.advice import Advice, Gain, Proposal, Rule
from chipwise.explain.question import Case
from chipwise.explain.rules import RULES

OPERATOR_SPREAD = 0.08
"""Error of one operator's time that its neighbours do not share: the standard deviation, in logarithms, of what is left
of a kernel model's error for products on a device that it has seen. Errors that operators share cancel in a ratio."""
Z90 = 1.645
RATES = frozenset({"tokens_per_s"})  # more is better


def rules() -> dict[str, Rule]:
    """All rules by name."""
    return {name: RULES.load(name) for name in RULES.names()}


def advise(case: Case, *, every: bool = False, chosen: Mapping[str, Rule] | None = None) -> list[Advice]:
    """What to change, the largest gain first.

    Args:
        case: The model, its workload, its chip, and what it takes now.
        every: Keep also what is no sure gain.
        chosen: The rules; all unless given.
    """
    proposals = [(name, proposal) for name, rule in (chosen or rules()).items() for proposal in rule(case)]
    answers = case.pricer.price([proposal.changed for _, proposal in proposals])
    found = [
        advice
        for (name, proposal), answer in zip(proposals, answers, strict=True)
        if not isinstance(answer, ChipwiseError)
        and (advice := _advice(name, proposal, case.estimate, answer)) is not None
    ]
    kept = [advice for advice in found if every or advice.sure]
    return sorted(kept, key=lambda advice: -advice.headline.ratio.value)


def _advice(name: str, proposal: Proposal, before: CostEstimate, after: CostEstimate) -> Advice | None:
    gains = gains_of(before, after)
    if not gains:
        return None
    headline = next((gain for gain in gains if gain.metric == proposal.headline), None)
    if headline is None:
        return None
    sure = headline.ratio.low > 1
    return Advice(rule=name, proposal=proposal, headline=headline, gains=tuple(gains), sure=sure)


def gains_of(before: CostEstimate, after: CostEstimate) -> list[Gain]:
    """Each metric that both know, before and after, with the interval of the ratio."""
    spread = {
        "ttft": changed_spread(before.prefill, after.prefill),
        "tpot": changed_spread(before.decode, after.decode),
    }
    spread["peak_memory"] = 0.0  # counted, not predicted
    old, new = _values(before), _values(after)
    gains = []
    for metric in old:
        if metric not in new or old[metric] <= 0 or new[metric] <= 0:
            continue
        ratio = new[metric] / old[metric] if metric in RATES else old[metric] / new[metric]
        factor = float(np.exp(Z90 * spread.get(metric, spread["tpot"])))
        interval = Predicted(value=ratio, low=ratio / factor, high=ratio * factor)
        gains.append(Gain(metric=metric, before=old[metric], after=new[metric], ratio=interval))
    return gains


def _values(cost: CostEstimate) -> dict[str, float]:
    found = {name.removesuffix("_p50"): value.value for name, value in cost.metrics.items() if not name.endswith("p99")}
    return {"ttft": cost.ttft_s, "tpot": cost.tpot_s} | found | {"peak_memory": cost.peak_memory_bytes}


def changed_spread(before: Sequence[OpCost], after: Sequence[OpCost]) -> float:
    """Standard deviation of the ratio of two passes in logarithms, from the operators in which they differ.

    Operators that both have alike are wrong alike. Those that one has and the other has not are wrong independently.
    """
    old, new = _by_what(before), _by_what(after)
    total = max(sum(old.values()), sum(new.values()))
    changed = [old.get(key, 0.0) for key in old if old.get(key) != new.get(key)]
    changed += [new.get(key, 0.0) for key in new if old.get(key) != new.get(key)]
    return OPERATOR_SPREAD * float(np.sqrt(np.sum(np.square(changed)))) / total if total else 0.0


def _by_what(costs: Sequence[OpCost]) -> dict[tuple[str, str, int, int], float]:
    """Seconds by what is computed: kind, FLOPs and bytes of one call, and how many calls."""
    found: dict[tuple[str, str, int, int], float] = {}
    for cost in costs:
        key = (cost.place, cost.kind, round(cost.work.flops), round(cost.work.bytes))
        found[key] = found.get(key, 0.0) + cost.latency_s
    return found
