"""TargetSuite: the contract of targets, checked on designs of a small space.

Subclass it in a test module and return a target and its space from ``make``; pytest then runs every check on it::

    class TestMyTarget(TargetSuite):
        def make(self):
            return MyTarget(...), space

The most important checks: predictions for one design agree with those for many rows, and the target learns from
measurements.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from chipwise.design.limits import METRICS
from chipwise.design.targets.chance import values_of
from chipwise.design.targets.target import Target
from chipwise.errors import MeasurementError
from chipwise.model.space.search_space import SearchSpace

NEEDED = {"ttft_p50", "tpot_p50", "peak_memory", "parameters"}
DESIGNS = 8


class TargetSuite:
    """Checks that every target must pass."""

    def make(self) -> tuple[Target, SearchSpace]:
        """The target under test, and the search space of its designs."""
        raise NotImplementedError("override `make`")

    def test_rows_and_designs_are_predicted_alike(self) -> None:
        """Predictions for a table of designs differ by at most 5 % from predictions for the designs one by one."""
        target, space = self.make()
        rows = space.sample(DESIGNS, np.random.default_rng(1))
        table = target.metrics(rows)
        assert set(table) >= NEEDED
        for i, row in enumerate(rows):
            alone = values_of(target.predict(space.design(row)))
            for metric in NEEDED & set(alone):
                assert table[metric][i] == pytest.approx(alone[metric], rel=0.05), metric

    def test_predictions_are_of_known_metrics_and_intervals_hold_their_values(self) -> None:
        """Predicted metrics have known names. Each interval contains the predicted value, or both ends are ``None``."""
        target, space = self.make()
        predicted = target.predict(space.design(space.sample(1, np.random.default_rng(2))[0]))
        assert set(predicted) <= set(METRICS)
        for metric, (value, low, high) in predicted.items():
            assert value is not None, metric
            assert math.isfinite(value), metric
            assert (low is None) == (high is None), metric
            assert low is None or high is None or low <= value <= high, metric

    def test_no_design_is_known_before_it_was_measured(self) -> None:
        """The novelty of a design is a number from 0 to 1 before any measurement."""
        target, space = self.make()
        assert 0.0 <= target.novelty(space.design(space.sample(1, np.random.default_rng(3))[0])) <= 1.0

    def test_learning_moves_predictions_towards_what_was_measured_and_can_be_undone(self) -> None:
        """If a machine is 1.6 times slower than predicted, six measurements at least halve the error of predictions.

        Learning from an empty list restores the original predictions.
        """
        target, space = self.make()
        designs = [space.design(row) for row in space.sample(DESIGNS, np.random.default_rng(4))]
        before = [values_of(target.predict(design)) for design in designs]
        metrics = ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "peak_memory")
        truth = [{name: 1.6 * each.get(name, 2 * each["tpot_p50"]) for name in metrics} for each in before]
        target.learn(list(zip(designs[:6], truth[:6], strict=True)))
        for design, found in zip(designs[6:], truth[6:], strict=True):
            assert abs(math.log(values_of(target.predict(design))["tpot_p50"] / found["tpot_p50"])) < 0.5 * math.log(
                1.6
            )
        target.learn([])
        for design, first in zip(designs, before, strict=True):
            assert values_of(target.predict(design))["tpot_p50"] == pytest.approx(first["tpot_p50"], rel=1e-9)

    def test_what_cannot_measure_says_so(self, tmp_path: Path) -> None:
        """A target that cannot measure raises a measurement error that says what to do."""
        target, space = self.make()
        if target.measures:
            pytest.skip("it measures")
        with pytest.raises(MeasurementError):
            target.measure(space.design(space.sample(1, np.random.default_rng(5))[0]), tmp_path)

    def test_its_title_names_it(self) -> None:
        """The title, shown in every report, names the target."""
        assert self.make()[0].title.strip()
