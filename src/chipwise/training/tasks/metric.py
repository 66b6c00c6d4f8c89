"""Metrics: of a task, which trainings alone reveal; and costs that follow from other costs of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from chipwise.core import units


class Request(Protocol):
    """Inputs of derived metrics: fields of a space or an architecture."""

    @property
    def sound_s(self) -> float | None:
        """Seconds of sound that it holds; None without."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """Quality metric of a task.

    Inside a search it is a loss, of which less is better: bits per byte, or the share of errors. What is shown of a
    metric of which more is better is 1 less the loss: an accuracy of 92 % is a loss of 0.08.
    """

    name: str  # in objectives and constraints
    title: str  # in reports
    unit: str = "count"  # kind of unit: count, share
    more_is_better: bool = False  # of what is shown
    short: str = ""  # in tables; the title unless given
    seed_sd: float = 0.06
    """Standard deviation of the logarithm of losses by seed alone.

    Where unknown, one as large as small classifiers of images and sounds have: 0.05 over six seeds of 39 thousand
    parameters and 0.058 over five, trained for ten seconds each on a busy machine.
    """

    least_share: float = 1 / 9  # of a full training, after which losses tell shapes apart
    of: Callable[[Mapping[str, object], Request], Any | None] | None = None
    """Of a derived metric: its value by those of costs (numbers or arrays) and by the request; None if unknown."""
    requires: str = ""  # of a derived metric: what a request must hold

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """Direction in which it is better, as shown."""
        return "maximize" if self.more_is_better else "minimize"

    def shown(self, loss: float) -> float:
        """The shown value of a loss.

        >>> Metric(name="accuracy", title="accuracy", unit="share", more_is_better=True).shown(0.25)
        0.75
        """
        return 1.0 - loss if self.more_is_better else loss

    def text(self, loss: float) -> str:
        """The shown value with its unit.

        >>> Metric(name="accuracy", title="accuracy", unit="share", more_is_better=True).text(0.25)
        '75 %'
        """
        value = self.shown(loss)
        if self.unit != "count":
            return units.show(value, self.unit)
        return f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"


BITS_PER_BYTE = Metric(
    name="bits_per_byte",
    title="bits per byte",
    short="bits/byte",
    seed_sd=0.0056,  # benchmarks/{claims-quality,winner-vs-baseline-*}.csv
)
