"""A chip by its own results: its terms follow them, shrunk a little towards its generation."""

from __future__ import annotations

import pytest

from chipwise.hardware.taught import FileResult
from chipwise.predict.graphs import npu_law
from chipwise.predict.graphs.npu_chips import Chip
from chipwise.predict.graphs.taught import terms_by_results
from chipwise_fitting.npu import works

NEW = Chip("a-chip-of-tomorrow", "v90", "phone")
MODELS = ("resnet50", "mobilenet_v2", "swin_tiny", "yolov8_det", "vit")


def test_results_of_a_chip_twice_as_slow_teach_it() -> None:
    amounts = [works()[model].amounts["float"] for model in MODELS]
    law = npu_law.law().terms
    rates = npu_law.rates(law, NEW, "qnn", "float")
    plain = [sum(amount * rates[name] for name, amount in each.items()) for each in amounts]
    results = [
        FileResult(model="", amounts=each, runtime="qnn", precision="float", seconds=2 * one)
        for each, one in zip(amounts, plain, strict=True)
    ]
    taught = npu_law.rates({**law, **terms_by_results(NEW, results, law)}, NEW, "qnn", "float")
    again = [sum(amount * taught[name] for name, amount in each.items()) for each in amounts]
    assert again == pytest.approx([2 * one for one in plain], rel=0.1)


def test_works_are_known_in_every_format() -> None:
    known = works()
    assert len(known) > 90
    for work in known.values():
        assert set(work.amounts) == {"float", "w8a16", "w8a8"}
        assert all(name in npu_law.NOMINAL_S for amounts in work.amounts.values() for name in amounts)
