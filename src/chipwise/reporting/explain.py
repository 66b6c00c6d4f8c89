"""The answer in words and rows: the knee, the price of each limit, importance, growth, other devices."""

from __future__ import annotations

from chipwise.reporting import facts, words
from chipwise.reporting.record import Answer, Elsewhere, Relaxed, RunRecord, Trial
from chipwise.space.constraints import SPENDING


def knee(record: RunRecord) -> str:
    """Which trial the knee is, why, and how sure its quality is."""
    trial = record.trial(record.knee)
    if trial is None:
        return "The front has no bend, so there is no knee."
    why = f" {record.answer.knee_why[0].upper()}{record.answer.knee_why[1:]}." if record.answer.knee_why else ""
    return f"The knee is trial {trial.number} ({trial.summary}).{why} {trained(record, trial)}"


def trained(record: RunRecord, trial: Trial) -> str:
    """How far a trial's quality is to be trusted beside fully trained ones."""
    longest = max((item.train_cpu_s or 0.0 for item in record.trials), default=0.0)
    spent = trial.train_cpu_s or 0.0
    if spent >= 0.9 * longest > 0:
        return "It was trained in full."
    expected = record.answer.knee_expected
    believed = f"; after a full training {expected:.3f} bits per byte are expected of it" if expected else ""
    return (
        f"It was trained for {words.quantity(spent, 'time')} of {words.quantity(longest, 'time')} only{believed}, "
        "so it is a proposal and no winner."
    )


def relaxed(item: Relaxed) -> list[str]:
    """A table's row: limit, what it would buy, each objective before and after, the design."""
    name = words.label(item.limit)
    gain = "a first candidate" if item.gain is None else f"{item.gain:+.1%} of the front"
    changes = [
        f"{words.short(goal)} {words.show(before, goal)} → {words.show(after, goal)}"
        for goal, (before, after) in item.best.items()
        if before != after and after is not None
    ]
    if item.summary is None:
        return [name, "nothing", "", ""]
    doubt = f" (± {item.std:.3f} bits per byte)" if item.std is not None else ""
    return [name, gain, "; ".join(changes) + doubt, item.summary]


def importance(answer: Answer) -> list[list[str]]:
    """Rows of choices and their share of each objective's variance, those that matter most first."""
    names = dict.fromkeys(name for shares in answer.importance.values() for name in shares)
    most = {name: max(shares.get(name, 0.0) for shares in answer.importance.values()) for name in names}
    ordered = sorted((name for name in names if most[name] >= 0.005), key=lambda name: -most[name])
    return [[name, *[f"{shares.get(name, 0.0):.0%}" for shares in answer.importance.values()]] for name in ordered]


def growth(answer: Answer) -> str:
    """How the front grew, in one sentence."""
    if not answer.growth:
        return ""
    last, drawn = answer.growth[-1], answer.growth_random[-1]
    reached = next((i for i, value in enumerate(answer.growth, start=1) if value >= drawn), len(answer.growth))
    against = f"{last / drawn - 1:+.1%}" if drawn > 0 else "more than nothing"
    return (
        f"The front of {len(answer.growth)} candidates covers {against} against as many drawn at random within the "
        f"limits; {reached} were enough to be level. (Hypervolume in the span of both, by believed quality.)"
    )


def elsewhere(record: RunRecord, device: Elsewhere) -> list[str]:
    """A table's row: the device, what the contenders are predicted to take there, its own front."""
    cells = []
    for number in dict.fromkeys((record.winner, record.baseline, record.knee)):
        costs = device.costs.get(str(number), {}) if number is not None else {}
        shown = ", ".join(
            f"{words.short(metric)} {words.show(costs[metric], metric)}"
            for metric in ("ttft_p50", "tpot_p50", "peak_memory", *SPENDING)
            if metric in costs
        )
        if number is not None:
            cells.append(shown or words.UNKNOWN)
    front = ", ".join(str(number) for number in device.front) or "none"
    return [device.title, *cells, front]


def contenders(record: RunRecord) -> list[str]:
    """Heads of the columns that :func:`elsewhere` fills."""
    numbers = dict.fromkeys((record.winner, record.baseline, record.knee))
    return [facts.name(record, trial) for number in numbers if (trial := record.trial(number)) is not None]
