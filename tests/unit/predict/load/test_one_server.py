"""One server with random arrivals: known laws of queues, and what cannot be answered in time."""

from __future__ import annotations

import math

import pytest

from chipwise.predict.load.one_server import rate_within


def test_a_wide_limit_allows_almost_all_that_a_server_can_do() -> None:
    assert 0.95 < rate_within([0.001], 1.0) / 1000 < 1.0


def test_exponential_service_is_answered_as_the_law_of_one_queue_says() -> None:
    """M/M/1: the time of an answer is exponential with rate (mu - lambda), so its P99 is ln(100) / (mu - lambda)."""
    count = 2_000
    service = [-math.log(1 - (i + 0.5) / count) / 1000 for i in range(count)]  # mu of 1,000 a second
    limit_s = 0.02
    expected = 1000 - math.log(100) / limit_s
    assert rate_within(service, limit_s) == pytest.approx(expected, rel=0.05)


def test_what_takes_longer_alone_is_never_in_time() -> None:
    assert rate_within([0.02], 0.01) == 0.0
    assert rate_within([0.001] * 97 + [0.02] * 3, 0.01) == 0.0
