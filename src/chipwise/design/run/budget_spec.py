"""Defines the field ``budget`` of a run file, and how much of the budget may be spent on training.

A budget is CPU time, GPU time, tokens or dollars. If a search trains on this machine's cores, a budget of CPU time
covers everything that the search does here. Any other budget covers only training; the other work (calibration,
measurements, the report) is recorded in CPU seconds but not limited.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from chipwise.core import units
from chipwise.core.fields import later, positive
from chipwise.errors import SpecError
from chipwise.training.trainers.train_spec import TrainSpec

Unit = Literal["cpu", "gpu", "tokens", "usd"]
Charged = Literal["cpu", "gpu", "tokens"]  # unit in which training is charged: seconds of its device, or tokens

UNITS: tuple[Unit, ...] = ("cpu", "gpu", "tokens", "usd")
USUAL_CPU = "20 min"
LEAST_S, LEAST_TOKENS = 20.0, 100_000
SHORTEST = {"cpu": 1.0, "gpu": 1.0, "tokens": 50_000.0}  # shorter training runs are not informative
FINAL_SHARE = 0.7  # share of the budget that training the winner takes, roughly, if the run file leaves ``final`` out
MOST_WORKERS = 1024
_MEANT = {"cpu": "CPU seconds", "gpu": "GPU seconds", "tokens": "tokens", "usd": "dollars"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpec:
    """Budget of a whole search, and how it is divided. Give exactly one of ``cpu``, ``gpu``, ``tokens`` and ``usd``.

    As an exception, dollars may be combined with tokens; training then ends when one of the two is used up.

    If the search trains on this machine's cores, ``cpu`` covers every phase: calibration, tokenisers, training and
    measurements. The other units cover only training.

    Without ``final``, one design is chosen and trained for the remaining budget. With ``final``, two or more finalists
    and the reference design are each trained for exactly this amount, in the budget's unit.
    """

    cpu: str | float | None = None  # 20 min if no budget is given; a number needs a unit
    final: str | float | None = None
    workers: int = 2
    gpu: str | float | None = later(None)
    tokens: str | float | None = later(None)
    usd: str | float | None = later(None)

    def __post_init__(self) -> None:
        given = [unit for unit in UNITS if getattr(self, unit) is not None]
        if len(given) > 1 and given != ["tokens", "usd"]:
            raise SpecError(
                f"{' and '.join(given)} are separate budgets; give only one of cpu, gpu, tokens and usd", field=given[1]
            )
        if self.usd is not None:
            _amount(self.usd, "usd", "usd")
        if not given:
            object.__setattr__(self, "cpu", USUAL_CPU)
        least = {"cpu": LEAST_S, "gpu": LEAST_S, "tokens": LEAST_TOKENS}.get(self.unit, 0.0)
        if self.total < least:
            given_text = getattr(self, self.unit)
            shown = f"{given_text:g}" if isinstance(given_text, float) else given_text
            raise SpecError(
                f"{shown} is too little for any search; give at least {least:.0f} "
                f"{'tokens' if self.unit == 'tokens' else 's'}",
                field=self.unit,
            )
        if self.final is not None:
            _amount(self.final, self.unit, "final")
        positive(self, "workers", most=MOST_WORKERS)

    @property
    def unit(self) -> Unit:
        """The unit of the budget."""
        return next(unit for unit in UNITS if getattr(self, unit) is not None)

    @property
    def total(self) -> float:
        """The whole budget: seconds, tokens or dollars."""
        return _amount(getattr(self, self.unit), self.unit, self.unit)

    @property
    def final_amount(self) -> float:
        """Budget of one final training run, in the budget's unit; if not stated, roughly what the winner will get."""
        return _amount(self.final, self.unit, "final") if self.final is not None else self.total * FINAL_SHARE

    @property
    def cpu_s(self) -> float:
        """The whole budget in CPU seconds.

        Raises:
            SpecError: The budget is not CPU time.
        """
        self.require_cpu("this")
        return self.total

    @property
    def final_s(self) -> float:
        """CPU seconds of one final training run.

        Raises:
            SpecError: The budget is not CPU time.
        """
        self.require_cpu("this")
        return self.final_amount

    def require_cpu(self, what: str) -> None:
        """Refuses a budget that is not CPU time; ``what`` is the feature that needs CPU time.

        Raises:
            SpecError: The budget is not CPU time.
        """
        if self.unit != "cpu":
            raise SpecError(
                f"{what} needs a budget of CPU time; write `cpu: 16 min` instead", field=f"budget.{self.unit}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowance:
    """A budget in the unit in which training is charged: device seconds, or tokens."""

    unit: Charged
    total: float
    final: float  # budget of one final training run
    whole: bool  # whether everything that the search does on this machine is charged, not only training
    alone: bool = False  # whether one design is trained for all that is left; ``final`` is then an estimate of that
    usd: float | None = None  # dollar limit of a budget in tokens
    usd_per_s: float | None = None  # price of the training device

    @property
    def shortest(self) -> float:
        """The budget of the shortest training run whose result is informative."""
        return SHORTEST[self.unit]

    def show(self, amount: float) -> str:
        """A budget as text, such as ``100 s of CPU time`` or ``3.0 M tokens``."""
        if self.unit == "tokens":
            return f"{units.show(amount, 'count')} tokens"
        return f"{amount:.0f} s of {self.unit.upper()} time"

    def left(self, *, seconds: float, tokens: float) -> float:
        """The budget that remains after training has taken ``seconds`` and ``tokens``.

        If dollars limit a budget in tokens, the result is at most the number of tokens that the remaining dollars buy
        at the speed so far.
        """
        rest = self.total - (tokens if self.unit == "tokens" else seconds)
        if self.usd is None or self.usd_per_s is None or not tokens or not seconds:
            return rest
        return min(rest, (self.usd / self.usd_per_s - seconds) * tokens / seconds)

    def charge(self, *, seconds: float, tokens: int) -> float:
        """The budget used by a training run that took ``seconds`` and ``tokens``."""
        return float(tokens) if self.unit == "tokens" else seconds


def allowance(budget: BudgetSpec, train: TrainSpec) -> Allowance:
    """The part of ``budget`` that may be spent on training, given the trainer in ``train``.

    Raises:
        SpecError: The trainer cannot account for this kind of budget, or dollars are given without the device's price.
    """
    if budget.unit not in train.accounts:
        wanted = " or ".join(unit for unit in UNITS if unit in train.accounts)
        hint = "; or train: {on: cuda}" if budget.unit == "gpu" else ""
        raise SpecError(
            f"train.on: {train.on} trains on {'GPUs' if train.trains_on == 'cuda' else 'CPU cores'} and cannot account "
            f"for {_MEANT[budget.unit]}; give {wanted} instead{hint}",
            field=f"budget.{budget.unit}",
        )
    price = train.usd_per_s
    if budget.usd is not None and price is None:
        raise SpecError(
            "a budget in dollars needs the device's price; add train: {price: 2.5 USD/h}", field="train.price"
        )
    seconds: Charged = "gpu" if train.trains_on == "cuda" else "cpu"
    unit: Charged = seconds if budget.unit == "usd" else budget.unit
    rate = price if budget.unit == "usd" and price is not None else 1.0
    total, final = budget.total / rate, budget.final_amount / rate
    if final > total:
        raise SpecError(
            "one final training run exceeds the whole budget; lower `final` or raise the budget", field="budget.final"
        )
    both = unit == "tokens" and budget.usd is not None
    return Allowance(
        unit=unit,
        total=total,
        final=final,
        whole=unit == "cpu" and train.whole,
        alone=budget.final is None,
        usd=_amount(budget.usd, "usd", "usd") if both else None,
        usd_per_s=price if both else None,
    )


def _amount(text: object, unit: Unit, where: str) -> float:
    number = text
    if unit == "usd" and isinstance(text, str) and ("USD" in text or "$" in text):
        number = text.replace("USD", "").replace("$", "").strip()
    value = units.parse_field(number, "duration" if unit in ("cpu", "gpu") else "count", where)
    if value <= 0:
        raise SpecError(f"must be positive, not {text}", field=where)
    return value
