"""Costs of one architecture on several devices, and how far choices carry over between them.

Devices differ by orders of magnitude, so costs are compared as shares: a candidate's cost on a device over that of the
device's typical candidate, the median of a sample of the space that is the same for all. The worst share is that of the
device that a candidate suits least.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from chipwise.core.arrays import Float64Array
from chipwise.core.errors import InputError
from chipwise.core.statistics import kendall_tau
from chipwise.hardware import datasheet
from chipwise.ops import Workload
from chipwise.optim.pareto import hypervolume, non_dominated
from chipwise.run.spec import RunSpec
from chipwise.space import SearchSpace
from chipwise.space.constraints import MORE_IS_BETTER, POWER_METRICS, SPENDING
from chipwise.space.device_pricer import DevicePricer, device_metrics
from chipwise.space.search_space import Rows

ACROSS = "across."  # prefix of a metric's name: its value across several devices
How = Literal["worst", "weighted"]
Metrics = Callable[[Rows], Mapping[str, Float64Array]]
LOCAL = "local"  # the device that a run measures on
_TYPICAL = 4_096  # candidates drawn for the typical cost of each device


@dataclass(frozen=True)
class Transfer:
    """Transfer of choices from the device of a row to that of a column; (devices, devices) each.

    Attributes:
        devices: Their names.
        costs: Kendall's rank correlation of what random candidates cost on the two.
        fronts: Of the hypervolume that the column's own front has there, the share that the row's front reaches.
    """

    devices: tuple[str, ...]
    costs: Float64Array
    fronts: Float64Array


class Targets:
    """Costs of candidates across devices.

    Args:
        space: The space.
        metrics: Predicted metrics of rows by device; every device has metrics of the same names.
        weights: Of each device, where costs are weighted; 1 unless given.
        seed: Of the sample that defines what is typical.

    Raises:
        InputError: There is no device.
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
            raise InputError("name at least one device")
        self.devices = tuple(metrics)
        self._metrics = dict(metrics)
        given = weights or {}
        self._weights = np.array([given.get(name, 1.0) for name in self.devices])
        self._sample = space.sample(_TYPICAL, np.random.default_rng([seed, 11]))
        self.typical: dict[str, dict[str, float]] = {}
        for name in self.devices:
            self.refresh_typical(name)

    def refresh_typical(self, name: str) -> None:
        """Computes the typical costs of a device again, whose metrics have changed."""
        found = self._metrics[name](self._sample)
        self.typical[name] = {metric: float(np.median(values)) for metric, values in found.items()}

    def costs(self, rows: Rows, metric: str) -> Float64Array:
        """The metric on every device, in its own unit, (n, devices)."""
        return np.stack([np.asarray(self._metrics[name](rows)[metric], float) for name in self.devices], axis=1)

    def shares(self, rows: Rows, metric: str) -> Float64Array:
        """The metric over that of each device's typical candidate, (n, devices)."""
        shares: Float64Array = self.costs(rows, metric) / np.array(
            [self.typical[name][metric] for name in self.devices]
        )
        return shares

    def across(self, rows: Rows, metric: str, how: How) -> Float64Array:
        """One share for all devices, (n,): the worst, or the weighted geometric mean."""
        shares = self.shares(rows, metric)
        if how == "worst":
            worst: Float64Array = shares.min(axis=1) if metric in MORE_IS_BETTER else shares.max(axis=1)
            return worst
        mean: Float64Array = np.exp(np.log(shares) @ self._weights / self._weights.sum())
        return mean

    def fronts(self, rows: Rows, quality: Float64Array, metric: str) -> dict[str, NDArray[np.int64]]:
        """For each device, which of the rows lie on its front of ``quality`` (to be minimised) and the metric."""
        costs = self.costs(rows, metric)
        return {
            name: np.flatnonzero(non_dominated(np.column_stack([quality, costs[:, i]])))
            for i, name in enumerate(self.devices)
        }

    def transfer(self, rows: Rows, quality: Float64Array, metric: str) -> Transfer:
        """Transfer of costs and fronts between devices; fronts are those of the trials ``rows``."""
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


def sheet_metrics(
    space: SearchSpace, workload: Workload, devices: Sequence[str], *, joules: Container[str] = ()
) -> dict[str, Metrics]:
    """Metrics of data sheets by device name; of those in ``joules`` power and energy too.

    Raises:
        UnknownName: There is no such device.
        Unsupported: A device lacks a rate that the space needs.
    """
    found: dict[str, Metrics] = {}
    for name in devices:
        sheet = datasheet.load(name)
        found[sheet.name] = device_metrics(space, workload, DevicePricer(sheet, joules=name in joules))
    return found


class RunTargets:
    """The other devices of a run, next to the one that it measures on.

    Args:
        spec: The run.
        space: Its space.
        local: Predicted metrics on the device that is measured; they change as measurements correct them.

    Raises:
        UnknownName: There is no such device.
        Unsupported: A data sheet lacks a rate that the space needs.
    """

    def __init__(self, spec: RunSpec, space: SearchSpace, local: Metrics) -> None:
        self._spec, self._local = spec, local
        sought = {goal.metric for goal in spec.goals}
        with_energy = [
            item.device
            for item in spec.targets
            if {*POWER_METRICS} & (sought | {limit.metric for limit in item.limits})
        ]
        self._sheets = sheet_metrics(space, spec.workload, [item.device for item in spec.targets], joules=with_energy)
        weights = {name: item.weight for name, item in zip(self._sheets, spec.targets, strict=True)}
        self.targets = Targets(space, {LOCAL: local, **self._sheets}, weights=weights, seed=spec.seed)

    def metrics(self, rows: Rows) -> dict[str, Float64Array]:
        """Predicted metrics of rows: on the measured device, on others, and what objectives count as across them.

        An objective in seconds, tokens per second, watts, joules or dollars counts as the share across devices, in the
        unit of the device that is measured.
        """
        known = dict(self._local(rows))
        self.targets.refresh_typical(LOCAL)
        for name, sheet in self._sheets.items():
            known |= {f"{metric}@{name}": values for metric, values in sheet(rows).items()}
        for goal in self._spec.goals:
            if goal.metric in ("ttft_p50", "tpot_p50", "throughput", *SPENDING):
                share = self.targets.across(rows, goal.metric, self._spec.across)
                known[f"{ACROSS}{goal.metric}"] = share * self.targets.typical[LOCAL][goal.metric]
        return known
