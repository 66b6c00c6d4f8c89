"""Power: bounds and laws of the formula, measured kernels, energy, errors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chipwise.errors import SpecError, Unsupported
from chipwise.hardware import datasheet
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.matmul import Matmul
from chipwise.predict.kernels import power

B200 = datasheet.load("b200-sxm")
MATMUL = Matmul(m=8192, k=8192, n=8192, weights="bf16", activations="bf16")
DECODE = AttentionOp(
    batch=64,
    query_tokens=1,
    past_tokens=4095,
    heads=32,
    kv_heads=8,
    head_size=128,
    rope=False,
    activations="bf16",
    cache="bf16",
)


def test_nothing_done_is_the_floor_and_the_constant() -> None:
    constants = {"compute": 2.0, "memory": 1.0, "constant": 0.0}
    assert float(power.base_w(np.zeros(1), np.zeros(1), 200.0, 1000.0, constants)[0]) == 200


def test_the_formula_by_pencil() -> None:
    # Half of the peak and a quarter of the bandwidth: 1 - exp(-(2·0.5 + 1·0.25)) of the 800 W above the floor.
    constants = {"compute": 2.0, "memory": 1.0, "constant": 0.0}
    found = power.base_w(np.array([0.5]), np.array([0.25]), 200.0, 1000.0, constants)
    assert float(found[0]) == pytest.approx(200 + 800 * (1 - np.exp(-1.25)))


@given(share=st.floats(0, 1), more=st.floats(0, 1), other=st.floats(0, 1))
def test_more_work_never_draws_less_and_never_more_than_the_limit(share: float, more: float, other: float) -> None:
    shares = np.array([share, min(1.0, share + more)])
    for arguments in ((shares, np.full(2, other)), (np.full(2, other), shares)):
        watts = power.base_w(*arguments, 250.0, 1000.0, power.DEFAULTS)
        assert 250 <= watts[0] <= watts[1] <= 1000


@pytest.mark.parametrize("name", ["b200-sxm", "h100-sxm", "l4", "mi300x"])
def test_power_lies_between_floor_and_limit(name: str) -> None:
    device = datasheet.load(name)
    found = power.power(MATMUL, device, np.array([1e-4, 1e-3, 1.0]))
    assert np.all(found.power_w >= power.floor_w(device))
    assert np.all(found.power_w <= device.board_power_w)
    assert np.all(np.diff(found.power_w) <= 0)  # the same work in more time draws less


def test_a_long_prompt_draws_more_than_a_short_one_on_the_measured_device() -> None:
    # Causal attention of 32 heads at two thirds of the dense peak, and a prompt too short to fill the device.
    prompt = replace(DECODE, batch=8, query_tokens=8192, past_tokens=0)
    short = replace(DECODE, batch=1, query_tokens=16, past_tokens=0)
    busy_s = 8 * 32 * 4 * 128 * (8192 * 8193 / 2) / (0.6 * 2.25e15)
    assert power.power(prompt, B200, busy_s).power_w > 1.3 * power.power(short, B200, 8e-6).power_w


def test_without_the_device_the_interval_is_wider_on_what_was_measured() -> None:
    seen, left = (float(power.power(DECODE, B200, 1e-4, fold=fold).log_halfwidth) for fold in (None, "device:b200-sxm"))
    assert seen < left


def test_a_device_without_a_board_power_says_so() -> None:
    unknown = replace(B200, board_power=None)
    with pytest.raises(Unsupported, match="board_power"):
        power.power(MATMUL, unknown, 1e-3)


def test_a_time_of_zero_is_refused() -> None:
    with pytest.raises(SpecError, match="latency_s: must be above zero"):
        power.power(MATMUL, B200, np.array([1e-3, 0.0]))
