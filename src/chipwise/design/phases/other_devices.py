"""Compares the costs of designs on several devices, and finds how well designs chosen for one device suit others.

Costs on different devices differ by orders of magnitude, so they are compared as shares: a candidate's cost on a device
divided by the cost of a typical candidate on that device (the median over one random sample of the space). A candidate
is worst suited to the device on which its share is largest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.statistics import kendall_tau
from chipwise.design.limits import MORE_IS_BETTER, SPENDING, Constraint, shares_asked
from chipwise.design.run.spec import RunSpec
from chipwise.design.strategies.pareto import hypervolume, non_dominated
from chipwise.design.targets.chance import Bounds, chances_of, kept, tightened
from chipwise.design.targets.representable import check_space
from chipwise.design.targets.sheet import SheetTarget, needs_energy
from chipwise.design.targets.target import spreads_in
from chipwise.errors import InputError, SpecError, Unsupported
from chipwise.hardware.runtime import runtimes_for
from chipwise.model.arch.design import Design
from chipwise.model.space.search_space import Rows, SearchSpace

ACROSS = "across."  # prefix of a metric's name, for its value over several devices
How = Literal["worst", "weighted"]
Metrics = Callable[[Rows], Mapping[str, Float64Array]]
LOCAL = "local"  # name of the run's own device
_TYPICAL = 4_096  # random candidates from which the typical cost on each device is computed


@dataclass(frozen=True)
class Transfer:
    """How well designs chosen for one device (row) suit another (column); both matrices are (devices, devices).

    Attributes:
        devices: Names of the devices.
        costs: Kendall's rank correlation between the costs of random candidates on two devices.
        fronts: For row device A and column device B: the hypervolume, with costs on B, of the designs on A's front,
            divided by the hypervolume of B's own front.
    """

    devices: tuple[str, ...]
    costs: Float64Array
    fronts: Float64Array


class Targets:
    """Computes the costs of candidates on several devices.

    Args:
        space: The space.
        metrics: For each device, a function that predicts the metrics of encoded designs (rows); the metrics have the
            same names on all devices.
        weights: Weight of each device in the weighted mean. Default: 1.
        seed: Seed of the sample of typical candidates.

    Raises:
        InputError: No device is given.
    """

    def __init__(
        self,
        space: SearchSpace,
        metrics: Mapping[str, Metrics],
        *,
        weights: Mapping[str, float] | None = None,
        seed: int,
    ) -> None:
        if not metrics:
            raise InputError("name at least one device to compare costs on")
        self.devices = tuple(metrics)
        self._metrics = dict(metrics)
        given = weights or {}
        self._weights = np.array([given.get(name, 1.0) for name in self.devices])
        self._sample = space.sample(_TYPICAL, np.random.default_rng([seed, 11]))
        self.typical: dict[str, dict[str, float]] = {}
        for name in self.devices:
            self.refresh_typical(name)

    def refresh_typical(self, name: str) -> None:
        """Recomputes the typical cost on a device whose metrics have changed."""
        found = self._metrics[name](self._sample)
        self.typical[name] = {metric: float(np.median(values)) for metric, values in found.items()}

    def costs(self, rows: Rows, metric: str) -> Float64Array:
        """The metric of each row on every device, in the metric's unit, (n, devices)."""
        return np.stack([np.asarray(self._metrics[name](rows)[metric], float) for name in self.devices], axis=1)

    def shares(self, rows: Rows, metric: str) -> Float64Array:
        """The metric of each row divided by that of the typical candidate on the same device, (n, devices)."""
        shares: Float64Array = self.costs(rows, metric) / np.array(
            [self.typical[name][metric] for name in self.devices]
        )
        return shares

    def across(self, rows: Rows, metric: str, how: How) -> Float64Array:
        """Combines the shares of all devices into one per row, (n,): the worst one, or the weighted geometric mean."""
        shares = self.shares(rows, metric)
        if how == "worst":
            worst: Float64Array = shares.min(axis=1) if metric in MORE_IS_BETTER else shares.max(axis=1)
            return worst
        mean: Float64Array = np.exp(np.log(shares) @ self._weights / self._weights.sum())
        return mean

    def fronts(self, rows: Rows, quality: Float64Array, metric: str) -> dict[str, NDArray[np.int64]]:
        """For each device, the indices of rows on its Pareto front of ``quality`` (to be minimised) and the metric."""
        costs = self.costs(rows, metric)
        return {
            name: np.flatnonzero(non_dominated(np.column_stack([quality, costs[:, i]])))
            for i, name in enumerate(self.devices)
        }

    def transfer(self, rows: Rows, quality: Float64Array, metric: str) -> Transfer:
        """Computes how well costs and fronts transfer between devices; the fronts are those of the trials ``rows``."""
        count = len(self.devices)
        drawn = self.costs(self._sample[:1_000], metric)
        ranks = np.ones((count, count))
        for i in range(count):
            for j in range(i):
                ranks[i, j] = ranks[j, i] = kendall_tau(drawn[:, i], drawn[:, j])
        carried = np.full((count, count), np.nan)
        if len(rows):
            shares = self.shares(rows, metric)
            found = self.fronts(rows, quality, metric)
            for j in range(count):
                points = np.column_stack([quality, shares[:, j]])
                corner = points.max(axis=0) + 0.01 * np.maximum(np.ptp(points, axis=0), 1e-12)
                whole = hypervolume(points, corner)
                for i, name in enumerate(self.devices):
                    carried[i, j] = hypervolume(points[found[name]], corner) / whole
        return Transfer(self.devices, ranks, carried)


class OtherDevices:
    """The other devices that a run file names besides its target; predicts costs as ``chipwise estimate`` does.

    Args:
        spec: The run.
        space: Its space.

    Raises:
        SpecError: The runtime of a device cannot serve designs of the space; the message names the field.
    """

    def __init__(self, spec: RunSpec, space: SearchSpace) -> None:
        self._space, self._seed, self._confidence = space, spec.seed, spec.confidence_share
        self.weights: dict[str, float] = {}
        self.runtimes: dict[str, str] = {}
        self.sheets: dict[str, SheetTarget] = {}
        self._limits: dict[str, tuple[Constraint, ...]] = {}
        for i, item in enumerate(spec.targets):
            served, sheet = item.target, item.sheet
            try:
                check_space(space, served.runtime)
            except Unsupported as error:
                able = ", ".join(name for name in runtimes_for(sheet) if name != served.runtime)
                told = f"{error}; this device's runtime is {served.runtime}, and {sheet.name} also has: {able}"
                raise SpecError(told, field=f"targets[{i}].runtime") from None
            self.sheets[sheet.name] = SheetTarget(
                space,
                sheet,
                served=served,
                workload=spec.workload,
                seed=spec.seed,
                energy=needs_energy((*item.limits, *spec.goals)),
                used=bool(shares_asked((*item.limits, *spec.goals))),
                prompt_p99=spec.prompt_p99,
            )
            self.weights[sheet.name], self.runtimes[sheet.name] = item.weight, served.runtime
            self._limits[sheet.name] = (*item.limits, *self.sheets[sheet.name].limits)

    def limits_on_rows(self) -> tuple[Constraint, ...]:
        """The limits on the other devices, tightened so that predictions within them hold with the run's confidence."""
        found: list[Constraint] = []
        for name, target in self.sheets.items():
            spreads = spreads_in(self._space, target, seed=self._seed)
            found += [_there(limit, name) for limit in tightened(self._limits[name], spreads, self._confidence)]
        return tuple(found)

    def predict(self, design: Design) -> dict[str, Bounds]:
        """Each metric on the other devices, named ``metric@device``, with its 90 % interval."""
        return {
            f"{metric}@{name}": bounds
            for name, target in self.sheets.items()
            for metric, bounds in target.predict(design).items()
        }

    def chances(self, design: Design) -> dict[str, float | None]:
        """Maps each ``metric@device`` with a hard limit to the probability that the limit is met; None if unknown."""
        hard = [limit for limit in self._each_limit() if limit.hard]
        return chances_of(hard, self.predict(design)) if hard else {}

    def keeps_limits(self, design: Design) -> bool:
        """Whether a design is predicted to meet all hard limits on other devices, with the run's confidence."""
        limits = self._each_limit()
        return not limits or kept(limits, self.predict(design), {}, self._confidence)

    def _each_limit(self) -> list[Constraint]:
        return [_there(limit, name) for name, limits in self._limits.items() for limit in limits]


def _there(limit: Constraint, device: str) -> Constraint:
    return replace(limit, metric=f"{limit.metric}@{device}")


class AcrossDevices:
    """Predicts the metrics of encoded designs (rows) on all devices of a run.

    Args:
        spec: The run.
        space: Its space.
        others: The other devices of the run.
        local: Predicts metrics on the run's target; predictions change as measurements correct them.
    """

    def __init__(self, spec: RunSpec, space: SearchSpace, others: OtherDevices, local: Metrics) -> None:
        self._spec, self._local, self._others = spec, local, others
        sheets = {name: target.metrics for name, target in others.sheets.items()}
        self.targets = Targets(space, {LOCAL: local, **sheets}, weights=others.weights, seed=spec.seed)

    def metrics(self, rows: Rows) -> dict[str, Float64Array]:
        """Predicted metrics of rows on the run's target, on the other devices, and combined over all devices.

        Objectives in seconds, tokens per second, watts, joules or dollars are combined: the combined share is
        multiplied by the cost of a typical candidate on the run's target.
        """
        known = dict(self._local(rows))
        self.targets.refresh_typical(LOCAL)
        for name, sheet in self._others.sheets.items():
            known |= {f"{metric}@{name}": values for metric, values in sheet.metrics(rows).items()}
        for goal in self._spec.goals:
            if goal.metric in ("ttft_p50", "tpot_p50", "throughput", *SPENDING):
                share = self.targets.across(rows, goal.metric, self._spec.across)
                known[f"{ACROSS}{goal.metric}"] = share * self.targets.typical[LOCAL][goal.metric]
        return known
