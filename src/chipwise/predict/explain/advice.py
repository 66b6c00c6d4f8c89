"""Advice: a change, its predicted gain, and how certain that is. Rules propose; re-pricing decides."""

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
    """A proposed change: the change, the method, the possible loss of quality, and the source.

    Attributes:
        title: One line that names the change and the numbers, such as ``vocabulary 50257 -> 50304``.
        touches: What kind of thing is changed.
        how: How to apply it.
        changed: The question after the change.
        headline: The metric: tpot_p50, ttft_p50, throughput, peak_memory, joules_per_token or usd_per_1k_tokens.
        quality: What it may cost or gain in quality, and what would have to be trained; empty if nothing.
        source: Where the advice comes from: a paper, a white paper, a measurement of ours.
        urgent: Whether the model does not run without the change.
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
    """One file of ``explaining/rules``: a function that looks at a case and proposes changes, or none.

    It must not predict gains itself: the engine prices ``changed`` with the model that priced the case.
    """

    def __call__(self, case: Case) -> Iterable[Proposal]:
        """Proposals, the strongest first; at most a few."""
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
    """A priced proposal. ``sure``: the whole interval of its headline is above 1 by enough to matter, and the model
    still fits its device (``fits``).
    """

    rule: str
    proposal: Proposal
    headline: Gain
    gains: tuple[Gain, ...]
    sure: bool
    fits: bool = True

    @property
    def worth_showing(self) -> bool:
        """Whether it is urgent, or a sure gain of 5 % or more."""
        return self.proposal.urgent or (self.sure and self.headline.ratio.value >= WORTH_SHOWING)
