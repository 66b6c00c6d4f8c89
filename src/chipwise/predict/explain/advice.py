"""Advice: a change, its predicted gain, and whether the gain is certain.

Rules propose changes; the gain is the difference between the prices of the changed and the original question.
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
        how: How to apply it.
        changed: The question after the change.
        headline: The metric: tpot_p50, ttft_p50, throughput, peak_memory, joules_per_token or usd_per_1k_tokens.
        quality: How it may change quality, and what would have to be trained; empty if quality does not change.
        source: Source of the advice: a paper, documentation or chipwise's own measurement.
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
    """One function in ``predict/explain/rules``: it takes a case and proposes changes, or none.

    It must not predict gains itself: ``changed`` is priced by the cost model that priced the case.
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
    """A priced proposal. ``sure`` means that the whole interval of the headline's gain is clearly above 1 and the model
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
        """Whether the advice is urgent, or its gain is certain and 5 % or more."""
        return self.proposal.urgent or (self.sure and self.headline.ratio.value >= WORTH_SHOWING)
