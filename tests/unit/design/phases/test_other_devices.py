"""Costs across devices by pencil, and laws of the transfer matrix."""

from __future__ import annotations

import numpy as np
import pytest

import chipwise
from chipwise.core.digest import plain
from chipwise.core.files import build
from chipwise.design.phases.other_devices import AcrossDevices, OtherDevices, Targets
from chipwise.design.run.spec import run_spec
from chipwise.design.targets.formats import format_there
from chipwise.errors import InputError, SpecError
from chipwise.model.arch.io import save
from chipwise.model.space.search_space import SearchSpace
from chipwise.model.space.space_spec import SpaceSpec

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


def run_for(*targets, **fields):
    data = {"name": "two", "workload": {"prompt_tokens": 16, "new_tokens": 16}, "space": plain(SPACE.spec), "data": {}}
    return run_spec(data | {"targets": list(targets)} | fields, file="two.yaml")


@pytest.mark.parametrize(
    ("device", "runtime", "batch"),
    [
        ("apple-m4", None, 1),
        ("snapdragon-8-elite", None, 1),
        ("h100-sxm", None, 1),
        ("h100-sxm", "sglang", 16),
        ("raspberry-pi-5", "onnxruntime", 1),
        ("jetson-agx-orin", None, 4),
    ],
)
def test_other_devices_cost_what_chipwise_estimate_answers(tmp_path, device, runtime, batch) -> None:
    """The whole path of each: the public function on the design's own file, and the targets of a run."""
    chosen = {} if runtime is None else {"runtime": runtime}
    space = plain(SPACE.spec) | {"weights": ["int8"]} | {"layer": {**plain(SPACE.spec.layer), "ffn": ["swiglu"]}}
    spec = run_for(
        {"device": device, **chosen},
        space=space,
        workload={"prompt_tokens": 64, "new_tokens": 32, "batch": batch},
        objectives={"bits_per_byte": "minimize", "tpot_p50": "minimize"},
    )
    space = SearchSpace(spec.space)
    (target,) = OtherDevices(spec, space).sheets.values()
    rows = space.sample(4, np.random.default_rng(0))
    known = target.metrics(rows)
    for i, row in enumerate(rows):
        design = space.design(row)
        path = tmp_path / f"{i}.json"
        save(design.arch, path)
        asked = {"weights": format_there(design.weights, spec.targets[0].target.runtime), "batch": batch, **chosen}
        whole = chipwise.estimate(path, device=device, prompt=64, new=32, **asked)
        assert known["ttft_p50"][i] == pytest.approx(whole.ttft_s, rel=1e-6)
        assert known["tpot_p50"][i] == pytest.approx(whole.tpot_s, rel=1e-6)
        assert known["peak_memory"][i] == pytest.approx(whole.peak_memory_bytes, rel=1e-6)
        shown = whole.metrics["tpot_p50"]
        assert target.predict(design)["tpot_p50"] == pytest.approx([shown.value, shown.low, shown.high], rel=1e-6)


def test_no_device_is_refused_and_so_is_a_runtime_that_cannot_hold_the_space() -> None:
    with pytest.raises(InputError, match="at least one device"):
        Targets(SPACE, {}, seed=0)
    with pytest.raises(SpecError, match=r"targets\[0\]\.runtime: .*relu.*raspberry-pi-5 also has: .*onnxruntime"):
        OtherDevices(run_for("raspberry-pi-5"), SPACE)
    with pytest.raises(SpecError, match=r"targets\[0\]\.runtime: vLLM does not run on raspberry-pi-5"):
        run_for({"device": "raspberry-pi-5", "runtime": "vllm"})


def test_a_limit_there_must_hold_with_the_runs_confidence() -> None:
    """At the predicted value itself a limit holds with about a half, so it is kept at 50 % and not at 90 %."""
    device = {"device": "jetson-agx-orin", "runtime": "onnxruntime"}
    design = SPACE.design(SPACE.sample(1, np.random.default_rng(0))[0])
    value, low, high = OtherDevices(run_for(device), SPACE).sheets["jetson-agx-orin"].predict(design)["tpot_p50"]
    limited = device | {"constraints": {"tpot_p50": f"<= {(low * high) ** 0.5 * 1.001} s"}}
    sure, even = (OtherDevices(run_for(limited, confidence=share), SPACE) for share in ("90 %", "50 %"))
    assert (sure.keeps_limits(design), even.keeps_limits(design)) == (False, True)
    assert sure.chances(design)["tpot_p50@jetson-agx-orin"] == pytest.approx(0.5, abs=0.01)
    tight, wide = (
        next(item.limit for item in others.limits_on_rows() if item.metric == "tpot_p50@jetson-agx-orin")
        for others in (sure, even)
    )
    assert tight < wide <= value * 1.2
    assert any(item.metric == "peak_memory@jetson-agx-orin" for item in sure.limits_on_rows())  # the device's own


def test_a_run_counts_seconds_across_its_devices_and_keeps_their_limits() -> None:
    spec = run_spec(
        {
            "name": "two",
            "workload": {"prompt_tokens": 16, "new_tokens": 16},
            "space": plain(SPACE.spec),
            "data": {},
            "targets": [
                {"device": "raspberry-pi-5", "runtime": "onnxruntime"},
                {"device": "jetson-agx-orin", "runtime": "onnxruntime", "constraints": {"tpot_p50": "<= 1 ms"}},
            ],
        },
        file="two.yaml",
    )
    local = lambda rows: {  # noqa: E731
        name: SPACE.values(rows, "d_model") * 1e-6 for name in ("ttft_p50", "tpot_p50", "peak_memory", "parameters")
    }
    targets = AcrossDevices(spec, SPACE, OtherDevices(spec, SPACE), local)
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
    with pytest.raises(SpecError, match=r"targets\[0\]\.constraints\.tpot_sustained: "):
        run_spec(data | {"targets": [{"device": "a10", "constraints": {"tpot_sustained": "<= 1 ms"}}]}, file="x.yaml")
    (limit,) = run_spec(
        data | {"targets": [{"device": "a10", "constraints": {"throughput": ">= 1 tokens/s"}}]}, file="x.yaml"
    ).limits_elsewhere
    assert (limit.metric, limit.op) == ("throughput@a10", ">=")
    with pytest.raises(SpecError, match="listed twice"):
        run_spec(data | {"targets": ["a10", "a10"]}, file="x.yaml")
