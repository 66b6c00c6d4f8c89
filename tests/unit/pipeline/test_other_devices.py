"""Costs across devices by pencil, and laws of the transfer matrix."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise.core.digest import plain
from chipwise.core.errors import InputError, SpecError
from chipwise.core.files import build
from chipwise.hardware import datasheet
from chipwise.ops import Workload
from chipwise.pipeline.other_devices import RunTargets, Targets, sheet_metrics
from chipwise.run.spec import run_spec
from chipwise.space import SearchSpace, SpaceSpec
from chipwise.space.device_pricer import DevicePricer, design_costs, device_metrics

SPACE = SearchSpace(
    build(
        SpaceSpec,
        {
            "d_model": [64, 128],
            "depth": [1, 2, 3],
            "vocab_size": [256],
            "layer": {"heads": [1, 2], "kv_heads": [1], "ffn": ["relu", "swiglu"], "ffn_width": [64, 256]},
        },
    )
)


def wide(rows):
    return {"tpot_p50": SPACE.values(rows, "d_model") * 1e-6}


def deep(rows):
    return {"tpot_p50": SPACE.values(rows, "depth") * 1e-3}


def made(**changes) -> Targets:
    return Targets(SPACE, {"wide": wide, "deep": deep}, seed=0, **changes)


def rows_of(*pairs):
    rows = np.zeros((len(pairs), len(SPACE.genes)), int)
    rows[:, SPACE.index["d_model"]] = [[64, 128].index(d) for d, _ in pairs]
    rows[:, SPACE.index["depth"]] = [depth - 1 for _, depth in pairs]
    return SPACE.canonical(rows)


def test_worst_and_weighted_shares_by_hand() -> None:
    targets = made(weights={"wide": 3.0})
    targets.typical = {"wide": {"tpot_p50": 64e-6}, "deep": {"tpot_p50": 2e-3}}
    rows = rows_of((128, 1), (64, 3))
    assert targets.shares(rows, "tpot_p50") == pytest.approx(np.array([[2.0, 0.5], [1.0, 1.5]]))
    assert targets.across(rows, "tpot_p50", "worst") == pytest.approx([2.0, 1.5])
    assert targets.across(rows, "tpot_p50", "weighted") == pytest.approx([(2**3 * 0.5) ** 0.25, 1.5**0.25])


def test_the_worst_share_of_a_rate_is_the_least() -> None:
    rate = {"one": lambda rows: {"throughput": SPACE.values(rows, "d_model") * 1.0}}
    rate["two"] = lambda rows: {"throughput": 6.0 / SPACE.values(rows, "depth")}
    targets = Targets(SPACE, rate, seed=0)
    targets.typical = {"one": {"throughput": 64.0}, "two": {"throughput": 3.0}}
    assert targets.across(rows_of((128, 1), (64, 3)), "throughput", "worst") == pytest.approx([2.0, 2 / 3])


def test_each_device_has_its_own_front_and_what_carries_over_is_measured() -> None:
    targets = made()
    rows = rows_of((64, 3), (128, 1))  # the first is better for the first device, the second for the second
    quality = np.array([1.0, 1.0])
    fronts = targets.fronts(rows, quality, "tpot_p50")
    assert {name: list(found) for name, found in fronts.items()} == {"wide": [0], "deep": [1]}
    transfer = targets.transfer(rows, quality, "tpot_p50")
    assert np.diag(transfer.fronts) == pytest.approx([1.0, 1.0])
    assert (transfer.fronts[[0, 1], [1, 0]] < 0.1).all()
    assert np.diag(transfer.costs) == pytest.approx([1.0, 1.0])
    assert abs(transfer.costs[0, 1]) < 0.1  # width and depth are drawn independently


def test_data_sheets_price_the_space_and_no_device_is_refused() -> None:
    found = sheet_metrics(SPACE, Workload(prompt_tokens=16, new_tokens=16), ["raspberry-pi-5", "h100-sxm"])
    rows = SPACE.sample(50, np.random.default_rng(0))
    slow, fast = (metrics(rows)["tpot_p50"] for metrics in found.values())
    assert (slow > 0).all()
    assert (fast > 0).all()
    with pytest.raises(InputError, match="at least one device"):
        Targets(SPACE, {}, seed=0)


def test_layers_of_several_formats_cost_on_a_data_sheet_what_the_whole_design_does() -> None:
    spec = plain(SPACE.spec) | {"weights": ["int8", "bf16"], "sharing": ["none", "pairs"]}
    space = SearchSpace(build(SpaceSpec, spec | {"layer": {**spec["layer"], "weights": ["int4", "bf16"]}}))
    workload, pricer = Workload(prompt_tokens=16, new_tokens=16), DevicePricer(datasheet.load("h100-sxm"))
    rows = space.sample(40, np.random.default_rng(0))
    found = device_metrics(space, workload, pricer)(rows)
    for i, row in enumerate(rows):
        design = space.design(row)
        for metric, value in design_costs(design, workload, pricer).items():
            assert found[metric][i] == pytest.approx(value, rel=1e-9), (metric, design.weights)


def test_a_run_counts_seconds_across_its_devices_and_keeps_their_limits() -> None:
    spec = run_spec(
        {
            "name": "two",
            "workload": {"prompt_tokens": 16, "new_tokens": 16},
            "space": plain(SPACE.spec),
            "data": {},
            "targets": ["raspberry-pi-5", {"device": "jetson-agx-orin", "constraints": {"tpot_p50": "<= 1 ms"}}],
        },
        file="two.yaml",
    )
    local = lambda rows: {  # noqa: E731
        name: SPACE.values(rows, "d_model") * 1e-6 for name in ("ttft_p50", "tpot_p50", "peak_memory", "parameters")
    }
    targets = RunTargets(spec, SPACE, local)
    (limit,) = spec.limits_elsewhere
    assert (limit.metric, limit.limit) == ("tpot_p50@jetson-agx-orin", 1e-3)
    assert "ms" in limit.show(1e-3)
    rows = SPACE.sample(40, np.random.default_rng(0))
    known = targets.metrics(rows)
    shares = targets.targets.shares(rows, "tpot_p50")
    typical = targets.targets.typical["local"]["tpot_p50"]
    assert known["across.tpot_p50"] == pytest.approx(shares.max(axis=1) * typical)
    assert known["tpot_p50"] == pytest.approx(local(rows)["tpot_p50"])  # the limits are on this
    assert known["tpot_p50@jetson-agx-orin"].shape == (40,)


def test_targets_are_refused_by_field() -> None:
    data = {"name": "two", "workload": {}, "space": plain(SPACE.spec), "data": {}}
    with pytest.raises(SpecError, match=r"targets\[0\]\.constraints\.tpot_p99: no data sheet has it"):
        run_spec(data | {"targets": [{"device": "a10", "constraints": {"tpot_p99": "<= 1 ms"}}]}, file="x.yaml")
    (limit,) = run_spec(
        data | {"targets": [{"device": "a10", "constraints": {"throughput": ">= 1 tokens/s"}}]}, file="x.yaml"
    ).limits_elsewhere
    assert (limit.metric, limit.op) == ("throughput@a10", ">=")
    with pytest.raises(SpecError, match="listed twice"):
        run_spec(data | {"targets": ["a10", "a10"]}, file="x.yaml")
