"""The cost of a pass beyond its nodes is recovered from models of a simulated device."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from chipwise.deploy.calibrate.learning import LEAST_PASS_SCALE, fit_passes, predict_seconds
from chipwise.deploy.calibrate.random_models import random_designs
from chipwise.hardware.device import MachineProfile, PassCost
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Phase, Workload
from support.machines import core_like

WORKLOAD = Workload(prompt_tokens=64, new_tokens=64)
NEUTRAL = {phase.value: PassCost(call_s=0.0, per_logit_s=0.0, scale=1.0) for phase in Phase}


@dataclass(frozen=True)
class Truth:
    """A design as a device of known passes takes it."""

    design: Design
    device: MachineProfile
    workload: Workload = WORKLOAD
    peak_memory_bytes: float | None = None

    def seconds(self, phase: Phase, share: float) -> float:
        return predict_seconds(self.device, self.design, phase, WORKLOAD)


def fitted(prefill_scale: float, decode_scale: float) -> dict[str, PassCost]:
    passes = {
        phase.value: PassCost(call_s=2e-5, per_logit_s=1e-9, scale=scale)
        for phase, scale in ((Phase.PREFILL, prefill_scale), (Phase.DECODE, decode_scale))
    }
    device = replace(core_like(), passes=passes)
    return fit_passes(
        replace(core_like(), passes=NEUTRAL), [Truth(design, device) for design in random_designs(12, seed=0)]
    )


def test_calls_logits_and_both_scales_are_found() -> None:
    found = fitted(0.9, 1.3)
    for phase, scale in (("prefill", 0.9), ("decode", 1.3)):
        assert found[phase].call_s == pytest.approx(2e-5, rel=1e-3)
        assert found[phase].per_logit_s == pytest.approx(1e-9, rel=1e-3)
        assert found[phase].scale == pytest.approx(scale, rel=1e-3)


def test_operators_never_take_no_time() -> None:
    found = fitted(0.01, 0.02)
    assert {cost.scale for cost in found.values()} == {LEAST_PASS_SCALE}
    assert all(cost.call_s >= 0 and cost.per_logit_s >= 0 for cost in found.values())


def test_outputs_that_never_change_are_part_of_the_call() -> None:
    """Of models with one vocabulary nothing tells logits from the call, and a larger batch makes one call, too."""
    designs = [replace(each, arch=each.arch.of_vocabulary(1024)) for each in random_designs(12, seed=0)]
    passes = {phase.value: PassCost(call_s=2e-5, per_logit_s=0.0, scale=1.0) for phase in Phase}
    device = replace(core_like(), passes=passes)
    found = fit_passes(replace(core_like(), passes=NEUTRAL), [Truth(each, device) for each in designs])
    assert found["prefill"].per_logit_s == 0.0
    assert found["prefill"].call_s == pytest.approx(2e-5, rel=1e-3)
