"""Fitting the serving constants and half-widths to served runs; reading tables of runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from chipwise.predict.served import intervals
from chipwise_fitting import half_widths
from chipwise_fitting.served_runs import read_runs
from chipwise_fitting.serving import NAMES, Design, Sum, follows, monotone, solve


def _design(truth: np.ndarray, rows: np.ndarray, prompt: np.ndarray, waits: np.ndarray) -> Design:
    count = len(rows)
    zero, names = np.zeros(count), np.full(count, "x")
    design = Design(
        step=Sum(rows=rows, fixed_s=zero),
        prompt=Sum(rows=prompt, fixed_s=zero),
        waits=waits,
        mixture=np.zeros(count, dtype=bool),
        tpot_s=np.ones(count),
        kernels=zero,
        sort=names,
        devices=names,
        families=names,
        follows=np.ones(count, dtype=bool),
    )
    return replace(design, tpot_s=design.predicted_s(truth))


def test_the_fit_finds_constants_that_made_the_runs() -> None:
    draw = np.random.default_rng(0)
    count = 3000
    rows, prompt = np.zeros((count, len(NAMES))), np.zeros((count, len(NAMES)))
    rows[:, NAMES.index("kernel_scale")] = draw.uniform(1e-3, 30e-3, count)
    rows[:, NAMES.index("gap_s")] = draw.integers(300, 900, count)
    rows[:, NAMES.index("sequence_s")] = draw.integers(1, 256, count)
    rows[:, NAMES.index("host_s.vllm")] = 1.0
    rows[:, NAMES.index("ranks_s")] = draw.integers(0, 4, count)
    prompt[:, 0] = draw.uniform(5e-3, 100e-3, count)
    truth = np.array([0.97, 1.0, 1.0, 1.0, 1.1e-6, 0.5e-3, 0.8e-3, 0.5e-3, 18e-6, 0.1e-3, 0.9])
    design = _design(truth, rows, prompt, draw.uniform(0, 0.5, count))
    found = solve(design)
    assert np.median(np.abs(design.predicted_s(found) / design.tpot_s - 1)) < 0.005
    assert found[0] == pytest.approx(0.97, abs=0.02)
    assert found[NAMES.index("prefill_share")] == pytest.approx(0.9, abs=0.02)


def test_runs_that_contradict_the_others_do_not_move_the_fit() -> None:
    draw = np.random.default_rng(1)
    rows = np.zeros((400, len(NAMES)))
    rows[:, NAMES.index("kernel_scale")] = draw.uniform(5e-3, 30e-3, 400)
    rows[:, NAMES.index("host_s.trtllm")] = 1.0
    truth = np.array([0.98, 1.0, 1.0, 1.0, 1e-6, 0.5e-3, 0.5e-3, 0.5e-3, 20e-6, 0.0, 1.0])
    design = _design(truth, rows, rows, np.zeros(400))
    wrong = design.tpot_s.copy()
    wrong[:40] *= 8
    assert solve(replace(design, tpot_s=wrong))[0] == pytest.approx(solve(design)[0], abs=0.01)


def test_times_that_stay_while_the_work_doubles_do_not_follow_it() -> None:
    work_s = np.linspace(0.01, 0.02, 8)
    assert follows(3 * work_s, work_s)
    assert follows(0.01 + work_s, work_s)  # 0.02 to 0.03 s: a host beside the work
    assert not follows(np.full(8, 0.05), work_s)
    assert not follows(0.05 + 0.1 * work_s, work_s)
    assert follows(np.full(4, 0.05), work_s[:4])  # too few to say


def test_half_widths_of_sorts_that_few_devices_have_are_wider() -> None:
    quiet, waiting, mostly = intervals.DENSE
    errors = np.concatenate([np.full(40, 0.1), np.full(40, 0.2), np.full(40, 0.3), np.full(10, 5.0)])
    sort = np.array([quiet] * 80 + [waiting] * 40 + [quiet] * 10)
    devices = np.array(["a"] * 40 + ["b"] * 40 + ["a"] * 40 + ["c"] * 10)
    found = half_widths.half_widths(errors, sort, devices, np.full(130, 0.6))
    assert found[quiet] == pytest.approx(0.2)  # the ten runs of c say too little
    assert found[waiting] == pytest.approx(1.5 * 0.3)  # one device
    assert found[mostly] == pytest.approx(2 * 0.45)  # none
    assert found[intervals.KERNELS] == 0.6


def test_runs_that_count_a_node_twice_are_read_as_the_node(tmp_path: Path) -> None:
    head = "row_id,model,system,backend,precision,tp,pp,attn_dp,moe_tp,moe_ep,batch,isl,osl,tpot_s\n"
    twice = "a,deepseek-ai/DeepSeek-R1,b200_sxm,sglang,fp4,64,1,1,8,8,16,1024,1024,0.011\n"
    once = "b,deepseek-ai/DeepSeek-R1,b200_sxm,sglang,fp4,8,1,1,1,8,16,1024,1024,0.011\n"
    path = tmp_path / "serving.csv"
    path.write_text(head + twice + once)
    first, second = read_runs(path)
    assert first.request == second.request
    assert first.request is not None
    assert (first.request.deployment.plan.tp, first.request.deployment.plan.ep, first.request.batch) == (8, 8, 16)


def test_making_widths_monotone_by_pencil() -> None:
    names = (*intervals.DENSE, *intervals.MIXTURES, intervals.KERNELS)
    table = {
        intervals.key(sort, situation): width
        for sort in names
        for situation, width in zip(intervals.SITUATIONS, (0.2, 0.3, 0.1), strict=True)
    }
    found = monotone(table)
    assert [found[intervals.key("mixture", situation)] for situation in intervals.SITUATIONS] == [0.2, 0.3, 0.3]
