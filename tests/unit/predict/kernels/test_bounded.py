"""Bounded networks: the bound, silence far from what was seen, and what a fit says about itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from chipwise.errors import Unsupported
from chipwise.hardware import datasheet
from chipwise.predict.kernels.bounded import DATA, SHIPPED, Fitted, Network, hardware, load

H100, H200, L40S = (datasheet.load(name) for name in ("h100-sxm", "h200-sxm", "l40s"))
TWO = Fitted(
    facts={
        "devices": {"h100-sxm": "hopper", "h200-sxm": "hopper"},
        "hardware": {"h100-sxm": hardware(H100), "h200-sxm": hardware(H200)},
        "reach": 1.5,
        "constants": {SHIPPED: {}, "device:h100-sxm": {}},
        "log_halfwidth": {"all": {"seen": 0.1, "sibling": 0.2, "unseen": 0.3}},
    },
    networks={},
)


def network(*, bound: float, bias: float) -> Network:
    ones, zeros = np.ones(2, dtype=np.float32), np.zeros(2, dtype=np.float32)
    return Network(
        mean=zeros,
        scale=ones,
        first=np.ones((3, 4), dtype=np.float32),
        second=np.ones((5, 4), dtype=np.float32),
        third=np.full(5, bias, dtype=np.float32),
        low=-ones,
        high=ones,
        bound=bound,
    )


def test_a_correction_never_exceeds_its_bound() -> None:
    inputs = np.random.default_rng(0).normal(size=(100, 2)) * 1e6
    assert np.all(np.abs(network(bound=0.5, bias=50.0)(inputs)) <= 0.5)


def test_inputs_beyond_the_range_seen_count_as_its_edge() -> None:
    model = network(bound=1.0, bias=0.1)
    assert model(np.array([[1e9, -1e9]])) == pytest.approx(model(np.array([[1.0, -1.0]])))


def test_nearness_is_one_on_what_was_seen_and_falls_with_distance() -> None:
    assert TWO.nearness(hardware(H100), SHIPPED) == 1
    assert TWO.nearness(hardware(H100), "device:h100-sxm") < 1
    # The distance to the nearest, in doublings; at the reach itself 1/e is left.
    away = np.asarray(hardware(H100)) + np.array([-1.5, 0, 0, 0])
    assert TWO.nearness(away, SHIPPED) == pytest.approx(np.exp(-1))
    assert TWO.nearness(hardware(L40S), SHIPPED) < TWO.nearness(hardware(H200), "device:h200-sxm")


def test_situations() -> None:
    assert TWO.situation(H100, None) == "seen"
    assert TWO.situation(H100, "device:h100-sxm") == "sibling"
    assert TWO.situation(H100, "family:hopper") == "unseen"
    assert TWO.situation(L40S, None) == "unseen"
    assert TWO.situation(datasheet.load("gh200"), None) == "sibling"


def test_folds_that_left_nothing_out_are_what_ships() -> None:
    assert TWO.fold(H100, "device:h100-sxm") == "device:h100-sxm"
    assert TWO.fold(L40S, "device:l40s") == SHIPPED
    with pytest.raises(Unsupported, match="device:NAME and family:NAME"):
        TWO.fold(H100, "hopper")


def test_a_group_without_a_width_has_that_of_all() -> None:
    assert TWO.halfwidth("nothing of this name", "sibling") == 0.2


@pytest.mark.parametrize("kind", ["experts", "collective", "scan", "power"])
def test_what_ships_says_where_it_comes_from_and_is_small(kind: str) -> None:
    fitted = load(kind)
    assert fitted is not None
    assert fitted.facts["provenance"]["package"].startswith("aiconfigurator-core ")
    assert set(fitted.facts["log_halfwidth"]["all"]) >= {"seen", "unseen"}
    assert sum(path.stat().st_size for path in Path(DATA).glob(f"{kind}.*")) < 400_000


def test_a_relative_far_away_counts_as_unseen() -> None:
    far = np.asarray(hardware(H100)) - np.array([3.0, 0, 0, 0])  # an eighth of the bandwidth
    assert TWO.situation(H100, "device:h100-sxm", hardware(H100)) == "sibling"
    assert TWO.situation(H100, "device:h100-sxm", far) == "unseen"
    assert TWO.situation(H100, None, far) == "seen"
