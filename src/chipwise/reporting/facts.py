"""What follows from a record, said once for the page, the card and the terminal: no markup, no colours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chipwise.reporting import words
from chipwise.reporting.record import RunRecord, Trial
from chipwise.space.constraints import Constraint, total_penalty

Source = Literal["measured", "predicted", "trained", "counted", "unknown"]
Status = Literal["met", "broken", "paid", "expected", "at risk", "unknown"]
_OF_START = {
    "winner": "cut",
    "original": "original",
    "baseline": "first layers alone",
    "candidate": "cut, outside the limits",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """A number of a trial and where it comes from; bounds where it is predicted, or measured on a sample of items."""

    value: float | None
    source: Source
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A constraint held against one trial."""

    constraint: Constraint
    promised: Value
    measured: float | None
    status: Status
    shown: tuple[str, str]  # promised and measured, with their intervals


def where(record: RunRecord) -> str:
    """Device, runtime and threads that every measurement of the run belongs to."""
    target = record.target
    cpu = f" ({target.cpu})" if target.cpu and target.cpu != target.device else ""
    runtime = " ".join(part for part in (target.runtime, target.runtime_version) if part)
    return f"{target.device}{cpu}, {runtime}, {words.times(target.threads, 'thread')}"


def workload(record: RunRecord) -> str:
    """The request that was asked for."""
    asked = record.workload
    return (
        f"{words.times(asked.prompt_tokens, 'prompt token')}, {words.times(asked.new_tokens, 'new token')}, "
        f"batch {asked.batch}"
    )


def name(record: RunRecord, trial: Trial) -> str:
    """``winner (trial 7)``, ``trial 3``."""
    role = record.role(trial)
    if record.start is not None:
        return _OF_START[role]
    return f"trial {trial.number}" if role == "candidate" else f"{role} (trial {trial.number})"


def quality(trial: Trial) -> Value:
    """Validation bits per byte: of the exported artefact where that is known, else of the trained weights."""
    exported = trial.quantised_bits_per_byte
    value = trial.bits_per_byte if exported is None else exported
    return Value(value=value, source="unknown" if value is None else "trained")


def quality_of(trial: Trial) -> str:
    """Which weights the quality belongs to."""
    if trial.quantised_bits_per_byte is None:
        return "trained weights, before export"
    return f"exported {trial.weights} artefact"


def value(trial: Trial, metric: str) -> Value:
    """The best knowledge of a metric: measured before predicted."""
    if metric == "bits_per_byte":
        return quality(trial)
    if metric == "perplexity":
        return Value(value=trial.perplexity, source="unknown" if trial.perplexity is None else "trained")
    if metric == "parameters" and trial.parameters is not None:
        return Value(value=trial.parameters, source="counted")
    if trial.measured and metric in trial.measured:
        return Value(value=trial.measured[metric], source="measured")
    if (asked := words.of_task(metric)) is not None:
        score = trial.tasks.get(asked[1])
        if score is None or score.value is None or score.metric != asked[0]:
            return Value(value=None, source="unknown")
        return Value(value=score.value, low=score.low, high=score.high, source="measured")
    if metric in trial.predicted:
        guess = trial.predicted[metric]
        return Value(value=guess.value, low=guess.low, high=guess.high, source="predicted")
    return Value(value=None, source="unknown")


def promised(record: RunRecord, trial: Trial, metric: str) -> Value:
    """What was predicted before measuring: the promise where one is kept, else the trial's prediction."""
    for item in record.promised_measured:
        if item.trial == trial.number and item.metric == metric:
            return Value(value=item.promised, low=item.low, high=item.high, source="predicted")
    if metric in trial.predicted:
        guess = trial.predicted[metric]
        return Value(value=guess.value, low=guess.low, high=guess.high, source="predicted")
    there = _elsewhere(record, trial, metric)
    if there is not None:
        return Value(value=there, source="predicted")
    known = value(trial, metric)
    return known if known.source in ("trained", "counted") else Value(value=None, source="unknown")


def _elsewhere(record: RunRecord, trial: Trial, metric: str) -> float | None:
    """What ``tpot_p50@l4`` is predicted to be there by the data sheet; None of metrics of the machine itself."""
    name, _, device = metric.partition("@")
    known = [item.costs.get(str(trial.number), {}) for item in record.elsewhere if item.device == device]
    return known[0].get(name) if known else None


def checks(record: RunRecord, trial: Trial) -> tuple[Check, ...]:
    """Every constraint held against the trial. Only a measurement (or a count) can meet or break one.

    Past a soft one is paid for, by the measurement or, where there is none, by the prediction.
    """
    return tuple(_check(record, trial, item) for item in record.constraints)


def paid(record: RunRecord, trial: Trial) -> str:
    """What the trial's bits per byte count as where it is past soft limits, in a sentence; empty where none is soft."""
    if all(item.hard for item in record.constraints):
        return ""
    soft = "Soft limits may be broken: for each 100 % past one, bits per byte count as more by its share."
    values = {item.constraint.metric: _believed(item) for item in checks(record, trial)}
    share = total_penalty(record.constraints, {metric: known for metric, known in values.items() if known is not None})
    bits = quality(trial).value
    if share == 0 or bits is None:
        return soft
    whose = name(record, trial)
    return f"{soft} Those of the {whose} count as {100 * share:.3g} % more: {bits:.3f} as {bits * (1 + share):.3f}."


def _believed(check: Check) -> float | None:
    return check.promised.value if check.measured is None else check.measured


def _check(record: RunRecord, trial: Trial, constraint: Constraint) -> Check:
    promise, known = promised(record, trial, constraint.metric), value(trial, constraint.metric)
    measured = known.value if known.source in ("measured", "trained", "counted") else None
    status: Status = "unknown"
    believed = promise.value if measured is None else measured
    if not constraint.hard and believed is not None and not constraint.holds(believed):
        status = "paid"
    elif measured is not None:
        status = "met" if constraint.holds(measured) else "broken"
    elif promise.value is not None:
        worst = (promise.high if constraint.op == "<=" else promise.low) or promise.value
        status = "expected" if constraint.holds(worst) else "at risk"
    shown = (promise_text(promise, constraint.metric), measured_text(known, constraint.metric))
    return Check(constraint=constraint, promised=promise, measured=measured, status=status, shown=shown)


def promise_text(promise: Value, metric: str) -> str:
    """A prediction with its interval; what a model reaches on a task is never predicted."""
    if promise.value is None and words.of_task(metric) is not None:
        return "not predicted"
    return words.span(promise.value, promise.low, promise.high, metric)


def measured_text(known: Value, metric: str) -> str:
    """What was measured, trained or counted; with the interval over items where it is a task's."""
    if known.value is None or known.source == "predicted":
        return words.NOT_MEASURED
    return words.span(known.value, known.low, known.high, metric)


def latency_metric(record: RunRecord) -> str:
    """The metric that stands for speed: the first objective that is not quality, else TPOT P50."""
    return next((item.metric for item in record.objectives if item.metric in words.SERVED), "tpot_p50")


def comparison(record: RunRecord) -> str:
    """Winner against baseline in words, whoever is ahead."""
    winner, baseline = record.trial(record.winner), record.trial(record.baseline)
    if baseline is None:
        return "There is no baseline to compare with yet."
    if winner is None:
        return "There is no winner to compare the baseline with yet."
    if winner.number == baseline.number:
        return (
            "The hand-designed baseline itself won: no searched candidate that was measured within the constraints "
            "beats it."
        )
    parts = []
    ours, theirs = quality(winner).value, quality(baseline).value
    if ours is not None and theirs is not None:
        parts.append(f"bits per byte {words.change(ours, theirs)} ({ours:.3f} against {theirs:.3f}; lower is better)")
    for metric in dict.fromkeys((latency_metric(record), "tpot_p99", "peak_memory")):
        a, b = value(winner, metric), value(baseline, metric)
        if a.value is not None and b.value is not None and a.source == b.source:
            parts.append(
                f"{words.label(metric).replace(',', '')} {words.change(a.value, b.value)} "
                f"({words.show(a.value, metric)} against {words.show(b.value, metric)}, {a.source})"
            )
    if not parts:
        return "Winner and baseline cannot be compared yet: no number is known of both."
    verdict = ""
    if ours is not None and theirs is not None:
        better = "predicts the text better than" if ours < theirs else "predicts the text worse than"
        verdict = (
            f"The winner {better if ours != theirs else 'predicts the text as well as'} the hand-designed baseline. "
        )
    return f"{verdict}Winner against baseline: {'; '.join(parts)}."


def no_winner(record: RunRecord) -> str:
    """Why there is no winner, and what came closest."""
    measured = [trial for trial in record.trials if trial.measured]
    if not record.trials:
        return "No candidate has been tried yet."
    if not measured:
        trained = sum(trial.bits_per_byte is not None for trial in record.trials)
        so_far = f"{words.times(trained, 'candidate')} trained"
        return f"Nothing was measured yet ({so_far}), and only a measured candidate can win."
    if not record.constraints:
        return f"No winner was chosen yet among the {len(measured)} measured candidates."
    return f"No candidate of the {len(measured)} that were measured is known to meet every constraint. " + closest(
        record, measured
    )


def closest(record: RunRecord, measured: list[Trial]) -> str:
    """The measured trial whose worst broken constraint is broken by least."""

    def worst(trial: Trial) -> tuple[float, Check | None]:
        broken = [item for item in checks(record, trial) if item.status == "broken" and item.measured is not None]
        found = max(broken, key=lambda item: item.constraint.excess(item.measured or 0.0), default=None)
        return (found.constraint.excess(found.measured or 0.0) if found else 0.0), found

    trial = min(measured, key=lambda item: worst(item)[0])
    check = worst(trial)[1]
    if check is None:
        return f"Trial {trial.number} breaks none, but not all its numbers are known and clean."
    metric = check.constraint.metric
    return (
        f"Closest is trial {trial.number}: its {words.label(metric)} is {words.show(check.measured, metric)} "
        f"where the limit is {words.show(check.constraint.limit, metric)}."
    )


def per_thousand(record: RunRecord) -> dict[str, str]:
    """What 1,000 generated tokens take on the target: time, energy, price; ``unknown`` where nobody knows."""
    trial, asked = record.trial(record.winner), record.workload
    seconds = words.UNKNOWN
    if trial is not None:
        first, each = value(trial, "ttft_p50"), value(trial, "tpot_p50")
        if first.value is not None and each.value is not None and first.source == each.source:
            request_s = first.value + (asked.new_tokens - 1) * each.value
            per_1000_s = request_s / (asked.new_tokens * asked.batch) * 1000
            seconds = f"{words.quantity(per_1000_s, 'time')} (from {first.source} P50, prompts included)"
    cost = record.per_thousand
    energy, price = cost.energy_j, cost.price_usd
    sources = [f" ({cost.source})" if cost.source else ""] * 2
    if trial is not None and (known := value(trial, "joules_per_token")).value is not None:
        energy, metered = 1000 * known.value, known.source == "measured"
        sources[0] = " (measured)" if metered else " (predicted, at the power that the run's file states)"
    if trial is not None and (known := value(trial, "usd_per_1k_tokens")).value is not None:
        price, sources[1] = known.value, f" (from {known.source} P50, at the price that the run's file states)"
    return {
        "time": seconds,
        "energy": words.quantity(energy, "energy") + (sources[0] if energy is not None else ""),
        "price": words.quantity(price, "token_price") + (sources[1] if price is not None else ""),
    }


def promises_missed(record: RunRecord, number: int, share: float = 0.25) -> list[str]:
    """The P50 metrics of the trial whose measurement is ``share`` or more away from the promise."""
    return [
        item.metric
        for item in record.promised_measured
        if item.trial == number
        and item.metric.endswith("_p50")
        and item.measured is not None
        and abs(item.measured / item.promised - 1) >= share
    ]
