"""Bandwidths read off a calibration's curve."""

from __future__ import annotations

import pytest

from chipwise.deploy.calibrate.node_rates import KNOTS_BYTES, bandwidths
from chipwise.hardware.device import Curve


def test_a_cache_whose_cost_could_not_be_seen_has_no_bandwidth_rather_than_an_infinite_one() -> None:
    """Streaming from the private caches may hide behind arithmetic: the fit then gives 0 seconds a byte there."""
    rates = (0.0, *(1e-11 for _ in KNOTS_BYTES[1:-1]), 1e-10)
    found = bandwidths({"matmul.fp32.vector": Curve(working_set_bytes=KNOTS_BYTES, s_per_byte=rates)})
    assert found == {"shared cache": pytest.approx(1e11), "DRAM": pytest.approx(1e10)}
