"""Every kind of target keeps the contract; data sheets are corrected by power and price that the run states."""

from __future__ import annotations

import pytest

from chipwise.api.testing.target_suite import TargetSuite
from chipwise.design.run.spec import TargetSpec, run_spec
from chipwise.design.targets.local import CalibratedTarget
from chipwise.design.targets.sheet import sheet_target
from chipwise.design.targets.target import TARGETS, kind_of
from chipwise.errors import SpecError
from chipwise.hardware import datasheet
from chipwise.hardware.power_draw import PHONE_IDLE_W, PHONE_LOAD_W
from chipwise.model.space.search_space import SearchSpace
from support.machines import core_like


def spec(device: str = "snapdragon-8-elite", *, constraints=None, space=None, **target):
    fields = {
        "d_model": [64, 128],
        "depth": [1, 2],
        "vocab_size": [512],
        "head_size": [32],
        "layer": {"heads": [2, 4], "kv_heads": [1, 2], "ffn": ["swiglu"], "ffn_width": [64, 256]},
        "weights": ["int8", "int4"],
        "max_tokens": 128,
    }
    data = {
        "name": "toy",
        "workload": {"prompt_tokens": 16, "new_tokens": 16},
        "target": {"device": device, **target},
        "constraints": constraints or {"tpot_p50": "<= 50 ms"},
        "space": {**fields, **(space or {})},
        "data": {"source": "files", "paths": ["x.txt"]},
    }
    return run_spec(data, file="toy.yaml")


def target_of(**fields):
    run = spec(**fields)
    space = SearchSpace(run.space)
    return sheet_target(run, space), space


class TestDataSheet(TargetSuite):
    def make(self):
        return target_of()


class TestServer(TargetSuite):
    def make(self):
        return target_of(device="h100-sxm", runtime="vllm", space={"weights": ["int8"]})


class TestCalibration(TargetSuite):
    def make(self):
        run = spec("local", constraints={"tpot_p99": "<= 50 ms"})
        space = SearchSpace(run.space)
        return CalibratedTarget(run, space, core_like(), None), space


def test_every_row_of_the_table_opens_and_each_name_has_its_kind() -> None:
    for name in TARGETS.names():
        assert callable(TARGETS.load(name))
    assert [kind_of(name) for name in ("local", "ssh:me@board", "board.json", "apple-m4")] == [
        "local", "ssh", "profile", "sheet",
    ]  # fmt: skip


def test_power_is_what_the_run_states_and_rises_no_higher() -> None:
    target, space = target_of(power="6 W", constraints={"power": "<= 6 W"})
    watts = target.metrics(space.sample(20, __import__("numpy").random.default_rng(0)))["power"]
    assert (watts > 0).all()
    assert (watts <= 6.0).all()


def test_a_phone_whose_watts_nobody_publishes_draws_what_small_machines_do() -> None:
    target, space = target_of(constraints={"power": "<= 6 W"})
    watts = target.metrics(space.sample(20, __import__("numpy").random.default_rng(0)))["power"]
    assert ((watts >= PHONE_IDLE_W) & (watts <= PHONE_LOAD_W)).all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"device": "no-such-chip"}, "target.device: unknown device"),
        ({"device": "apple-m4", "runtime": "vllm"}, "target.runtime: vLLM does not run on apple-m4"),
        ({"device": "apple-m4", "ambient": "400 C"}, "target.ambient: must be from -40 to 85 °C, not 400 °C"),
        ({"device": "apple-m3-max", "constraints": {"power": "<= 6 W"}}, "constraints.power: .*board power"),
        ({"device": "ssh:me@board"}, "target.like: name the data sheet"),
        ({"device": "local", "tp": 2}, "target.tp: only valid if `device` names another machine"),
    ],
)
def test_a_target_that_cannot_be_is_refused_with_its_field(fields, message) -> None:
    with pytest.raises(SpecError, match=message):
        spec(**fields)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({"conv": ["both"]}, "convolutions"),
        ({"layer": {"heads": [2], "kv_heads": [1], "ffn": ["relu"], "ffn_width": [64]}}, "relu"),
        ({"weights": ["fp8"]}, "fp8"),
    ],
)
def test_a_space_that_the_runtimes_files_cannot_hold_is_refused_before_the_search(space, message) -> None:
    pytest.importorskip("gguf")
    with pytest.raises(SpecError, match=message):
        target_of(space=space)


def test_confidence_is_a_share_of_at_least_a_half() -> None:
    for text in ("40 %", "100 %", "much"):
        with pytest.raises(SpecError, match="confidence"):
            run_spec({**_plain(), "confidence": text}, file="toy.yaml")


def test_the_default_runtime_is_the_devices_own() -> None:
    assert TargetSpec().runtime == "onnxruntime"
    assert TargetSpec(device="apple-m4").runtime == "llama.cpp"
    assert TargetSpec(device="h100-sxm").runtime == "vllm"


def test_a_device_holds_no_more_than_its_memory() -> None:
    target, _ = target_of()
    (limit,) = target.limits
    assert limit.limit == datasheet.load("snapdragon-8-elite").mem_capacity_bytes


def _plain():
    return {
        "name": "toy",
        "workload": {"prompt_tokens": 8, "new_tokens": 8},
        "space": {
            "d_model": [64],
            "depth": [1],
            "vocab_size": [512],
            "layer": {"heads": [2], "kv_heads": [1], "ffn": ["relu"], "ffn_width": [64]},
            "max_tokens": 64,
        },
        "data": {},
    }
