"""Sums of amounts over fitted rates: pencil arithmetic, and what is known of a run."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chipwise.predict.whole_runs.sums import Amount, Constants, named, value_of
from chipwise_fitting.sums_fit import at


def held() -> Constants:
    return Constants(
        folds={"none": {"bytes": math.log(2), "bytes|slow": math.log(3)}, "device:a": {"bytes": math.log(5)}},
        halfwidths={"known|*": 0.1, "seen|*": 0.2, "sibling|*": 0.3, "unseen|*": 0.4, "seen|a|x": 0.15},
        runs=frozenset({"a|x|model"}),
        places=frozenset({"a|x"}),
        devices=frozenset({"a"}),
        vendors=frozenset({"V"}),
        splits={},
        source="made up",
    )


def test_sums_add_and_amounts_of_one_sum_overlap() -> None:
    """3 s of bytes at twice the time, and 4 and 3 s that overlap: 6 + (4³ + 3³)^(1/3)."""
    law = (Amount(3.0, 0, named("bytes", [])), Amount(4.0, 1, ()), Amount(3.0, 1, ()))
    assert value_of(law, held().terms()) == pytest.approx(6 + (64 + 27) ** (1 / 3))


def test_a_level_adds_its_deviation_and_an_unknown_one_nothing() -> None:
    terms = held().terms()
    assert value_of((Amount(1.0, 0, named("bytes", ["slow"])),), terms) == pytest.approx(6)
    assert value_of((Amount(1.0, 0, named("bytes", ["never seen"])),), terms) == pytest.approx(2)


def test_a_fold_holds_what_differs_and_an_unknown_fold_is_the_fit_to_all() -> None:
    law = (Amount(1.0, 0, named("bytes", ["slow"])),)
    assert value_of(law, held().terms("device:a")) == pytest.approx(15)
    assert value_of(law, held().terms("device:new")) == pytest.approx(6)


def test_one_run_of_many() -> None:
    law = (Amount(np.array([1.0, 2.0]), 0, ()), Amount(3.0, 1, ()))
    assert value_of(law, {}).tolist() == [4.0, 5.0]
    assert value_of(at(law, 1, (("whole", 1.0),)), {"whole": math.log(2)}) == pytest.approx(10)


@pytest.mark.parametrize(
    ("device", "vendor", "model", "leave_out", "situation"),
    [
        ("a", "V", "model", "none", "known"),
        ("a", "V", "other", "none", "seen"),
        ("a", "V", "model", "model", "seen"),
        ("a", "V", "model", "device", "sibling"),
        ("b", "V", "model", "none", "sibling"),
        ("a", "V", "model", "vendor", "unseen"),
        ("c", "W", "model", "none", "unseen"),
    ],
)
def test_what_was_seen_of_a_run(device: str, vendor: str, model: str, leave_out: str, situation: str) -> None:
    place = f"{device}|x"
    found = held().situation(device=device, vendor=vendor, place=place, model=model, leave_out=leave_out)
    assert found == situation


def test_a_place_of_its_own_has_its_own_width() -> None:
    assert held().halfwidth("seen", "a|x") == 0.15
    assert held().halfwidth("seen", "b|x") == 0.2
