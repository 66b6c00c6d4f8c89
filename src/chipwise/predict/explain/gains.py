"""Collects advice: rules propose changes, one call predicts the costs of all changes, and only sure gains are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from chipwise.core.statistics import Z90
from chipwise.errors import ChipwiseError
from chipwise.hardware import datasheet
from chipwise.predict.cost.model import CostEstimate, Predicted
from chipwise.predict.explain.advice import Advice, Gain, Proposal, Rule
from chipwise.predict.explain.question import Case, PhaseName
from chipwise.predict.explain.rules import RULES
from chipwise.predict.served.steps import class_of

Key = tuple[str, int, int]  # kind, FLOPs and bytes of one call
Shares = dict[Key, float]
ALIKE = 0.002  # relative difference of sizes within which two kernels share their model's error
OPERATOR_SPREAD = 0.08
"""Standard deviation of the logarithmic error of one operator's time, for matrix products on a device in the fit.
Errors of different operators are independent. If an operator is in both passes, its error cancels in the speedup."""
OVERHEAD_SPREAD = 0.3
"""Standard deviation of the logarithmic error of the time outside kernels: host time, launches that captured graphs
hide, and waiting for other requests' prompts."""
FORMAT_SPREAD = 0.15
"""Standard deviation of the logarithmic error that all matrix products in one number format have in common."""
BESIDE = ("beside kernels", 0, 0)
WORTH = 1.01  # least improvement factor shown by default: 1 %
NOTHING = 0.005  # a factor nearer to 1 than this prints as 1
MOST_SHOWN = 5  # pieces of advice shown by default
UNVALIDATED = 0.7  # log half-width of a time without a validated interval: a factor of two
RATES = frozenset({"throughput"})  # metrics of which more is better
SERVING_ALONE = frozenset({"precision", "batching"})  # kinds of change that only affect serving, not a training step


def rules() -> dict[str, Rule]:
    """All rules by name."""
    return {name: RULES.load(name) for name in RULES.names()}


def advise(
    case: Case, *, every: bool = False, other_chips: bool = False, chosen: Mapping[str, Rule] | None = None
) -> list[Advice]:
    """Advice for a case: first what :func:`leading` selects, then all other advice.

    In both groups, urgent changes come first, then changes with certain gains, then changes with uncertain gains.
    Among certain gains and among uncertain gains, the largest comes first.

    Args:
        case: The model, its workload, its chip, and its present cost.
        every: Also keep changes whose gain is uncertain, and changes that make the model slower.
        other_chips: Also suggest other devices.
        chosen: The rules. Default: all.
    """
    proposals = [
        (name, proposal)
        for name, rule in (rules() if chosen is None else chosen).items()
        for proposal in rule(case)
        if (other_chips or proposal.touches != "hardware") and not (case.training and proposal.touches in SERVING_ALONE)
    ]
    answers = case.pricer.price([proposal.changed for _, proposal in proposals])
    found = [
        advice
        for (name, proposal), answer in zip(proposals, answers, strict=True)
        if not isinstance(answer, ChipwiseError) and (advice := _advice(name, proposal, case, answer)) is not None
    ]
    kept = [advice for advice in found if every or advice.sure]
    kept.sort(key=_place)
    first = leading(kept)
    shown = set(map(id, first))
    return [*first, *(advice for advice in kept if id(advice) not in shown)]


def leading(advice: Sequence[Advice]) -> list[Advice]:
    """Urgent advice and the best advice of each rule, in the order of ``advice``; at most ``MOST_SHOWN`` pieces."""
    best = {each.rule: each for each in reversed(advice) if each.worth_showing}
    return [each for each in advice if each.proposal.urgent or best.get(each.rule) is each][:MOST_SHOWN]


def _place(advice: Advice) -> tuple[bool, bool, float]:
    """Sort key: urgent advice first, then sure gains by size, then uncertain gains by size."""
    urgent = advice.proposal.urgent
    return not urgent, not (urgent or advice.sure), 0.0 if urgent else -advice.headline.ratio.value


def _advice(name: str, proposal: Proposal, case: Case, after: CostEstimate) -> Advice | None:
    changed, question = proposal.changed, case.question
    recast = (changed.weights, changed.wide_layers) != (question.weights, question.wide_layers)
    metrics = None
    wanted = proposal.headline
    if not case.generates:
        only = "step" if case.training else "ttft_p50"
        metrics = (only, "throughput", "usd_per_1k_tokens", "peak_memory") if case.training else (only, "peak_memory")
        wanted = only if wanted in ("ttft_p50", "tpot_p50") else wanted
    gains = gains_of(case.estimate, after, metrics=metrics, recast=recast)
    headline = next((gain for gain in gains if gain.metric == wanted), None)
    if headline is None or (not proposal.urgent and abs(headline.ratio.value - 1) < NOTHING):
        return None
    fits = not _too_large(case, proposal, after) or _too_large(case, None, case.estimate)
    sure = (headline.ratio.low or 0.0) > 1 and headline.ratio.value >= WORTH and fits
    return Advice(rule=name, proposal=proposal, headline=headline, gains=tuple(gains), sure=sure, fits=fits)


def _too_large(case: Case, proposal: Proposal | None, cost: CostEstimate) -> bool:
    """Whether ``cost`` needs more memory than its device has; a device with unpublished capacity has enough."""
    other = proposal.changed.device if proposal is not None else None
    sheet = datasheet.load(other) if other is not None else case.sheet
    capacity = None if sheet is None else sheet.known_bytes
    return capacity is not None and cost.peak_memory_bytes > capacity


def gains_of(
    before: CostEstimate, after: CostEstimate, *, metrics: Sequence[str] | None = None, recast: bool = False
) -> list[Gain]:
    """The gain, with its interval, in each metric that both estimates have.

    Args:
        before: The estimate before the change.
        after: The estimate after the change.
        metrics: Only these metrics. Default: all.
        recast: Whether the change stores weights in another format.
    """
    first = _margins(before, after, "prefill", recast=recast)
    decoding = _margins(before, after, "decode", recast=recast) if before.decode and after.decode else first
    margins = {"ttft_p50": first, "step": first, "tpot_p50": decoding, "peak_memory": (0.0, 0.0)}  # memory is exact
    both = max(first[0], decoding[0]), max(first[1], decoding[1])
    old, new = _values(before), _values(after)
    gains = []
    for metric in metrics or old:
        if metric not in old or metric not in new or old[metric] <= 0 or new[metric] <= 0:
            continue
        ratio = new[metric] / old[metric] if metric in RATES else old[metric] / new[metric]
        down, up = np.exp(_own_margins(before, after, metric) or margins.get(metric, both))
        interval = Predicted(value=ratio, low=float(ratio / down), high=float(ratio * up))
        gains.append(Gain(metric=metric, before=old[metric], after=new[metric], ratio=interval))
    return gains


def _values(cost: CostEstimate) -> dict[str, float]:
    left = ("p99", "put_tokens", "decode_tokens_per_s", "itl_p50")  # the last two follow TPOT
    found = {name: value.value for name, value in cost.metrics.items() if not name.endswith(left)}
    return {"ttft_p50": cost.ttft_s, "tpot_p50": cost.tpot_s} | found | {"peak_memory": cost.peak_memory_bytes}


def ratio_spread(before: CostEstimate, after: CostEstimate, phase: PhaseName, *, recast: bool = False) -> float:
    """Standard deviation of the logarithm of a pass's speedup.

    Each operator's predicted time is wrong by a factor that is the same before and after the change; its spread is
    OPERATOR_SPREAD. The time outside kernels is wrong by a factor with the spread OVERHEAD_SPREAD. To first order, the
    error of an operator changes the speedup in proportion to the difference between its shares of the two passes. So
    errors of operators in both passes cancel, and errors of operators in only one pass count fully. With ``recast``,
    the matrix products in the other format also have a common error, FORMAT_SPREAD. Between different devices no errors
    cancel, and the intervals of both times are combined.
    """
    if before.device != after.device:
        return float(np.hypot(_halfwidth(before, phase), _halfwidth(after, phase))) / Z90
    old, new = _shares(before, phase), _shares(after, phase)
    new = _matched(new, old)
    moved = {key: old.get(key, 0.0) - new.get(key, 0.0) for key in old | new}
    beside = OVERHEAD_SPREAD * moved.pop(BESIDE)
    own = OPERATOR_SPREAD * np.sqrt(np.sum(np.square(list(moved.values()))))
    common = FORMAT_SPREAD * np.hypot(_products(old, new), _products(new, old)) if recast else 0.0
    return float(np.sqrt(own**2 + common**2 + beside**2))


def _margins(before: CostEstimate, after: CostEstimate, phase: PhaseName, *, recast: bool) -> tuple[float, float]:
    """Distances from the ratio to the lower and to the upper end of its 90 % interval, in logarithms.

    If times come only from published timings, operators have an extra error, ``doubt``. These errors are assumed fully
    correlated.
    """
    spread = Z90 * ratio_spread(before, after, phase, recast=recast)
    below, above = (_doubted(before, phase, sign) - _doubted(after, phase, sign) for sign in (-1, 1))
    return float(np.hypot(spread, below)), float(np.hypot(spread, above))


def _own_margins(before: CostEstimate, after: CostEstimate, metric: str) -> tuple[float, float] | None:
    """Like :func:`_margins`, but for estimates on different devices.

    Errors on different devices do not cancel, so the intervals of ``metric`` in both estimates are combined. None for
    equal devices, for memory, and if an estimate lacks the metric.
    """
    if before.device == after.device or metric == "peak_memory":
        return None
    both = [cost.metrics[metric] for cost in (before, after) if metric in cost.metrics]
    if len(both) < 2:
        return None
    widths = [each.log_halfwidth for each in both]
    wide = float(np.linalg.norm([UNVALIDATED if width is None else width for width in widths]))
    return wide, wide


def _doubted(cost: CostEstimate, phase: PhaseName, sign: int) -> float:
    """ln(time / predicted time) of a pass if each operator's time has the logarithmic error ``sign`` * ``doubt``."""
    costs, total_s = (cost.prefill, cost.ttft_s) if phase == "prefill" else (cost.decode, cost.tpot_s)
    return float(np.log1p(sum(each.latency_s * np.expm1(sign * each.doubt) for each in costs) / total_s))


def _matched(shares: Shares, known: Shares) -> Shares:
    """``shares`` with some keys replaced: a kernel gets the key of a kernel in ``known`` of nearly the same size.

    Sizes may differ by at most ``ALIKE``.
    """
    found: Shares = {}
    for key, share in shares.items():
        near = (other for other in known if other[0] == key[0] and _near(key[1:], other[1:]))
        name = key if key in known else next(near, key)
        found[name] = found.get(name, 0.0) + share
    return found


def _near(sizes: tuple[int, ...], others: tuple[int, ...]) -> bool:
    return all(abs(a - b) <= ALIKE * b for a, b in zip(sizes, others, strict=True))


def _products(here: Shares, there: Shares) -> float:
    """The share of the time that goes to matrix products and experts that are in ``here`` but not in ``there``."""
    return sum(share for key, share in here.items() if class_of(key[0]) in ("matmul", "experts") and key not in there)


def _halfwidth(cost: CostEstimate, phase: PhaseName) -> float:
    names = ("step", "ttft_p50") if phase == "prefill" else ("tpot_p50",)
    found = next(cost.metrics[name] for name in names if name in cost.metrics)
    return UNVALIDATED if found.log_halfwidth is None else found.log_halfwidth


def _shares(cost: CostEstimate, phase: PhaseName) -> Shares:
    """Share of a pass's time by kernel (kind, FLOPs and bytes of one call), and the share of the time outside kernels.

    The share outside kernels is negative if a captured graph hides launches.
    """
    costs, total = (cost.prefill, cost.ttft_s) if phase == "prefill" else (cost.decode, cost.tpot_s)
    found: Shares = {}
    for each in costs:
        key = (each.kind, round(float(each.work.flops)), round(float(each.work.bytes)))
        found[key] = found.get(key, 0.0) + each.latency_s / total
    return found | {BESIDE: 1 - sum(found.values())}
