"""Models larger than the caches, on a machine whose memory is slow past a knee; and honest intervals without them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from chipwise.deploy.calibrate.calibrate import blank_profile, fit_with_nodes
from chipwise.deploy.calibrate.learning import cross_validate, predict_seconds, stored_bytes
from chipwise.deploy.calibrate.microbench import Case, cases
from chipwise.deploy.calibrate.node_rates import fit_terms
from chipwise.deploy.calibrate.random_models import large_designs, random_designs
from chipwise.hardware.device import EXTRAPOLATION, CheckError, Curve, MachineProfile
from chipwise.model.arch.arch import uniform
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Phase, Workload
from chipwise.model.walk.lower import lower
from chipwise.predict.cost.estimate import estimate
from chipwise.predict.cost.memory import memory_parts
from chipwise.predict.cost.terms import terms
from support.machines import core_like

WORKLOAD = Workload(prompt_tokens=32, new_tokens=8)
KNEE = Curve(working_set_bytes=(1e6, 9e7, 2.4e8), s_per_byte=(1.5e-11, 2.5e-11, 5e-11))
GPT = Design(
    arch=uniform(
        vocab_size=50257, d_model=768, depth=12, heads=12, ffn_width=3072, gated=False, activation="gelu", max_tokens=64
    )
)


def machine_with_a_knee() -> MachineProfile:
    """25 ps a streamed byte while weights fit in 90 MB, 50 ps from 240 MB on."""
    return replace(core_like(), curves=dict.fromkeys(core_like().curves, KNEE))


@dataclass(frozen=True)
class Truth:
    """A design on the machine with a knee. See :class:`chipwise.deploy.calibrate.learning.Observed`."""

    design: Design
    workload: Workload = WORKLOAD

    @property
    def peak_memory_bytes(self) -> float:
        return memory_parts(self.design, self.workload).peak_bytes(core_like().memory)

    def seconds(self, phase: Phase, share: float) -> float:
        median = predict_seconds(machine_with_a_knee(), self.design, phase, self.workload)
        return median if share == 0.5 else 1.2 * median


def node_seconds(case: Case) -> float:
    """The same machine's time for one of calibration's small graphs."""
    machine, total, streamed, kind = machine_with_a_knee(), 1e-5, 0.0, ""
    for op in case.ops():
        for term in terms(op)[:1]:
            rates = machine.rates(term.model)
            total += sum(rates.get(name, 0.0) * amount for name, amount in term.amounts.items())
            streamed, kind = streamed + term.streamed_bytes, term.model
    if streamed and kind in machine.curves:
        from chipwise.predict.cost.pricing import s_per_byte

        total += streamed * float(s_per_byte(machine.curves[kind], streamed))
    return total


def calibrated(*, large: bool) -> MachineProfile:
    rates, curves = fit_terms([(case, node_seconds(case)) for case in cases(large=large)])
    blank = replace(blank_profile("fake", 1), terms=rates, curves=curves)
    models = [Truth(design) for design in [*random_designs(18, seed=0), *(large_designs() if large else [])]]
    profile = fit_with_nodes(blank, models)
    return replace(profile, checks=cross_validate(models, lambda kept: fit_with_nodes(blank, kept), folds=4))


@pytest.fixture(scope="module", params=[False, True], ids=["small models alone", "with large models"])
def profile(request) -> MachineProfile:
    return calibrated(large=request.param)


def test_a_model_beyond_the_knee_is_right_or_its_interval_says_so(profile: MachineProfile) -> None:
    truth_s = Truth(GPT).seconds(Phase.DECODE, 0.5)
    graphs = [lower(GPT, WORKLOAD, phase) for phase in (Phase.PREFILL, Phase.DECODE)]
    found = estimate(GPT, graphs[0], graphs[1], WORKLOAD, profile)
    tpot = found.metrics["tpot_p50"]
    assert tpot.low < truth_s < tpot.high
    if "decode.large" in profile.checks:
        assert tpot.value == pytest.approx(truth_s, rel=0.05)
        assert found.metrics["peak_memory"].value == pytest.approx(Truth(GPT).peak_memory_bytes, rel=0.02)
    else:
        assert tpot.value < 0.8 * truth_s  # the knee was never seen


def test_the_check_names_the_sizes_that_it_covers(profile: MachineProfile) -> None:
    small = profile.checks["decode"]
    sizes = [stored_bytes(design, WORKLOAD) for design in random_designs(18, seed=0)]
    assert (small.least_bytes, small.most_bytes) == (min(sizes), max(sizes))
    assert f"to {max(sizes) / 1e6:.2g} MB" in profile.check_errors
    if "decode.large" in profile.checks:
        assert profile.checks["decode.large"].models == len(large_designs())


def test_spread_above_the_checked_sizes_by_pencil() -> None:
    check = CheckError(models=9, mape=0.1, spread=0.3, least_bytes=1e6, most_bytes=1e7)
    assert check.at(5e6).spread == 0.3
    assert check.at(1e7 * 2.718281828).spread == pytest.approx((0.3**2 + EXTRAPOLATION**2) ** 0.5)
    assert check.at(1e4).spread == 0.3


def test_every_large_model_is_large_and_there_is_one_of_each_format() -> None:
    designs = large_designs()
    assert {design.weights for design in designs} == {"fp32", "int8", "int4"}
    assert all(1e8 < stored_bytes(design, WORKLOAD) < 5e8 for design in designs)


def test_small_graphs_without_a_time_for_products_still_make_a_profile() -> None:
    """On a machine that is busy throughout, larger products may look no slower; the whole models then give the peak."""
    rates, curves = fit_terms([(case, node_seconds(case)) for case in cases()])
    rates["matmul.int8.matrix"]["products"] = 0.0
    models = [Truth(design) for design in random_designs(18, seed=0)]
    found = fit_with_nodes(replace(blank_profile("fake", 1), terms=rates, curves=curves), models)
    best = max(
        sum(item.op.work().flops for item in lower(each.design, WORKLOAD, Phase.PREFILL))
        / each.seconds(Phase.PREFILL, 0.5)
        for each in models
        if each.design.weights == "int8"
    )
    assert found.peaks["int8"] == pytest.approx(best)
    assert found.peaks["fp32"] == 2 / rates["matmul.fp32.matrix"]["products"]
