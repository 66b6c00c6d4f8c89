"""Continuous batching: what prompts of others cost a token, the host's time, intervals by sort of run, the fit."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from chipwise.errors import SpecError
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import runtime_named
from chipwise.predict.served import intervals
from chipwise.predict.served.batching import Constants, constants, rides_along
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import cost_of
from chipwise.predict.served.groups import grouped, memory_of
from chipwise.predict.served.request import Request

QWEN = Request(
    model="Qwen/Qwen3-32B", deployment=Deployment(device="h100-sxm", tp=2), batch=33, prompt_tokens=2048, new_tokens=128
)


def test_sglang_computes_waiting_prompts_in_passes_of_8192_positions() -> None:
    groups, _ = grouped([QWEN.but(runtime="sglang", prompt_tokens=tokens) for tokens in (2048, 3000, 8192, 10000)])
    assert groups[0].together.tolist() == [4, 2, 1, 1]
    assert groups[0].prefill(together=True).step.batch.tolist() == [4, 2, 1, 1]


def test_no_more_prompts_share_a_pass_than_others_are_in_flight() -> None:
    groups, _ = grouped([QWEN.but(runtime="sglang", batch=batch) for batch in (1, 3, 33)])
    assert groups[0].together.tolist() == [1, 2, 4]


def test_prompts_ride_along_in_engines_that_mix() -> None:
    assert rides_along(runtime_named("vllm"))
    assert rides_along(runtime_named("trtllm"))
    assert not rides_along(runtime_named("sglang"))
    assert not rides_along(runtime_named("torch-eager"))
    groups, _ = grouped([QWEN])
    assert groups[0].together.tolist() == [1]


def test_a_prompt_of_a_shared_pass_delays_others_less_than_one_by_itself() -> None:
    one = QWEN.but(runtime="sglang", prompt_tokens=512)
    cost = cost_of(one)
    waited_s = float((cost.tpot_s - cost.step_s)[0]) * 128 / 32 / constants().prefill_share
    assert 0.3 * float(cost.prefill_s[0]) < waited_s < float(cost.prefill_s[0])


def test_the_host_takes_longer_to_tell_more_devices_in_python_alone() -> None:
    known = replace(constants(), host_s={"vllm": 1e-3, "trtllm": 1e-3, "sglang": 1e-3}, sequence_s=1e-5, ranks_s=1e-4)
    # 1 ms + 20 sequences of 10 µs + log2(8) doublings of 100 µs
    assert known.host_step_s(runtime_named("vllm"), sequences=20, tp=8) == pytest.approx(1.5e-3)
    assert known.host_step_s(runtime_named("trtllm"), sequences=20, tp=8) == pytest.approx(1e-3)


def test_intervals_grow_with_those_of_kernels_less_known_than_any_that_was_left_out() -> None:
    table = {"mixture, unseen": 0.5, "mixture, sibling": 0.4, "kernels, unseen": 0.8}
    sort = np.array(["mixture", "mixture"])
    assert intervals.of_runs(table, sort, "unseen", np.array([0.6, 1.6])) == pytest.approx([0.5, 1.0])
    assert intervals.of_runs(table, sort, "sibling", np.array([0.6, 1.6])) == pytest.approx([0.4, 0.4])


def test_experts_in_four_bits_are_widened_where_nothing_multiplies_four() -> None:
    def widened(device: str, weights: str) -> bool:
        groups, _ = grouped(
            [Request(model="openai/gpt-oss-120b", deployment=Deployment(device=device, weights=weights))]
        )
        return intervals.widened(groups[0].setting, datasheet.load(device))

    assert widened("h200-sxm", "mxfp4")
    assert widened("h100-sxm", "nvfp4")
    assert not widened("b200-sxm", "mxfp4")
    assert not widened("h200-sxm", "fp8")


def test_every_fold_has_every_half_width_and_ignores_what_it_left_out() -> None:
    folds = (None, "device:h100-sxm", "device:b200-sxm", "family:hopper")
    tables = [constants(fold).log_halfwidth for fold in folds]
    wanted = {
        intervals.key(sort, situation)
        for sort in (*intervals.DENSE, *intervals.MIXTURES, intervals.KERNELS)
        for situation in intervals.SITUATIONS
    }
    assert all(set(table) == wanted and all(0 < width < 4 for width in table.values()) for table in tables)
    assert len({tuple(sorted(table.items())) for table in tables}) == len(tables)


def test_how_long_a_run_waits_decides_its_interval() -> None:
    few, many = (cost_of(QWEN.but(batch=batch)) for batch in (2, 256))
    waits = [1 - float((cost.step_s / cost.tpot_s)[0]) for cost in (few, many)]
    assert waits[0] < intervals.WAITING[0]
    assert waits[1] > intervals.WAITING[1]
    assert float(many.log_halfwidth[0]) > 2 * float(few.log_halfwidth[0])


def test_a_fold_that_is_not_there_is_refused() -> None:
    with pytest.raises((KeyError, SpecError)):
        constants("device:nowhere")


def test_constants_are_what_physics_expects() -> None:
    known: Constants = constants()
    assert 0.9 < known.kernel_scale < 1.1
    assert 0.5 < known.prefill_share <= 1.0
    assert math.isclose(known.gap_s, 1e-6, rel_tol=0.5)
    assert all(0.1e-3 < seconds < 1e-3 for seconds in known.host_s.values())


def test_a_group_served_leaves_out_what_does_not_fit_and_keeps_its_sizes() -> None:
    groups, _ = grouped([QWEN.but(batch=batch, prompt_tokens=100 * batch, dp=2) for batch in (10, 20, 40)])
    served = groups[0].served(np.array([10, 0, 7]))
    assert served.rows == (0, 2)
    assert served.in_flight.tolist() == [10, 7]
    assert served.replica_batch.tolist() == [5, 4]  # two replicas
    assert served.prompt_tokens.tolist() == [1000, 4000]


def test_memory_is_the_same_with_and_without_prices() -> None:
    groups, _ = grouped([QWEN])
    assert memory_of(groups[0]).row(0) == cost_of(QWEN).memory.row(0)
