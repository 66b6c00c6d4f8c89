"""Predicts times of models on another chip from its data sheet, as ``chipwise estimate`` does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from chipwise.design.shrink.block_costs import Times
from chipwise.errors import ChipwiseError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.ops.workload import Workload
from chipwise.predict.cost.model import CostEstimate
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import estimates
from chipwise.predict.served.request import Request


@dataclass(frozen=True, slots=True)
class ChipClock:
    """A :class:`chipwise.design.shrink.block_costs.Clock` whose times are predictions.

    Predictions for similar models have nearly the same error, so the ratio of a pruned model's time to the original's
    is more certain than either time.
    """

    workload: Workload
    weights: str
    device: str
    runtime: str | None = None  # None: the device's own
    generates: bool = True  # whether the original does; an encoder that lost all attention must not count as a decoder

    @property
    def about(self) -> Mapping[str, object]:
        """Identifies the chip and its runtime in stored results."""
        return {"device": self.device, "runtime": self.runtime}

    @property
    def where(self) -> str:
        """The chip to which the times apply, as text for messages."""
        return f"on {self.device}, as predicted"

    def variants(self, archs: Sequence[ArchSpec], on_progress: Callable[[int, int], None]) -> list[Times]:
        """Predicted times of all models."""
        found = self.requests(archs)
        on_progress(len(archs), len(archs))
        return found

    def requests(self, archs: Sequence[ArchSpec]) -> list[Times]:
        """Predicted median times of each model."""
        return [self._times(each) for each in self.estimates(archs)]

    def estimates(self, archs: Sequence[ArchSpec]) -> list[CostEstimate]:
        """Full estimates of all models, with intervals.

        Raises:
            ChipwiseError: The chip is unknown, does not support the format, or has too little memory for a model.
        """
        load = self.workload
        found = estimates(
            [
                Request(
                    model=arch,
                    deployment=Deployment(device=self.device, runtime=self.runtime, weights=self.weights),
                    batch=load.batch,
                    prompt_tokens=load.prompt_tokens,
                    new_tokens=load.new_tokens,
                )
                for arch in archs
            ]
        )
        if wrong := next((each for each in found if isinstance(each, ChipwiseError)), None):
            raise wrong
        return [each for each in found if isinstance(each, CostEstimate)]

    def _times(self, found: CostEstimate) -> Times:
        if not self.generates:
            return {"ttft": found.ttft_s, "request": found.ttft_s}
        after = (self.workload.new_tokens - 1) * found.tpot_s
        return {"ttft": found.ttft_s, "tpot": found.tpot_s, "request": found.ttft_s + after}
