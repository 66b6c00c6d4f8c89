"""Target: the device and runtime that will serve a model, with its predictions and measurements.

A search uses its target only through this protocol. The kinds are the rows of ``TARGETS``; the conformance suite is
``api/testing/target_suite.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from chipwise.core.arrays import Float64Array
from chipwise.core.tables import Table
from chipwise.deploy.measure.measurement import Measurement
from chipwise.design.limits import Constraint
from chipwise.design.run.folder import RunFolder
from chipwise.design.run.spec import RunSpec
from chipwise.design.targets.chance import Bounds, tightened
from chipwise.errors import MeasurementError
from chipwise.model.arch.design import Design
from chipwise.model.space.search_space import Rows, SearchSpace

SPREAD_DESIGNS = 16  # designs of the space for estimating the width of intervals

TARGETS = Table(
    "target",
    "chipwise.targets",
    {
        "local": "chipwise.design.targets.local:open_local",
        "ssh": "chipwise.design.targets.sheet:open_ssh",
        "profile": "chipwise.design.targets.local:open_profile",
        "sheet": "chipwise.design.targets.sheet:open_sheet",
    },
)
"""``open(spec, space, folder, on_detail) -> Target`` by kind of device in ``target.device``."""


class Target(Protocol):
    """A device with a runtime, as a search uses it. Metrics are named as in ``design/limits.py``, in SI units."""

    @property
    def measures(self) -> bool:
        """Whether exported models can be measured there now; otherwise there are only predictions."""
        ...

    @property
    def title(self) -> str:
        """The device's title."""
        ...

    @property
    def limits(self) -> tuple[Constraint, ...]:
        """Limits of the device itself, such as its memory."""
        ...

    def with_sustained_limits(self, spec: RunSpec) -> RunSpec:
        """``spec`` with limits on sustained speed converted to limits on the cold median.

        Raises:
            Unsupported: There is such a limit, and the device's behaviour under sustained load is unknown.
        """
        ...

    def metrics(self, rows: Rows) -> Mapping[str, Float64Array]:
        """Predicted metrics of canonical rows, each (n,)."""
        ...

    def predict(self, design: Design) -> dict[str, Bounds]:
        """Predicted value and 90 % interval of each metric; bounds are None if no interval was validated."""
        ...

    def spreads(self, designs: Sequence[Design]) -> Mapping[str, float]:
        """Standard deviation of ln(measured / predicted) by metric, for designs like these."""
        ...

    def novelty(self, design: Design) -> float:
        """Novelty of a design: 0 if it was measured, 1 if it is far from all measured designs."""
        ...

    def learn(self, measured: Iterable[tuple[Design, Mapping[str, float]]]) -> None:
        """Updates predictions with all measurements of the run so far; replaces earlier corrections."""
        ...

    def measure(self, design: Design, folder: Path) -> Measurement:
        """Measures a design with random weights.

        Raises:
            MeasurementError: The design hangs, crashes or needs too much memory, or the target cannot measure.
        """
        ...

    def alternately(self, paths: list[Path]) -> list[Measurement | MeasurementError]:
        """Measures exported files in alternation; a failed file has its error as result."""
        ...


def limits_on_predictions(spec: RunSpec, space: SearchSpace, target: Target) -> tuple[Constraint, ...]:
    """The run's and the device's limits for screening. Without measurements they are tightened by the run's confidence.

    A predicted value that keeps a tightened limit keeps the original limit with the run's confidence.
    """
    limits = (*spec.limits, *target.limits)
    if target.measures:
        return limits
    return tightened(limits, spreads_in(space, target, seed=spec.seed), spec.confidence_share)


def spreads_in(space: SearchSpace, target: Target, *, seed: int) -> Mapping[str, float]:
    """The target's :meth:`Target.spreads` for a few designs of ``space``."""
    sample = space.sample(SPREAD_DESIGNS, np.random.default_rng([seed, 19]))
    return target.spreads([space.design(row) for row in sample])


def kind_of(device: str) -> str:
    """The key in ``TARGETS`` for ``device``."""
    if device == "local":
        return "local"
    if device.startswith("ssh:"):
        return "ssh"
    return "profile" if device.endswith(".json") else "sheet"


def open_target(
    spec: RunSpec, space: SearchSpace, folder: RunFolder, on_detail: Callable[[str], None] = lambda detail: None
) -> Target:
    """Opens the target of a run. Its calibration is stored in the run's folder.

    Args:
        spec: The run.
        space: Its space.
        folder: Its folder.
        on_detail: Called with a description of the current step, if opening takes long.

    Raises:
        UnknownName: There is no such device or runtime.
        Unsupported: The runtime does not exist there, or cannot serve designs of the space.
    """
    opened: Callable[..., Target] = TARGETS.load(kind_of(spec.target.device))
    return opened(spec, space, folder, on_detail)
