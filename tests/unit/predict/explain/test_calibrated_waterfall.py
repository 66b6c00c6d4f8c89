"""The parts of a calibrated prediction add up to its times."""

from __future__ import annotations

import pytest

from chipwise.model.arch.arch import uniform
from chipwise.predict.explain.cases import calibrated_case
from chipwise.predict.explain.waterfall import waterfall
from support.machines import round_machine

TINY = uniform(vocab_size=512, d_model=64, depth=2, heads=4, ffn_width=128, max_tokens=64)


def test_a_calibrated_waterfall_adds_up() -> None:
    asked = calibrated_case(TINY, round_machine(), prompt_tokens=16, new_tokens=8)
    for phase, total in (("prefill", asked.estimate.ttft_s), ("decode", asked.estimate.tpot_s)):
        assert sum(part.seconds for part in waterfall(asked, phase)) == pytest.approx(total)  # type: ignore[arg-type]
