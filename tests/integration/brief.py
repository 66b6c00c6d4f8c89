"""Searches of tests measure briefly: what they show does not depend on how narrow a measurement's interval is.

Calibration times half as many models as a user's shortest, and no single nodes, whose rates are those of a known
machine: ``tests/unit/deploy/measure`` times nodes. ``main`` is the command line with that; :func:`measure_briefly`
does it in a test's own process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from chipwise.deploy.calibrate import calibrate
from chipwise.deploy.measure import harness
from chipwise.design.phases import run_budget
from chipwise.design.targets import bench, local
from support.machines import core_like

MEASURE = {"seconds": 0.2, "attempts": 1}
CALIBRATE_S = 8.0
MODELS = {"with nodes": (6, 6), "alone": (12, 12)}
FINALS_S = 2.0


def measure_briefly(replace: Callable[[object, str, Any], None] = setattr) -> None:
    """Shortens measurements, calibration and the finals, with ``replace``, such as a monkeypatch's ``setattr``."""
    replace(bench, "measure", lambda *what, **how: harness.measure(*what, **how | MEASURE))
    replace(bench, "measure_alternately", lambda *what, **how: harness.measure_alternately(*what, **how | MEASURE))
    brief = {"seconds": CALIBRATE_S, "base": core_like()}
    replace(local, "calibrate", lambda **how: calibrate.calibrate(**how | brief))
    replace(calibrate, "MODELS", MODELS)
    replace(run_budget, "FINALS_S", FINALS_S)


def main() -> None:
    """The command line."""
    from chipwise.cli import main

    measure_briefly()
    main()
