"""The 99th percentile: never below the median, and printed with the other checks as a table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chipwise.cli import show
from chipwise.hardware.device import CheckError, Tail
from chipwise.profile.learning import PhaseTable, fit_tail
from chipwise.testing.machines import round_machine


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
    first = lines.index("check: whole models, each predicted by a fit without it")
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
