"""The protocol of a target, the device and runtime that will serve a model: it predicts costs and may measure them.

A search uses its target only through this protocol. ``TARGETS`` lists the kinds of targets; the conformance tests are
in ``api/testing/target_suite.py``.
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

SPREAD_DESIGNS = 16  # designs of the space from which the width of intervals is estimated

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
"""For each kind of device in ``target.device``: ``open(spec, space, folder, on_detail) -> Target``."""


class Target(Protocol):
    """A device with a runtime, as a search sees it. Metrics have the names in ``design/limits.py`` and SI units."""

    @property
    def measures(self) -> bool:
        """Whether exported models can be measured on the device now; if not, the target only predicts."""
        ...

    @property
    def title(self) -> str:
        """The device's title, for reports."""
        ...

    @property
    def limits(self) -> tuple[Constraint, ...]:
        """Limits that the device itself sets, such as its memory."""
        ...

    def with_sustained_limits(self, spec: RunSpec) -> RunSpec:
        """Converts the limits on sustained speed in ``spec`` to limits on the median of a cold device.

        Raises:
            Unsupported: There is a limit on sustained speed, but the device's speed under sustained load is unknown.
        """
        ...

    def metrics(self, rows: Rows) -> Mapping[str, Float64Array]:
        """Predicted metrics of canonical rows (encoded designs), each (n,)."""
        ...

    def predict(self, design: Design) -> dict[str, Bounds]:
        """Predicted value and 90 % interval of each metric; the interval's ends are None if it was not validated."""
        ...

    def spreads(self, designs: Sequence[Design]) -> Mapping[str, float]:
        """Maps each metric to the standard deviation of ln(measured / predicted) for designs like ``designs``."""
        ...

    def novelty(self, design: Design) -> float:
        """Novelty of a design: 0 if it was measured, 1 if it is far from all measured designs."""
        ...

    def learn(self, measured: Iterable[tuple[Design, Mapping[str, float]]]) -> None:
        """Updates predictions with all measurements of the run so far; earlier corrections are replaced."""
        ...

    def measure(self, design: Design, folder: Path) -> Measurement:
        """Measures a design with random weights.

        Raises:
            MeasurementError: The design hangs, crashes or needs too much memory, or the target cannot measure.
        """
        ...

    def alternately(self, paths: list[Path]) -> list[Measurement | MeasurementError]:
        """Measures exported files alternately; for a file that fails, the result is its error."""
        ...


def limits_on_predictions(spec: RunSpec, space: SearchSpace, target: Target) -> tuple[Constraint, ...]:
    """The limits of the run and of the device, for screening; they are tightened if the target cannot measure.

    A predicted value within a tightened limit meets the original limit with the run's confidence.
    """
    limits = (*spec.limits, *target.limits)
    if target.measures:
        return limits
    return tightened(limits, spreads_in(space, target, seed=spec.seed), spec.confidence_share)


def spreads_in(space: SearchSpace, target: Target, *, seed: int) -> Mapping[str, float]:
    """The target's :meth:`Target.spreads` for a few random designs of ``space``."""
    sample = space.sample(SPREAD_DESIGNS, np.random.default_rng([seed, 19]))
    return target.spreads([space.design(row) for row in sample])


def kind_of(device: str) -> str:
    """The key in ``TARGETS`` for a device as named in a run file."""
    if device == "local":
        return "local"
    if device.startswith("ssh:"):
        return "ssh"
    return "profile" if device.endswith(".json") else "sheet"


def open_target(
    spec: RunSpec, space: SearchSpace, folder: RunFolder, on_detail: Callable[[str], None] = lambda detail: None
) -> Target:
    """Opens the target of a run. A calibration is stored in the run's folder.

    Args:
        spec: The run.
        space: The run's space.
        folder: The run's folder.
        on_detail: Called with a description of the current step, if opening takes long.

    Raises:
        UnknownName: The device or the runtime is unknown.
        Unsupported: The device does not have the runtime, or the runtime cannot serve designs of the space.
    """
    opened: Callable[..., Target] = TARGETS.load(kind_of(spec.target.device))
    return opened(spec, space, folder, on_detail)
