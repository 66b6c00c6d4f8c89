"""Watts of devices: facts of sheets, and what stands in for those of phones."""

from __future__ import annotations

import dataclasses
import math
import statistics

import pytest
from scipy import stats

from chipwise.errors import Unsupported
from chipwise.hardware import datasheet, facts
from chipwise.hardware.power_draw import PHONE_IDLE_W, PHONE_LOAD_W, PHONE_LOG_HALFWIDTH, floor_w, is_phone, limit_w
from chipwise.model.ops.matmul import Matmul
from chipwise.predict.kernels.power import power

SMALL = ("apple-a18-pro", "qcs6490", "rk3588", "raspberry-pi-5", "raspberry-pi-4", "riscv-p550")


def test_the_watts_of_phones_are_the_means_of_small_machines() -> None:
    load = [math.log(datasheet.load(name).board_power_w) for name in SMALL]
    idle = [math.log(datasheet.load(name).idle_power_w) for name in SMALL[:-1]]
    assert pytest.approx(math.exp(statistics.mean(load)), rel=0.01) == PHONE_LOAD_W
    assert pytest.approx(math.exp(statistics.mean(idle)), rel=0.01) == PHONE_IDLE_W
    spread = statistics.stdev(load) * math.sqrt(1 + 1 / len(load))
    assert pytest.approx(stats.t.ppf(0.95, len(load) - 1) * spread, rel=0.02) == PHONE_LOG_HALFWIDTH


@pytest.mark.parametrize("name", SMALL)
def test_a_small_machine_left_out_stays_within_the_interval(name: str) -> None:
    others = [math.log(datasheet.load(each).board_power_w) for each in SMALL if each != name]
    assert abs(statistics.mean(others) - math.log(datasheet.load(name).board_power_w)) < PHONE_LOG_HALFWIDTH


def test_every_device_waits_with_less_than_it_draws_at_most() -> None:
    for name in datasheet.names():
        device = datasheet.load(name)
        try:
            assert 0 < floor_w(device) < limit_w(device), name
        except Unsupported:
            assert device.board_power is None, name
            assert not is_phone(device), name


def test_a_stated_board_power_is_taken_and_its_interval_is_narrower() -> None:
    phone = datasheet.load("snapdragon-8-gen-3")
    stated = dataclasses.replace(phone, board_power=facts.Power(value="11.1 W", source="a user"))
    op = Matmul(m=1, n=4096, k=4096, weights="q4_0", activations="fp16")
    unknown, known = (power(op, device, 1e-3) for device in (phone, stated))
    assert unknown.limit_w == known.limit_w == PHONE_LOAD_W
    assert float(unknown.log_halfwidth) == pytest.approx(math.hypot(float(known.log_halfwidth), PHONE_LOG_HALFWIDTH))
