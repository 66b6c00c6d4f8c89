"""Advice: a change, its predicted gain, and whether the gain is certain.

Rules propose changes. The gain of a change is the predicted cost before the change compared with the predicted cost
after it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, Protocol

from chipwise.predict.cost.model import Predicted
from chipwise.predict.explain.question import Case, CostQuestion

WORTH_SHOWING = 1.05  # improvement factor
Touches = Literal["architecture", "precision", "batching", "runtime", "parallelism", "hardware", "training"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A proposed change: what to change and how, its possible effect on quality, and the source.

    Attributes:
        title: One line that names the change and the numbers, such as ``vocabulary 50257 -> 50304``.
        touches: The kind of change.
        how: How to apply the change.
        changed: The model, formats, workload and device after the change.
        headline: The metric that the change is meant to improve: tpot_p50, ttft_p50, throughput, peak_memory,
            joules_per_token or usd_per_1k_tokens.
        quality: How the change may affect the model's quality, and what would have to be trained again; empty if
            quality stays the same.
        source: Source of the advice: a paper, documentation or chipwise's own measurement.
        urgent: Whether the model needs the change to run at all.
    """

    title: str
    touches: Touches
    how: str
    changed: CostQuestion
    headline: str = "tpot_p50"
    quality: str = ""
    source: str = ""
    urgent: bool = False


class Rule(Protocol):
    """A function in ``predict/explain/rules`` that takes a case and proposes any number of changes to it.

    A rule does not predict gains: the cost model that estimated the case also estimates each proposal's ``changed``.
    """

    def __call__(self, case: Case) -> Iterable[Proposal]:
        """A few proposals at most, the most promising first."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """A metric before and after a change, and the improvement factor: before / after, or after / before for rates."""

    metric: str
    before: float
    after: float
    ratio: Predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A proposal with its predicted gains.

    ``fits`` means that the changed model fits its device, or that the unchanged model did not fit either. ``sure``
    means three things: ``fits`` holds, the headline metric improves by a factor of 1.01 or more, and the whole interval
    of this factor is above 1.
    """

    rule: str
    proposal: Proposal
    headline: Gain
    gains: tuple[Gain, ...]
    sure: bool
    fits: bool = True

    @property
    def worth_showing(self) -> bool:
        """Whether the advice is urgent, or its gain is certain and 5 % or more."""
        return self.proposal.urgent or (self.sure and self.headline.ratio.value >= WORTH_SHOWING)
