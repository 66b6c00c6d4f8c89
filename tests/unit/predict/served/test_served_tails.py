"""P99s as P50s times ratios: the law by pencil, and which law answers."""

from __future__ import annotations

import math

import pytest

from chipwise import api
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import on_device, runtime_named
from chipwise.predict.cost.model import Predicted
from chipwise.predict.served.tails import UNMEASURED, TailLaw, inputs_of, kind_of, shipped, tail_of

LAW = TailLaw(
    terms=(-1.0, 0.5, 0.25), inputs=((2.0, 6.0), (-8.0, 2.0)), below=-0.4, above=0.6, runs=9, devices=("a", "b")
)


def test_a_ratio_by_pencil() -> None:
    """exp(-1 + 0.5 * 4 + 0.25 * -2) = exp(0.5), from exp(0.1) to exp(1.1)."""
    found = LAW.ratio((4.0, -2.0))
    assert (found.value, found.low, found.high) == pytest.approx((math.exp(0.5), math.exp(0.1), math.exp(1.1)))


def test_beyond_what_was_measured_the_nearest_input_counts() -> None:
    assert LAW.log_ratio((60.0, 20.0)) == pytest.approx(-1 + 0.5 * 6 + 0.25 * 2)
    assert LAW.log_ratio((2.0, -8.0)) == 0.0  # -2 by the terms, but no P99 is below its P50
    assert LAW.ratio((2.0, -8.0)).low == 1.0


def test_errors_of_a_median_and_of_its_ratio_are_independent() -> None:
    """Half-widths of 0.3 and 0.4 make 0.5."""
    median = Predicted(value=2.0, low=2 * math.exp(-0.3), high=2 * math.exp(0.3))
    ratio = Predicted(value=3.0, low=3 * math.exp(-0.4), high=3 * math.exp(0.4))
    found = tail_of(median, ratio, 9.0)
    assert (found.value, found.low, found.high) == pytest.approx((6.0, 6 * math.exp(-0.5), 6 * math.exp(0.5)))
    unchecked = tail_of(Predicted(value=2.0), ratio, 0.3)  # a median without an interval takes the given half-width
    assert (unchecked.low, unchecked.high) == pytest.approx((found.low, found.high))


@pytest.mark.parametrize(
    ("device", "runtime", "batch", "kind"),
    [
        ("h100-sxm", "vllm", 16, "engine"),
        ("b200-sxm", "sglang", 8, "engine"),
        ("h100-sxm", "vllm", 1, UNMEASURED),
        ("raspberry-pi-5", "onnxruntime", 1, "processor"),
        ("raspberry-pi-5", "onnxruntime", 4, UNMEASURED),
        ("apple-m3-max", "llama.cpp", 1, UNMEASURED),
    ],
)
def test_the_runs_that_a_case_belongs_to(device: str, runtime: str, batch: int, kind: str) -> None:
    sheet = datasheet.load(device)
    assert kind_of(on_device(runtime_named(runtime), sheet), sheet, batch) == kind


def test_what_ships_was_measured_on_several_devices_and_covers_others() -> None:
    laws = shipped()
    for kind, by_time in laws.laws.items():
        assert laws.source[kind]
        for law in by_time.values():
            assert law.below <= 0 <= law.above
            assert len(law.devices) > 1
    unknown = laws.law("no such kind", "ttft")
    assert unknown.above >= max(law.above for time, law in laws.laws["processor"].items())


def test_longer_prompts_and_more_requests_lengthen_the_worst_gap() -> None:
    """A gap is long when the engine also reads a prompt in it: for longer prompts, and if requests end more often."""
    law = shipped().law("engine", "itl")
    base = law.log_ratio(inputs_of(500, 500, 32))
    assert law.log_ratio(inputs_of(4000, 500, 32)) > base
    assert law.log_ratio(inputs_of(500, 100, 32)) > base
    assert law.log_ratio(inputs_of(500, 500, 128)) > base


def test_an_unmeasured_class_says_so_and_is_wide() -> None:
    known = api.estimate("Qwen/Qwen3-8B", device="h100-sxm", runtime="vllm", batch=16)
    unknown = api.estimate("Qwen/Qwen3-8B", device="apple-m3-max", runtime="llama.cpp")
    assert any("no tail of such requests was measured" in note for note in unknown.notes)
    assert any("P50 times a ratio from" in note for note in known.notes)
    widths = [math.log(each.metrics["tpot_p99"].high / each.metrics["tpot_p50"].high) for each in (known, unknown)]
    assert widths[1] > 2 * widths[0]
