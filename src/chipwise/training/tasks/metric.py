"""Defines metrics: a task's quality metric, and metrics that are derived from the costs of a request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from chipwise.core import units


class Request(Protocol):
    """Request sizes for derived metrics, from a space or an architecture."""

    @property
    def sound_s(self) -> float | None:
        """Seconds of sound in the request; None without sound."""
        ...

    @property
    def frames(self) -> int | None:
        """Images in the request; None without images."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A metric of a task: its quality metric, or one derived from costs.

    A search always uses a loss, where lower is better: bits per byte, or an error rate. A metric where higher is better
    is displayed as 1 minus the loss: an accuracy of 92 % is a loss of 0.08.
    """

    name: str  # name in objectives and constraints
    title: str  # name in reports
    unit: str = "count"  # kind of unit: count, share
    more_is_better: bool = False  # whether higher displayed values are better
    short: str = ""  # name in tables; the title unless given
    seed_sd: float = 0.06
    """Standard deviation of the ln of losses between seeds.

    The default is that of small image and sound classifiers that were trained for ten seconds on a busy machine: 0.05
    over six seeds of a model with 39 thousand parameters, and 0.058 over five seeds of another model.
    """

    least_share: float = 1 / 9  # share of a full training run after which losses distinguish shapes
    of: Callable[[Mapping[str, object], Request], Any | None] | None = None
    """For a derived metric: computes its value from costs (numbers or arrays) and the request; None if unknown."""
    requires: str = ""  # for a derived metric: what a request must contain

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """``maximize`` if higher displayed values are better, else ``minimize``."""
        return "maximize" if self.more_is_better else "minimize"

    def shown(self, loss: float) -> float:
        """Converts a loss to the displayed value.

        >>> Metric(name="accuracy", title="accuracy", unit="share", more_is_better=True).shown(0.25)
        0.75
        """
        return 1.0 - loss if self.more_is_better else loss

    def text(self, loss: float) -> str:
        """The displayed value with its unit.

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
