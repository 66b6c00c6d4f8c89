"""The 99th percentile: never below the median, and printed with the other checks as a table."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from chipwise.cli import show
from chipwise.deploy.calibrate.calibrate import blank_profile, fit_profile
from chipwise.deploy.calibrate.learning import PhaseTable, Sample, fit_tail, learn, predict_seconds, prepare
from chipwise.deploy.calibrate.random_models import random_designs
from chipwise.deploy.measure.measurement import Measurement
from chipwise.hardware.device import CheckError, Tail
from chipwise.model.arch.design import Design
from chipwise.model.ops.workload import Phase, Workload
from chipwise.predict.cost.pricing import PARTS
from support.machines import core_like, round_machine

WORKLOAD = Workload(prompt_tokens=16, new_tokens=16)
HALVES = ((slice(0, None, 2), 1.5, False), (slice(1, None, 2), 40.0, True))  # which models, P99 in medians, busy


@dataclass(frozen=True)
class Timed:
    """A design as the core takes it, with its tail as a multiple of the median."""

    design: Design
    tail: float
    busy: bool
    workload: Workload = WORKLOAD
    peak_memory_bytes: float | None = None

    def seconds(self, phase: Phase, share: float) -> float:
        median = predict_seconds(core_like(), self.design, phase, self.workload)
        return median if share == 0.5 else math.nan if self.busy else self.tail * median


def table(median_s: list[float], p99_s: list[float]) -> PhaseTable:
    """Models of which only times are known."""
    rows = len(median_s)
    return PhaseTable(np.zeros((rows, 1)), np.zeros((rows, 1)), np.array(median_s), np.array(p99_s))


def test_a_tail_that_is_a_share_and_a_constant_is_found() -> None:
    medians = [0.001, 0.01, 0.1, 1.0]
    found = fit_tail(table(medians, [1.2 * each + 0.0005 for each in medians]))
    assert found.ratio == pytest.approx(1.2, rel=1e-3)
    assert found.extra_s == pytest.approx(0.0005, rel=1e-2)


def test_slow_models_whose_tail_is_their_median_do_not_pull_it_below() -> None:
    """Fast models have a P99 far above their median, slow ones on it: a line through both has a slope below 1."""
    medians = [0.001, 0.002, 0.004, 0.1, 0.13]
    found = fit_tail(table(medians, [0.003, 0.004, 0.0055, 0.1, 0.13]))
    assert found.ratio >= 1
    assert all(found.p99_s(each) >= each for each in [*medians, 1.0, 10.0])


def test_an_older_profile_with_such_a_tail_predicts_no_less_than_the_median() -> None:
    tail = Tail(ratio=0.9, extra_s=0.012)
    assert tail.p99_s(0.13) == 0.13  # 0.9 x 130 ms + 12 ms are 129 ms
    assert tail.p99_s(0.01) == pytest.approx(0.021)
    assert tail.p99_s(np.array([0.01, 0.13]), passes=2).tolist() == pytest.approx([0.033, 0.141])


def test_the_check_is_printed_as_a_table(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    large = CheckError(models=4, mape=0.2, spread=0.3, kendall_tau=0.96, least_bytes=2e8, most_bytes=5e8)
    found = round_machine()
    found = replace(found, checks={**found.checks, "decode_p99.large": large})
    show.profile(found, Path("p.json"))
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("check: whole models, each predicted by a fit to the other models")
    assert lines[first + 1].split() == ["predicted", "mean", "error", "rank", "corr.", "models", "MB", "of", "weights"]
    assert len(lines[first + 2 :]) == len(found.checks) + 1  # and the line that names the file
    assert lines[-2].split() == ["decode", "P99", "20", "%", "0.96", "4", "200", "to", "500"]


def test_one_model_is_not_several() -> None:
    assert "over 1 model, each" in CheckError(models=1, mape=0.1, spread=0.1).sentence("decode")
    assert (
        CheckError(models=2, mape=0.1, spread=0.1)
        .sentence("decode_p99.large")
        .startswith("decode P99: mean error 10 %")
    )


def test_a_busy_machine_teaches_no_tail() -> None:
    """Quiet models have P99 = 1.5 medians. Busy ones, with 40 medians, change medians' fit alone and no check."""
    designs = random_designs(16, seed=0)
    quiet, noisy = ([Timed(each, tail, loud) for each in designs[half]] for half, tail, loud in HALVES)
    profile = core_like()
    alone, both, busy = (learn(profile, prepare(profile, each)) for each in (quiet, [*quiet, *noisy], noisy))
    for phase in ("prefill", "decode"):
        assert both.tails[phase].ratio == pytest.approx(1.5)
        assert alone.tails[phase].ratio == pytest.approx(1.5)
        assert busy.tails[phase] == profile.tails[phase]
    assert both.checks["decode"].models == 16
    assert both.checks["decode_p99"].models == 8


def test_a_table_without_some_tails_survives_its_file() -> None:
    held = table([0.001, 0.01], [0.002, math.nan])
    rows = PhaseTable(np.zeros((2, len(PARTS))), held.figures, held.median_s, held.p99_s).to_rows()
    assert rows.p99_s == (0.002, None)
    assert np.isnan(PhaseTable.from_rows(rows).p99_s).tolist() == [False, True]


def sample(design: Design, *, busy: bool) -> Sample:
    """A design as the core takes it: two of 100 samples take 1.5 times as long, 40 times where it is busy."""
    timed = Timed(design, 1.0, busy)
    slow = 40.0 if busy else 1.5
    prefill, decode = ((timed.seconds(phase, 0.5),) * 98 for phase in (Phase.PREFILL, Phase.DECODE))
    found = Measurement(
        design=design.digest,
        name=design.arch.name,
        runtime="fake",
        runtime_version="fake 1",
        threads=1,
        workload=timed.workload,
        device="a core",
        ttft_s=(*prefill, *(slow * prefill[0],) * 2),
        tpot_s=(*decode, *(slow * decode[0],) * 2),
        cpu_s=1.0,
        peak_memory_bytes=10**8,
        clean=not busy,
        reasons=("noise",) if busy else (),
        environment={"reference_s": {"arithmetic": 1e-3}},
    )
    return Sample(design=design, measured=found)


@pytest.mark.parametrize(("quiet", "ratio"), [(6, 1.5), (0, 40.0)])
def test_a_calibration_learns_tails_from_quiet_models_where_they_are_enough(quiet: int, ratio: float) -> None:
    designs = random_designs(18, seed=0)
    found = fit_profile(blank_profile("fake", 1), [sample(each, busy=i >= quiet) for i, each in enumerate(designs)])
    assert found.tails["decode"].p99_s(1.0) == pytest.approx(ratio, rel=0.1)
    assert ("P99 is fitted to them too" in found.notes[0]) == (ratio > 2)
    assert not found.clean
