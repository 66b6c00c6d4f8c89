"""Learning from measured models, on simulated machines with known rates."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from chipwise.deploy.calibrate.learning import (
    FOLDS,
    PhaseTable,
    compare,
    correction,
    cross_check,
    cross_validate,
    errors,
    fit_memory,
    held_out_predictions,
    predict_seconds,
    predictions,
    prepare,
    refit,
)
from chipwise.deploy.calibrate.random_models import random_designs
from chipwise.deploy.runtimes import NEEDS
from chipwise.hardware.device import MachineProfile, MemoryCost
from chipwise.model.arch.design import Design
from chipwise.model.arch.formats import formats_word
from chipwise.model.ops.workload import Phase, Workload
from chipwise.predict.cost.memory import memory_parts
from chipwise.predict.cost.residual import AMPLITUDE, doubt
from support.machines import core_like, other

WORKLOAD = Workload(prompt_tokens=16, new_tokens=16)


@dataclass(frozen=True)
class Truth:
    """A design as a device of known rates takes it; see :class:`chipwise.deploy.calibrate.learning.Observed`."""

    design: Design
    device: MachineProfile
    workload: Workload = WORKLOAD
    peak_memory_bytes: float | None = None

    def seconds(self, phase: Phase, share: float) -> float:
        median = predict_seconds(self.device, self.design, phase, self.workload)
        return median if share == 0.5 else 1.5 * median


def truths(device: MachineProfile, count: int, *, seed: int) -> list[Truth]:
    return [Truth(design, device) for design in random_designs(count, seed=seed)]


def test_a_device_with_the_profiles_own_rates_changes_nothing() -> None:
    seen = prepare(core_like(), truths(core_like(), 12, seed=0))
    fitted = refit(core_like(), seen, memory=False)
    for phase in Phase:
        scales = fitted.residuals[phase.value].scales
        assert all(scale == pytest.approx(1.0, abs=1e-6) for scale in scales.values())
    assert fitted.tails["decode"].ratio == pytest.approx(1.5)


def test_memory_by_format_is_learnt_from_models_that_mix_formats() -> None:
    """Seconds per byte of each format are recovered although every model mixes formats."""
    rates = MemoryCost(base_bytes=5e6, per_table_byte=1.0, per_matrix_byte={"fp32": 1.0, "int8": 2.0, "int4": 1.5})
    seen, rng = [], np.random.default_rng(0)
    for design in random_designs(40, seed=3):
        names = [str(name) for name in rng.permutation(["fp32", "int8", "int4"])]
        own = [names[i % 2] for i in range(len(design.arch.layers))]
        layers = (own[i if layer.shares is None else layer.shares] for i, layer in enumerate(design.arch.layers))
        mixed = replace(design, weights=formats_word(layers, names[2]))
        assert len(mixed.formats.all) > 1
        seen.append(Truth(mixed, core_like(), WORKLOAD, memory_parts(mixed, WORKLOAD).peak_bytes(rates)))
    found = fit_memory(seen)
    assert found.base_bytes == pytest.approx(rates.base_bytes, rel=1e-3)
    assert found.per_matrix_byte == pytest.approx(rates.per_matrix_byte, rel=1e-3)


def test_a_kind_of_node_that_costs_more_gets_a_larger_factor() -> None:
    device = other(core_like(), attention=1.6)
    fitted = refit(core_like(), prepare(core_like(), truths(device, 40, seed=0)), memory=False)
    scales = fitted.residuals["decode"].scales
    assert scales["attention"] > 1.05  # its launches are the part called node
    assert {"node", "attention"} == set(sorted(scales, key=scales.__getitem__)[-2:])


def test_models_that_were_never_seen_are_predicted_better() -> None:
    device = other(core_like(), attention=1.5, int8=1.4, int4=0.7, norm=1.3)
    fitted = refit(core_like(), prepare(core_like(), truths(device, 40, seed=0)), memory=False)
    fresh = prepare(core_like(), truths(device, 30, seed=1))
    before, after = errors(core_like(), fresh)["decode"], errors(fitted, fresh)["decode"]
    assert before.mape > 0.08
    assert after.mape < 0.03


def test_what_estimates_say_is_what_refitting_predicted() -> None:
    device = other(core_like(), attention=1.5)
    seen = prepare(core_like(), truths(device, 20, seed=0))
    fitted = refit(core_like(), seen, memory=False)
    quick = predictions(fitted, seen)["decode"]
    slow = [predict_seconds(fitted, item.design, Phase.DECODE, WORKLOAD) for item in seen.observed]
    np.testing.assert_allclose(quick, slow, rtol=1e-9)


def test_calibration_models_count_from_the_first_measurement_on() -> None:
    device = other(core_like(), attention=1.5, int8=0.8)
    taught = prepare(core_like(), truths(device, 20, seed=0))
    rows = taught.to_rows()
    profile = replace(refit(core_like(), taught, memory=False), calibration_models=rows)
    fresh = prepare(core_like(), truths(device, 20, seed=1))
    one = refit(profile, fresh[[0]], memory=False)
    assert errors(one, fresh)["decode"].mape < 0.05


def test_a_profile_with_calibration_models_survives_its_file(tmp_path) -> None:
    seen = prepare(core_like(), truths(other(core_like(), int8=0.7), 8, seed=0))
    rows = seen.to_rows()
    profile = replace(refit(core_like(), seen, memory=False), calibration_models=rows)
    profile.save(tmp_path / "profile.json")
    again = MachineProfile.load(tmp_path / "profile.json")
    assert again == profile
    np.testing.assert_allclose(
        PhaseTable.from_rows(again.calibration_models["decode"]).parts, seen.tables[Phase.DECODE].parts
    )


def test_models_of_an_older_profile_had_convolutions_among_the_rest() -> None:
    """Rows without names have no column of convolutions, whose time stood under "other"; the rest is as it was."""
    seen = prepare(core_like(), truths(other(core_like(), int8=0.7), 8, seed=0))
    rows = seen.to_rows()["decode"]
    conv, rest = (rows.names.index(name) for name in ("conv", "other"))
    now = np.array(rows.parts)
    joined = now.copy()
    joined[:, rest] += joined[:, conv]
    old = replace(rows, names=(), parts=tuple(map(tuple, np.delete(joined, conv, axis=1).tolist())))
    read = PhaseTable.from_rows(old).parts
    assert (now[:, conv] > 0).any()
    assert not read[:, conv].any()
    np.testing.assert_allclose(read[:, rest], now[:, rest] + now[:, conv])
    np.testing.assert_array_equal(np.delete(read, [conv, rest], axis=1), np.delete(now, [conv, rest], axis=1))


def test_one_disturbed_model_does_not_spoil_the_others() -> None:
    device = other(core_like(), attention=1.3)
    items = truths(device, 24, seed=0)
    items[5] = Truth(items[5].design, other(device, attention=4.0, fp32=3.0, int8=3.0, int4=3.0, norm=3.0))
    fitted = refit(core_like(), prepare(core_like(), items), memory=False)
    fresh = prepare(core_like(), truths(device, 20, seed=1))
    assert errors(fitted, fresh)["decode"].mape < 0.05


def test_the_check_leaves_out_what_it_judges() -> None:
    """Quality of fit on the models themselves is better than on models left out, and the check reports the latter."""
    device = other(core_like(), attention=1.5, int8=0.7, norm=1.4)
    seen = prepare(core_like(), truths(device, 12, seed=3))
    own = errors(refit(core_like(), seen, memory=False), seen)["decode"].mape
    assert cross_check(core_like(), seen, memory=False)["decode"].mape > own


def test_doubt_is_small_where_models_were_measured_and_whole_far_away() -> None:
    seen = prepare(core_like(), truths(core_like(), 20, seed=0))
    residual = refit(core_like(), seen, memory=False).residuals["decode"]
    figures = seen.tables[Phase.DECODE].figures
    assert doubt(figures, residual).max() < 0.7 * AMPLITUDE
    assert doubt(figures + 100.0, residual).min() == pytest.approx(AMPLITUDE)


def test_a_fit_of_the_check_never_sees_what_it_predicts() -> None:
    """Every constant that whole models give is fitted again without the models that are predicted."""
    items = truths(core_like(), 13, seed=0)
    fits: list[set[Design]] = []

    def fit(kept) -> MachineProfile:
        fits.append({item.design for item in kept})
        return core_like()

    found = cross_validate(items, fit, folds=5)
    assert found["decode"].models == 13
    left_out = [{item.design for item in items} - kept for kept in fits]
    assert sum(map(len, left_out)) == 13
    assert set.union(*left_out) == {item.design for item in items}


def test_a_fit_that_remembers_its_models_does_not_flatter_the_check() -> None:
    """A fit that remembers its own models is exact on them and no better than its rates on others."""
    device = other(core_like(), attention=1.5)
    items = truths(device, 12, seed=3)

    def remembering(kept) -> MachineProfile:
        known = {item.design for item in kept}
        return device if {item.design for item in items} <= known else core_like()

    assert errors(remembering(items), prepare(remembering(items), items))["decode"].mape < 1e-9
    assert cross_validate(items, remembering)["decode"].mape > 0.03


def test_corrections_have_the_spread_of_models_that_the_fit_excluded() -> None:
    """Tails that differ from model to model: the fit to all of them looks better than it is."""

    @dataclass(frozen=True)
    class Ragged(Truth):
        ratio: float = 1.5

        def seconds(self, phase: Phase, share: float) -> float:
            median = super().seconds(phase, 0.5)
            return median if share == 0.5 else self.ratio * median

    rng = np.random.default_rng(1)
    designs = random_designs(4, seed=0)
    items = [Ragged(design, core_like(), ratio=1.5 * float(np.exp(0.3 * rng.standard_normal()))) for design in designs]
    seen = prepare(core_like(), items)
    truth = [item.seconds(Phase.DECODE, 0.99) for item in items]
    own = predictions(refit(core_like(), seen, memory=False), seen)["decode_p99"]
    excluded = held_out_predictions(core_like(), seen, memory=False)["decode_p99"]
    narrow, honest = (correction(zip(p, truth, strict=True), error=0.01).spread for p in (own, excluded))
    assert honest > narrow


def test_no_measurement_leaves_the_profile_as_it_is() -> None:
    seen = prepare(core_like(), truths(core_like(), 1, seed=0))
    assert refit(core_like(), seen[[]]) == core_like()
    alone = held_out_predictions(core_like(), seen)
    np.testing.assert_allclose(alone["decode"], predictions(core_like(), seen)["decode"])


def test_memory_that_only_the_first_model_of_each_process_tells_is_known_in_every_fold() -> None:
    """A process's peak is that of all its models, so later ones tell none; no fold may leave out all that do."""
    for needs in NEEDS.values():
        telling = range(0, 60, needs.models_per_start)  # a calibration has 60 models or more
        assert all(any(i % FOLDS != fold for i in telling) for fold in range(FOLDS))
    blind = prepare(core_like(), truths(core_like(), 12, seed=0))
    assert refit(core_like(), blind).memory == core_like().memory


def test_few_models_widen_the_spread() -> None:
    """1.645 spreads of four models are Student's 95 % quantile for 4 degrees of freedom, 2.132."""
    found = compare([1.0] * 4, [1.1, 1 / 1.1, 1.1, 1 / 1.1])
    assert 1.645 * found.spread / np.log(1.1) == pytest.approx(2.132, rel=0.06)
