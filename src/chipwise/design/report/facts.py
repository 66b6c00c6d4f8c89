"""Derives facts from a record for the page, the card and the terminal, without markup or colours.

"Better" is claimed only if a difference exceeds the noise: the scatter between training seeds, and the scatter over the
test entries on which both designs were scored.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from chipwise.core import units
from chipwise.design.limits import Constraint, total_penalty
from chipwise.design.report import words
from chipwise.design.report.record import Elsewhere, RunRecord, Trial
from chipwise.predict.cost.request import price_shares, request_total, throughput

Source = Literal["measured", "expected", "predicted", "trained", "counted", "unknown"]
"""``predicted`` values were stored before any measurement; ``expected`` values replace missing measurements."""
Status = Literal["met", "probably met", "broken", "paid", "expected", "at risk", "unknown"]
STATUS: dict[Status, str] = {
    "met": "met",
    "probably met": "probably met",
    "broken": "broken",
    "paid": "exceeded, penalised",
    "expected": "expected, not measured",
    "at risk": "at risk, not measured",
    "unknown": "unknown",
}
LEAST_CERTAIN_FIRST: tuple[Status, ...] = ("broken", "unknown", "at risk", "paid", "expected", "probably met")
"""Order of statuses. For several limits together, the first status that one of them has is shown; if none has any, all
are met."""
LOSS = "expected_loss"  # nats per token that the scaling law expects
_Z95 = 1.96
DEFAULT_CONFIDENCE = 0.9
_OF_START = {
    "winner": "cut",
    "original": "original",
    "baseline": "first layers alone",
    "candidate": "cut, outside the limits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A value of a trial and its source; values that are predicted, or measured on a sample of items, have bounds."""

    value: float | None
    source: Source
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A constraint and whether one trial meets it."""

    constraint: Constraint
    promised: Value
    measured: float | None
    status: Status
    shown: tuple[str, str]  # predicted and measured values, with intervals
    chance: float | None = None  # probability that a limit that was not measured is met; None if unknown


def by_law(record: RunRecord) -> bool:
    """Whether the run ranked designs by a scaling law and trained nothing."""
    return any(goal.metric == LOSS for goal in record.objectives)


def status_text(check: Check) -> str:
    """The status as text; for a limit on an unmeasured value, with the probability that it is met."""
    if check.chance is None or check.status not in ("expected", "at risk"):
        return STATUS[check.status]
    likely = "over 99 %" if check.chance > 0.99 else f"{100 * check.chance:.0f} %"
    return f"{check.status}, {likely} likely"


def where(record: RunRecord) -> str:
    """Device, runtime and threads of the run's target, and whether anything was measured there."""
    target = record.target
    if target.title is not None:
        taken = sum(trial.measured is not None for trial in record.trials)
        how = "measured there" if target.measures else "predicted, nothing measured there"
        if taken and not target.measures:
            how = f"predicted, {words.times(taken, 'design')} measured there by a kit"
        return f"{target.title} ({target.device}), {target.runtime}; {how}"
    cpu = f" ({target.cpu})" if target.cpu and target.cpu != target.device else ""
    runtime = " ".join(part for part in (target.runtime, target.runtime_version) if part)
    return f"{target.device}{cpu}, {runtime}, {words.times(target.threads, 'thread')}"


def workload(record: RunRecord) -> str:
    """Text that describes the request that was measured or predicted."""
    request = record.workload
    if record.words.one_pass():
        return f"{record.words.entries(request.batch)} at once"
    return (
        f"{words.times(request.prompt_tokens, 'prompt token')}, {words.times(request.new_tokens, 'new token')}, "
        f"batch {request.batch}"
    )


def name(record: RunRecord, trial: Trial) -> str:
    """Name of a trial, such as ``winner (trial 7)`` or ``trial 3``."""
    role = record.role(trial)
    if record.start is not None:
        return _OF_START[role]
    return f"trial {trial.number}" if role == "candidate" else f"{words.role(role)} (trial {trial.number})"


def contenders(record: RunRecord) -> list[Trial]:
    """Winner, reference design and knee, if known, without duplicates."""
    numbers = dict.fromkeys((record.winner, record.baseline, record.knee))
    return [trial for number in numbers if (trial := record.trial(number)) is not None]


def quality(record: RunRecord, trial: Trial) -> Value:
    """The value by which candidates are ranked: the task's loss, or the loss that a law expects."""
    return value(record, trial, LOSS if LOSS in trial.predicted else "loss")


def _known(value: float | None, source: Source) -> Value:
    """Makes a value without an interval; if it is None, its source is "unknown"."""
    return Value(value=value, source="unknown" if value is None else source)


def _loss(trial: Trial) -> float | None:
    """Validation loss of the exported artefact if known, else of the trained weights."""
    return trial.loss if trial.quantised_loss is None else trial.quantised_loss


def quality_of(trial: Trial) -> str:
    """Where the trial's quality comes from: trained weights, an exported file, or (``expected``) a scaling law."""
    if LOSS in trial.predicted:
        return "expected"
    if trial.quantised_loss is None:
        return "trained weights, before export"
    return f"exported {trial.weights} artefact"


def value(record: RunRecord, trial: Trial, metric: str) -> Value:
    """The best known value of a metric: measured, counted, or computed after training; else the predicted value."""
    if metric == "loss":
        return _known(_loss(trial), "trained")
    if metric == record.words.metric.name:
        loss = _loss(trial)
        return _known(None if loss is None else record.words.metric.shown(loss), "trained")
    if metric in ("test_loss", "perplexity"):
        return _known(getattr(trial, metric), "trained")
    if metric == "parameters" and trial.parameters is not None:
        return _known(trial.parameters, "counted")
    if trial.measured and metric in trial.measured:
        low, high = trial.measured_bounds.get(metric, (None, None))
        return Value(value=trial.measured[metric], source="measured", low=low, high=high)
    if (task := words.of_task(metric)) is not None:
        score = trial.tasks.get(task[1])
        if score is None or score.value is None or score.metric != task[0]:
            return _known(None, "unknown")
        return Value(value=score.value, low=score.low, high=score.high, source="measured")
    guess = trial.believed_now.get(metric) or trial.predicted.get(metric)
    if guess is not None:
        return Value(value=guess.value, low=guess.low, high=guess.high, source="expected")
    return _known(None, "unknown")


def promised(record: RunRecord, trial: Trial, metric: str) -> Value:
    """The prediction that was made before the trial was measured."""
    if metric in trial.predicted:
        guess = trial.predicted[metric]
        return Value(value=guess.value, low=guess.low, high=guess.high, source="predicted")
    name, _, device = metric.partition("@")  # such as tpot_p50@l4, by the data sheet
    for other in record.elsewhere:
        if other.device == device and (known := there(other, trial.number, name)) is not None:
            return known
    known = value(record, trial, metric)
    return known if known.source in ("trained", "counted") else _known(None, "unknown")


def there(device: Elsewhere, trial: int | None, metric: str) -> Value | None:
    """Predicted cost of a trial on another device; None if it is unknown."""
    known = device.costs.get(str(trial), {})
    if metric not in known:
        return None
    low, high = device.bounds.get(str(trial), {}).get(metric, (None, None))
    return Value(value=known[metric], low=low, high=high, source="predicted")


def checks(record: RunRecord, trial: Trial | None) -> tuple[Check, ...]:
    """Checks every constraint for ``trial``, which may be None.

    A hard limit is met or broken only if its value was measured, counted or computed after training. A limit on a
    percentile is met if the whole 95 % interval of the percentile is within the limit. It is "probably met" if only the
    measured value is within it, or if there are too few samples to bound a P99. Exceeding a soft limit is penalised
    according to the measurement or, if there is none, the prediction.
    """
    return tuple(_check(record, trial, item) for item in record.constraints)


def paid(record: RunRecord, trial: Trial) -> str:
    """Explains soft limits and gives the trial's penalised loss; empty without soft limits."""
    if all(item.hard for item in record.constraints):
        return ""
    loss = "the share of errors counts" if record.words.metric.more_is_better else f"{record.words.metric.title} count"
    soft = f"Soft limits may be exceeded: for each 100 % of excess, {loss} as more, by the share stated as penalty."
    values = {item.constraint.metric: _believed(item) for item in checks(record, trial)}
    share = total_penalty(record.constraints, {metric: known for metric, known in values.items() if known is not None})
    bits = quality(record, trial).value
    if share == 0 or bits is None:
        return soft
    whose = name(record, trial)
    more = units.show(share, "share")
    return f"{soft} The loss of the {whose} counts as {more} more: {bits * (1 + share):.3f} instead of {bits:.3f}."


def _believed(check: Check) -> float | None:
    return check.promised.value if check.measured is None else check.measured


def _check(record: RunRecord, trial: Trial | None, constraint: Constraint) -> Check:
    if trial is None:
        nothing, shown = _known(None, "unknown"), (words.UNKNOWN, words.NOT_MEASURED)
        return Check(constraint=constraint, promised=nothing, measured=None, status="unknown", shown=shown)
    promise, known = promised(record, trial, constraint.metric), value(record, trial, constraint.metric)
    measured = known.value if known.source in ("measured", "trained", "counted") else None
    chance = None if measured is not None else trial.chances.get(constraint.metric)
    status: Status = "unknown"
    believed = promise.value if measured is None else measured
    if not constraint.hard and believed is not None and not constraint.holds(believed):
        status = "paid"
    elif measured is not None:
        status = _measured_status(constraint, metric=constraint.metric, known=known)
    elif promise.value is not None:
        wanted = DEFAULT_CONFIDENCE if record.target.confidence is None else record.target.confidence
        worst = (promise.high if constraint.op == "<=" else promise.low) or promise.value
        status = "expected" if (constraint.holds(worst) if chance is None else chance >= wanted) else "at risk"
    shown = (promise_text(record, promise, constraint.metric), measured_text(record, known, constraint.metric))
    return Check(constraint=constraint, promised=promise, measured=measured, status=status, shown=shown, chance=chance)


def _measured_status(constraint: Constraint, *, metric: str, known: Value) -> Status:
    assert known.value is not None
    if not constraint.holds(known.value):
        return "broken"
    worst = known.high if constraint.op == "<=" else known.low
    if known.source != "measured" or words.of_task(metric) is not None:
        return "met"  # a minimum score on a task is checked by its value alone
    if worst is None:
        return "probably met" if metric.endswith("_p99") else "met"
    return "met" if constraint.holds(worst) else "probably met"


def promise_text(record: RunRecord, promise: Value, metric: str) -> str:
    """A prediction as text, with its interval; ``not predicted`` for scores on tasks."""
    if promise.value is None and words.of_task(metric) is not None:
        return "not predicted"
    return record.words.span(promise.value, promise.low, promise.high, metric)


def measured_text(record: RunRecord, known: Value, metric: str) -> str:
    """A value as text, with its interval if known; ``not measured`` if it is unknown or only predicted."""
    if known.value is None or known.source in ("expected", "predicted"):
        return words.NOT_MEASURED
    return record.words.span(known.value, known.low, known.high, metric)


def latency_metric(record: RunRecord) -> str:
    """The metric of speed: the first objective that is not quality, else the task's latency metric."""
    return next(
        (item.metric for item in record.objectives if item.metric in record.words.served()),
        record.words.task.latency_metric,
    )


def comparison(record: RunRecord) -> str:
    """Compares winner and reference design in words."""
    winner, reference = record.trial(record.winner), record.trial(record.baseline)
    if reference is None:
        return without_search(record)
    if winner is None:
        return "There is no winner to compare the reference design with yet."
    if winner.number == reference.number:
        return "The reference design itself won: no candidate that was measured within the constraints is better."
    parts = []
    metric, text = reported_quality(record, winner, reference)
    ours, theirs = value(record, winner, metric).value, value(record, reference, metric).value
    if ours is not None and theirs is not None:
        verdict = _verdict(record, ours, theirs)
        measure = record.words.metric
        against = f"({ours:.3f} against {theirs:.3f}; lower is better)"
        change = words.change(ours, theirs) if verdict != "same" else "about the same, within noise"
        if metric == LOSS:
            parts.append(f"expected loss {against[1:-1]}{_change_by_law(record)}")
        elif measure.more_is_better:
            parts.append(
                f"{measure.title} of the {text} {measure.text(ours)} against {measure.text(theirs)} (errors {change})"
            )
        else:
            parts.append(f"{measure.title} of the {text} {change} {against}")
    for metric in dict.fromkeys(
        (latency_metric(record), record.words.task.latency_metric.replace("p50", "p99"), "peak_memory")
    ):
        a, b = value(record, winner, metric), value(record, reference, metric)
        if a.value is not None and b.value is not None and a.source == b.source:
            parts.append(
                f"{record.words.label(metric).replace(',', '')} {words.change(a.value, b.value)} "
                f"({record.words.show(a.value, metric)} against {record.words.show(b.value, metric)}, {a.source})"
            )
    if not parts:
        return "Winner and reference design cannot be compared yet: they have no known number in common."
    opening = ""
    if ours is not None and theirs is not None:
        does = "is expected to predict the text" if by_law(record) else record.words.labels.verb
        opening = {
            "better": f"The winner {does} better than the reference design. ",
            "worse": f"The winner {does} worse than the reference design. ",
            "same": f"The winner {does} about as well as the reference design. ",
        }[verdict]
    return f"{opening}{caveats(record)}Winner against reference design: {'; '.join(parts)}.{as_good(record)}"


def without_search(record: RunRecord) -> str:
    """Says which loss the best untrained reference design would be expected to reach with the whole budget."""
    winner, metric = record.trial(record.winner), record.words.metric
    if not record.answer.alternatives:
        return "There is no reference design to compare with."
    best = record.answer.alternatives[0]
    mean, low, high = best.expected
    ours = None if winner is None else value(record, winner, reported_quality(record, winner)[0]).value
    against = "" if ours is None else f" The winner has {metric.text(ours)}."
    return (
        f"Without a search, the whole budget could have trained the {record.words.labels.reference} "
        f"({best.summary}) to an expected {metric.title} of {metric.text(mean)} "
        f"({metric.text(min(low, high))} to {metric.text(max(low, high))}; predicted from this run's trainings)."
        f"{against}"
    )


def foreseen(record: RunRecord) -> str:
    """The loss expected of the winner before any training, and the loss it reached; empty if unknown."""
    known, metric = record.answer.foreseen, record.words.metric
    if known is None:
        return ""
    mean, low, high = known.expected
    order = (
        ""
        if known.tau is None
        else f" Kendall's tau between the prior's ranking of {known.trainings} designs and their ranking by first "
        f"training runs was {known.tau:.2f}."
    )
    return (
        f"Before any training, the {metric.title} that the prior expected for the winner was {metric.text(mean)} "
        f"({metric.text(min(low, high))} to {metric.text(max(low, high))}); the winner "
        f"reached {metric.text(known.loss)} on validation {record.words.labels.data}.{order}"
    )


def bought(record: RunRecord) -> str:
    """Says how many training runs the budget paid for, and how much losses differ by noise alone; empty without any."""
    lengths = {(item.train_cpu_s, item.parameters) for item in record.trials}  # formats share a training run
    seconds = sorted(length for length, _ in lengths if length)
    if not seconds:
        return ""
    short = [each for each in seconds if each < 0.9 * seconds[-1]]
    parts = [_trainings(each) for each in (short, seconds[len(short) :]) if each]
    noise = math.expm1(_Z95 * math.sqrt(2) * record.words.metric.seed_sd)
    return (
        f"The budget paid for {' and '.join(parts)}. The losses of two equal training runs with different seeds "
        f"differ by up to {units.show(noise, 'share', digits=2)} (19 times in 20); smaller differences between designs "
        "could not be detected."
    )


def _trainings(seconds: Sequence[float]) -> str:
    low, high = (units.show(each, "time") for each in (seconds[0], seconds[-1]))
    span = low if low == high else f"{low} to {high}"
    return f"{words.times(len(seconds), 'training run')} of {span}"


def as_good(record: RunRecord) -> str:
    """Names a slower design whose loss is lower than the winner's, but only by noise; empty if there is none."""
    winner, latency, metric = record.trial(record.winner), record.words.task.latency_metric, record.words.metric
    if winner is None:
        return ""
    mine, seconds = value(record, winner, "loss").value, value(record, winner, latency).value
    if mine is None or seconds is None:
        return ""
    found = []
    for trial in record.trials:
        loss, pace = value(record, trial, "loss").value, value(record, trial, latency)
        rival = trial.number not in (record.winner, record.baseline) and trial.feasible and pace.source == "measured"
        if rival and loss is not None and pace.value is not None and pace.value > seconds and loss < mine:
            found.append((loss, trial.number, pace.value))
    if not found or mine > min(found)[0] * math.exp(metric.seed_sd):
        return ""
    loss, number, pace_s = min(found)
    lost = f"{metric.text(loss)} against {metric.text(mine)} on validation {record.words.labels.data}"
    slower = f"{record.words.show(pace_s, latency)} against {record.words.show(seconds, latency)}"
    return f" Trial {number} is about as good, within the noise of seeds ({lost}), and slower ({slower})."


def caveats(record: RunRecord) -> str:
    """Reservations about the comparison of winner and reference design; empty if there are none."""
    found = []
    contenders = [trial for number in (record.winner, record.baseline) if (trial := record.trial(number))]
    unclean = [name(record, trial) for trial in contenders if trial.clean is False]
    if unclean:
        found.append(
            f"The machine was busy whenever the {' and the '.join(unclean)} "
            f"{'was' if len(unclean) == 1 else 'were'} measured, so latencies are not reliable. "
        )
    reference = record.trial(record.baseline)
    if reference is not None and (broken := broken_limits(record, reference)):
        found.append(
            f"The reference design was measured outside its limit on {broken}, so the two do not meet the same limits. "
        )
    return "".join(found)


def broken_limits(record: RunRecord, trial: Trial) -> str:
    """Short names of the metrics whose limits a trial breaks, joined by commas; empty if it breaks none."""
    broken = (item.constraint.metric for item in checks(record, trial) if item.status == "broken")
    return ", ".join(map(record.words.short, broken))


def reported_quality(record: RunRecord, *trials: Trial) -> tuple[str, str]:
    """The quality metric that all of ``trials`` have, and the data it was computed on; test data if possible."""
    if all(LOSS in trial.predicted for trial in trials):
        return LOSS, "law's text"
    if all(trial.test_loss is not None for trial in trials):
        return "test_loss", f"test {record.words.labels.data}"
    return "loss", f"validation {record.words.labels.data}, which also selected the winner"


def quality_verdict(
    record: RunRecord, ours: float, theirs: float, std_error: float | None
) -> Literal["better", "worse", "same"]:
    """Whether ``ours`` is better than ``theirs`` beyond the noise of seeds and of test entries."""
    if ours <= 0 or theirs <= 0:  # a loss of 0 has no logarithm, so scatter is unknown
        return "same" if ours == theirs else "better" if ours < theirs else "worse"
    noise = _Z95 * math.sqrt(2 * record.words.metric.seed_sd**2 + (std_error or 0.0) ** 2)
    difference = math.log(ours / theirs)
    return "same" if abs(difference) <= noise else "better" if difference < 0 else "worse"


def _verdict(record: RunRecord, ours: float, theirs: float) -> Literal["better", "worse", "same"]:
    """Whether the winner is better beyond noise or, for a law, whether the interval of the difference excludes zero."""
    if record.law is None:
        return quality_verdict(record, ours, theirs, record.test.difference_std_error if record.test else None)
    change = record.law.change
    if change is None or change.low is None or change.high is None or change.low <= 0 <= change.high:
        return "same"
    return "better" if change.high < 0 else "worse"


def _change_by_law(record: RunRecord) -> str:
    """A clause that says how much the winner's expected perplexity differs from the reference design's."""
    change = None if record.law is None else record.law.change
    if change is None or change.low is None or change.high is None:
        return ""
    low, value, high = (100 * math.expm1(end) for end in (change.low, change.value, change.high))
    return f"; perplexity {value:+.1f} % ({low:+.1f} to {high:+.1f} %)".replace("-", "−")


def no_winner(record: RunRecord) -> str:
    """Says why there is no winner yet, and which candidate comes closest to the limits."""
    measured = [trial for trial in record.trials if trial.measured]
    if not record.trials:
        return "No candidate has been tried yet."
    if not measured:
        trained = sum(trial.loss is not None for trial in record.trials)
        so_far = f"{words.times(trained, 'candidate')} trained"
        return f"Nothing was measured yet ({so_far}), and only a measured candidate can win."
    if not record.constraints:
        return f"No winner was chosen yet among the {len(measured)} measured candidates."
    return f"No candidate of the {len(measured)} that were measured is known to meet every constraint. " + closest(
        record, measured
    )


def closest(record: RunRecord, measured: list[Trial]) -> str:
    """Says which measured trial comes closest to the limits: the one whose largest excess is smallest."""

    def worst(trial: Trial) -> tuple[float, Check | None]:
        broken = [item for item in checks(record, trial) if item.status == "broken" and item.measured is not None]
        found = max(broken, key=lambda item: item.constraint.excess(item.measured or 0.0), default=None)
        return (found.constraint.excess(found.measured or 0.0) if found else 0.0), found

    trial = min(measured, key=lambda item: worst(item)[0])
    check = worst(trial)[1]
    if check is None:
        return f"Trial {trial.number} breaks no constraint, but some of its values are unknown or unreliable."
    metric, terms = check.constraint.metric, record.words
    return (
        f"Trial {trial.number} comes closest: its {terms.label(metric)} is {terms.show(check.measured, metric)} "
        f"where the limit is {terms.show(check.constraint.limit, metric)}."
    )


def per_thousand(record: RunRecord) -> dict[str, str]:
    """Time, energy and price of 1,000 generated tokens on the target, as text; ``unknown`` if not known."""
    trial, request = record.trial(record.winner), record.workload
    seconds = words.UNKNOWN
    if trial is not None:
        first, each = value(record, trial, "ttft_p50"), value(record, trial, "tpot_p50")
        if record.words.one_pass() and first.value is not None:
            seconds = f"{words.quantity(1000 * first.value / request.batch, 'time')} (from {first.source} P50)"
        elif first.value is not None and each.value is not None and first.source == each.source:
            per_1000_s = 1000 / throughput(first.value, each.value, request.new_tokens, request.batch)
            seconds = f"{words.quantity(per_1000_s, 'time')} (from {first.source} P50, prompts included)"
    energy = price = words.UNKNOWN
    if trial is not None and (joules := value(record, trial, "joules_per_token")).value is not None:
        board = "the power in the data sheet" if record.target.title else "the power in the run file"
        how = "measured" if joules.source == "measured" else f"expected, at {board}"
        energy = f"{words.quantity(1000 * joules.value, 'energy')} ({how})"
    if trial is not None and (usd := value(record, trial, "usd_per_1k_tokens")).value is not None:
        each_usd = _prices(record, trial) or words.quantity(usd.value, "token_price")
        price = f"{each_usd} (from {usd.source} P50, at the price that the run file states)"
    return {"time": seconds, "energy": energy, "price": price}


def _prices(record: RunRecord, trial: Trial) -> str:
    """Dollars per million input and output tokens as text, if the trial's price and times are known; else empty."""
    request = record.workload
    usd, first, each = (value(record, trial, name) for name in ("usd_per_1k_tokens", "ttft_p50", "tpot_p50"))
    if usd.value is None or first.value is None or each.value is None or not usd.source == first.source == each.source:
        return ""
    usd_per_s = usd.value / 1000 * throughput(first.value, each.value, request.new_tokens, request.batch)
    total_s = request_total(first.value, each.value, request.new_tokens)
    read_s, written_s = price_shares(total_s, each.value, request.new_tokens)
    read = units.show(1e6 * usd_per_s * read_s / (request.prompt_tokens * request.batch), "price")
    written = units.show(1e6 * usd_per_s * written_s / (request.new_tokens * request.batch), "price")
    return f"{read} per million input tokens, {written} per million output tokens"


def promises_missed(record: RunRecord, number: int) -> list[str]:
    """The P50 metrics whose measurement differs from the prediction by a quarter or more."""
    return [
        item.metric
        for item in record.promised_measured
        if item.trial == number
        and item.metric.endswith("_p50")
        and item.measured is not None
        and abs(item.measured / item.promised - 1) >= 0.25
    ]
