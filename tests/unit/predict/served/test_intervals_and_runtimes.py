"""Intervals never shrink as less is known; runtimes that do not exist on a device are refused; each has a default."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from chipwise import api
from chipwise.errors import Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import RUNTIMES, default_runtime, platform_of, runtime_named, runtimes_for
from chipwise.predict.kernels import local
from chipwise.predict.served import intervals, stack_law
from chipwise.predict.served.batching import constants
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.groups import cost_groups, grouped
from chipwise.predict.served.request import Request

MODEL = "meta-llama/Llama-3.2-1B"
FOLDS = (None, "device:h100-sxm", "device:h200-sxm", "device:b200-sxm", "family:hopper", "family:blackwell")


def half_widths(device: str, runtime: str) -> tuple[float, float | None, str]:
    groups, errors = grouped([Request(model=MODEL, deployment=Deployment(device=device, runtime=runtime))])
    assert not errors, errors
    (cost,) = cost_groups(groups)
    if isinstance(cost, Unsupported):
        pytest.skip(str(cost))
    first = cost.ttft_log_halfwidth
    return float(cost.log_halfwidth[0]), None if first is None else float(first[0]), cost.situation


@pytest.mark.parametrize("fold", FOLDS)
def test_widths_of_every_fold_do_not_shrink_as_less_is_known(fold: str | None) -> None:
    table = constants(fold).log_halfwidth
    for sort in (*intervals.DENSE, *intervals.MIXTURES, intervals.KERNELS):
        seen, sibling, unseen = (table[intervals.key(sort, situation)] for situation in intervals.SITUATIONS)
        assert seen <= sibling <= unseen, sort


def test_no_device_and_runtime_is_surer_than_a_seen_one() -> None:
    """Every device in every runtime that exists there, against vLLM on an H100, whose served runs were fitted."""
    seen = {}
    for runtime in ("vllm", "sglang", "trtllm"):
        seen[runtime], _, situation = half_widths("h100-sxm", runtime)
        assert situation == "seen"
    widest_seen = max(seen.values())
    requests = [
        Request(model=MODEL, deployment=Deployment(device=sheet.name, runtime=runtime))
        for sheet in datasheet.load_all()
        for runtime in runtimes_for(sheet)
    ]
    groups, errors = grouped(requests)
    assert not errors
    rank = {situation: i for i, situation in enumerate(intervals.SITUATIONS)}
    priced = [cost for cost in cost_groups(groups) if not isinstance(cost, Unsupported)]
    assert len(priced) > 0.95 * len(groups)
    held = local.shipped()
    for cost in priced:
        setting, device = cost.group.setting, cost.group.device
        if setting.runtime.local:  # widths of its own measured runs; see test_local.py for how they grow
            part = local.part_of(device, setting.runtime.stack)
            stack = setting.runtime.stack
            known = held.halfwidth("decode", device, part, stack)
            assert cost.log_halfwidth == pytest.approx(known if setting.runtime.checked else intervals.UNCHECKED.tpot)
            assert cost.situation == held.situation(device, part, stack)
            continue
        if (
            where := stack_law.served_where(setting, device)
        ) is not None:  # widths of whole runs; see test_stack_law.py
            situation, width = stack_law.held_situation(where)
            assert cost.log_halfwidth == pytest.approx(width)
            assert cost.situation == situation
            continue
        known = device.name in intervals.SERVED and setting.runtime.served
        assert (cost.situation == "seen") <= known, (device.name, setting.runtime.name)
        width = float(cost.log_halfwidth[0])
        assert width >= widest_seen or (known and width >= min(seen.values())), (device.name, setting.runtime.name)
        least = intervals.class_width(setting, device)
        if least is not None:  # another family, vendor or runtime than any served run
            assert width >= least.tpot >= 0.5 > widest_seen
            assert rank[cost.situation] == rank["unseen"]


@pytest.mark.parametrize(
    ("device", "runtime"),
    [
        ("raspberry-pi-4", "trtllm"),
        ("apple-m4", "trtllm"),
        ("apple-m4", "vllm"),
        ("raspberry-pi-4", "vllm"),
        ("snapdragon-8-elite", "sglang"),
        ("snapdragon-8-gen-3", "vllm"),
        ("tpu-v5e", "llama.cpp"),
        ("epyc-9755", "trtllm"),
        ("mi300x", "trtllm"),
        ("gtx-1080", "vllm"),
        ("h100-sxm", "openvino"),
    ],
)
def test_a_runtime_that_does_not_exist_on_a_device_is_refused_with_those_that_do(device: str, runtime: str) -> None:
    title = RUNTIMES[runtime].title
    default = default_runtime(datasheet.load(device))
    with pytest.raises(Unsupported, match=rf"{title} does not run on {device} .*; runtimes that do: {default}"):
        api.estimate("gpt2", device=device, runtime=runtime)


@pytest.mark.parametrize(
    ("device", "runtime"),
    [
        ("h100-sxm", "vllm"),
        ("mi300x", "vllm"),
        ("rtx-4090", "llama.cpp"),
        ("gtx-1650", "llama.cpp"),
        ("titan-rtx", "llama.cpp"),
        ("rtx-a6000", "vllm"),
        ("rtx-6000-ada", "vllm"),
        ("tpu-v5e", "vllm"),
        ("trainium2", "vllm"),
        ("apple-m4", "llama.cpp"),
        ("apple-a17-pro", "llama.cpp"),
        ("snapdragon-8-gen-3", "llama.cpp"),
        ("raspberry-pi-5", "llama.cpp"),
        ("xeon-8480-plus", "llama.cpp"),
        ("rx-7900-xtx", "llama.cpp"),
        ("hailo-10h", "onnxruntime"),
    ],
)
def test_the_default_runtime_is_what_people_run_there(device: str, runtime: str) -> None:
    sheet = datasheet.load(device)
    assert default_runtime(sheet) == runtime == runtimes_for(sheet)[0]


def test_every_device_has_a_default_that_exists_and_vllm_only_where_vllm_does() -> None:
    for sheet in datasheet.load_all():
        default = RUNTIMES[default_runtime(sheet)]
        assert platform_of(sheet) in default.runs_on, sheet.name


def test_the_first_token_has_an_interval_only_where_prompts_were_checked() -> None:
    served = api.estimate(MODEL, device="h100-sxm")
    assert served.metrics["tpot_p50"].low is not None
    for name in ("ttft_p50", "throughput", "usd_per_1k_tokens"):
        assert served.metrics[name].low is served.metrics[name].high is None
    mac = api.estimate(MODEL, device="apple-m2-max")
    first, each, rate = (mac.metrics[name] for name in ("ttft_p50", "tpot_p50", "throughput"))
    known = local.shipped().halfwidth("prefill", datasheet.load("apple-m2-max"), "gpu")
    assert first.log_halfwidth == pytest.approx(known)
    # Both errors go together: the request's half-width lies between those of its parts.
    assert rate.log_halfwidth is not None
    assert each.log_halfwidth is not None
    share = mac.ttft_s / (mac.ttft_s + 127 * mac.tpot_s)
    assert rate.log_halfwidth == pytest.approx(share * known + (1 - share) * each.log_halfwidth)


def test_a_runtime_without_constants_of_its_own_says_whose_it_uses() -> None:
    assert api.estimate(MODEL, device="h100-sxm").provenance == "predicted (seen device)"
    assert api.estimate(MODEL, device="apple-m4").provenance == "predicted (sibling device)"
    borrowed = api.estimate(MODEL, device="apple-m4", runtime="onnxruntime").provenance
    assert "ONNX Runtime estimated with vLLM's kernels" in borrowed
    # The A100's kernels were timed, but none of the fitted runs was served there.
    assert api.estimate(MODEL, device="a100-sxm-80gb").provenance == "predicted (unseen device)"


def test_the_npu_of_a_system_on_a_chip_is_not_its_gpu() -> None:
    # Apple M1: 8 cores x 128 ALUs x 2 x 1.278 GHz = 2.6 TFLOP/s; the Neural Engine's 11 are no runtime's here.
    m1 = datasheet.load("apple-m1")
    assert m1.peak("fp16") == pytest.approx(8 * 128 * 2 * 1.278e9)
    assert m1.peak("fp16", part="npu") == 11e12
    assert datasheet.load("hailo-10h").peak_flops_per_s  # where there is nothing else the NPU counts


@pytest.mark.parametrize("device", ["apple-m4-pro", "apple-m4-max", "apple-a17-pro", "apple-a18-pro"])
def test_apple_chips_answer_in_their_gpus_formats(device: str) -> None:
    found = api.estimate(MODEL, device=device, weights="q4_0")
    assert 0 < found.tpot_s < found.ttft_s
    assert math.isfinite(found.metrics["tpot_p50"].high or math.nan)


def test_what_memory_does_not_hold_stands_in_the_first_line() -> None:
    found = api.estimate("meta-llama/Llama-2-7b-hf", device="a100-sxm-80gb", prompt=36_000, batch=4)
    assert "memory holds 3 of 4 requests at once" in found.provenance
    assert "3 of 4" in str(found).splitlines()[0]
    three = api.estimate("meta-llama/Llama-2-7b-hf", device="a100-sxm-80gb", prompt=36_000, batch=3)
    assert found.tpot_s == three.tpot_s


def test_conformal_widths_are_numbers() -> None:
    assert all(np.isfinite(list(constants(fold).log_halfwidth.values())).all() for fold in FOLDS)


@pytest.mark.parametrize(
    ("device", "runtime"), [("apple-m4", "llama.cpp"), ("raspberry-pi-5", "llama.cpp"), ("l4", "vllm")]
)
def test_explaining_and_comparing_use_the_devices_default_too(device: str, runtime: str) -> None:
    assert api.explain("gpt2", device=device).estimate.runtime == runtime
    cell = api.compare(["gpt2"], devices=[device]).cells[0]
    assert cell.estimate is not None
    assert cell.estimate.runtime == runtime


@pytest.mark.parametrize(
    ("name", "runtime", "device"),
    [
        ("AutoAWQ", "awq", "rtx-4090"),
        ("mlc-llm", "mlc", "snapdragon-8-elite"),
        ("ExecuTorch", "executorch", "snapdragon-8-elite"),
        ("rkllm", "rkllm", "rk3588"),
        ("core-ml", "coreml", "apple-m4"),
        ("DirectML", "onnxruntime-directml", "rx-7900-xtx"),
        ("ort-web", "onnxruntime-web", "rtx-4090"),
        ("litert-lm", "litert-lm", "snapdragon-8-elite"),
        ("ik_llama.cpp", "ik-llama.cpp", "ryzen-9-7950x"),
        ("LM-Studio", "llama.cpp", "apple-m4"),
        ("deepspeed", "deepspeed", "gaudi2"),
    ],
)
def test_runtimes_by_the_names_that_people_use(name: str, runtime: str, device: str) -> None:
    found = api.estimate("Qwen/Qwen3-0.6B", device=device, runtime=name)
    assert found.runtime == runtime
    tpot = found.metrics["tpot_p50"]
    assert tpot.low is not None
    usual = api.estimate("Qwen/Qwen3-0.6B", device=device).metrics["tpot_p50"]
    if not runtime_named(name).checked:  # no run of it was seen
        assert (tpot.log_halfwidth or 0) > (usual.log_halfwidth or 0)


def test_a_stack_that_is_new_to_a_class_is_as_unknown_as_a_new_vendor() -> None:
    held, phone = local.shipped(), datasheet.load("snapdragon-8-elite")
    assert held.distance(phone, "npu", "genie") != "unseen"
    assert held.distance(phone, "npu", "rkllm") == "unseen"
    assert held.halfwidth("decode", phone, "npu", "rkllm") >= held.halfwidth("decode", phone, "npu", "genie")


@pytest.mark.parametrize(
    ("name", "instead"), [("TGI", "vllm"), ("tensorflow", "torch-compile"), ("hailort", "onnxruntime")]
)
def test_runtimes_that_are_not_modelled_say_what_to_use(name: str, instead: str) -> None:
    with pytest.raises(Unsupported, match=rf"does not model the runtime.*--runtime {instead}"):
        runtime_named(name)


CARD = SimpleNamespace(family="hopper", name="h100-sxm", level=lambda name: SimpleNamespace(technology="HBM3"))


def setting_of(*, causal: bool = True, encoder: bool = False, devices: int = 1, **runtime: Any) -> Any:
    usual = {"checked": True, "served": False, "local": False, "stack": "torch"}
    return SimpleNamespace(
        arch=SimpleNamespace(causal=causal, encoder=encoder),
        runtime=SimpleNamespace(**(usual | runtime)),
        plan=SimpleNamespace(devices=devices),
    )


@pytest.mark.parametrize(
    ("setting", "platform", "tpot", "ttft"),
    [
        ({"encoder": True}, "cuda", 1.6, None),
        ({"encoder": True}, "board", 2.7, None),
        ({"encoder": True}, "npu", 2.7, None),  # as little as is known of the worst
        ({"causal": False}, "cuda", 2.0, None),
        ({"checked": False, "served": True}, "cuda", 2.0, 2.0),
        ({"served": True}, "rocm", 2.0, None),
        ({}, "cuda", 0.7, None),
        ({}, "phone", 1.5, None),
        ({}, "npu", 2.0, None),
    ],
)
def test_classes_of_runs_without_widths_of_their_own(monkeypatch, setting, platform: str, tpot, ttft) -> None:
    monkeypatch.setattr(intervals, "platform_of", lambda device: platform)
    monkeypatch.setattr(intervals.stack_law, "served_where", lambda setting, device: None)
    found = intervals.class_width(setting_of(**setting), CARD)  # type: ignore[arg-type]
    assert found == intervals.ClassWidth(tpot, ttft)


def test_the_class_of_an_engine_is_that_of_fitted_runs_on_their_families_alone(monkeypatch) -> None:
    """A Hopper or Blackwell with HBM; one with GDDR, or an older card, is of another family."""
    monkeypatch.setattr(intervals, "platform_of", lambda device: "cuda")
    monkeypatch.setattr(intervals.stack_law, "served_where", lambda setting, device: None)
    engine = setting_of(served=True)
    assert intervals.class_width(engine, CARD) is None  # type: ignore[arg-type]
    narrow = SimpleNamespace(**(vars(CARD) | {"level": lambda name: SimpleNamespace(technology="GDDR7")}))
    older = SimpleNamespace(**(vars(CARD) | {"family": "ampere"}))
    for card in (narrow, older):
        assert intervals.class_width(engine, card) == intervals.ClassWidth(0.6)  # type: ignore[arg-type]
    monkeypatch.setattr(intervals.stack_law, "served_where", lambda setting, device: "there")
    monkeypatch.setattr(
        intervals.stack_law, "held_situation", lambda where, fold: ("seen", {None: 0.3, "a": 0.4}[fold])
    )
    assert intervals.class_width(engine, CARD) == intervals.ClassWidth(0.3, 0.3)  # type: ignore[arg-type]
    assert intervals.class_width(engine, CARD, fold="a") == intervals.ClassWidth(0.4, 0.4)  # type: ignore[arg-type]
    assert intervals.situation_of("unseen", engine, CARD, None) == "seen"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("devices", "several", "own", "platform", "tpot", "ttft"),
    [
        (1, False, 0.2, "cuda", 0.2, 0.5),
        (1, True, 0.2, "cuda", 1.0, None),
        (1, True, 1.5, "cuda", 1.5, None),
        (1, True, 0.2, "rocm", 2.1, None),
        (1, True, 0.2, "metal", 2.0, None),
        (2, False, 0.2, "cuda", 1.9, None),
        (2, True, 2.5, "cuda", 2.5, None),
    ],
)
def test_a_single_users_runtime_is_less_sure_of_several_requests_or_devices(
    monkeypatch, devices: int, several: bool, own: float, platform: str, tpot: float, ttft: float | None
) -> None:
    monkeypatch.setattr(intervals, "platform_of", lambda device: platform)
    monkeypatch.setattr(intervals.stack_law, "served_where", lambda setting, device: None)
    monkeypatch.setattr(intervals.local_engines, "part_of", lambda device, stack: "gpu")
    widths = {"decode": own, "prefill": 0.5}
    held = SimpleNamespace(halfwidth=lambda phase, device, part, stack: widths[phase])
    monkeypatch.setattr(intervals.local, "shipped", lambda: held)
    setting = setting_of(local=True, devices=devices)
    assert intervals.class_width(setting, CARD, several=several) == intervals.ClassWidth(tpot, ttft)  # type: ignore[arg-type]
    assert intervals.situation_of("sibling", setting, CARD, None) == "sibling"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("platform", "threads", "width"),
    [("cpu", 1, (0.6, 0.7)), ("cpu", 8, (1.0, 1.0)), ("board", 1, (1.5, 1.5)), ("phone", 4, (1.5, 1.5))],
)
def test_one_core_of_a_server_is_the_surest_of_processors(monkeypatch, platform: str, threads: int, width) -> None:
    monkeypatch.setattr(intervals, "platform_of", lambda device: platform)
    monkeypatch.setattr(intervals.stack_law, "served_where", lambda setting, device: None)
    monkeypatch.setattr(intervals.cores, "threads_of", lambda device: threads)
    found = intervals.class_width(setting_of(stack=intervals.CORES), CARD)  # type: ignore[arg-type]
    assert found == intervals.ClassWidth(*width)


@pytest.mark.parametrize(
    ("name", "family", "fold", "kernels", "situation"),
    [
        ("h100-sxm", "hopper", None, "seen", "seen"),
        ("h100-sxm", "hopper", None, "sibling", "sibling"),
        ("h100-sxm", "hopper", "device:h100-sxm", "seen", "sibling"),
        ("h100-sxm", "hopper", "family:hopper", "seen", "unseen"),
        ("h100-sxm", "hopper", "family:blackwell", "seen", "seen"),
        ("gh200", "hopper", None, "seen", "sibling"),
        ("gh200", "hopper", None, "unseen", "unseen"),
    ],
)
def test_situations_of_fitted_runs(monkeypatch, name: str, family: str, fold, kernels, situation: str) -> None:
    """The worse of the kernels' and the served runs', without what a fold leaves out."""
    monkeypatch.setattr(intervals, "platform_of", lambda device: "cuda")
    monkeypatch.setattr(intervals.stack_law, "served_where", lambda setting, device: None)
    card = SimpleNamespace(**(vars(CARD) | {"name": name, "family": family}))
    assert intervals.situation_of(kernels, setting_of(served=True), card, fold) == situation  # type: ignore[arg-type]


def test_half_widths_of_runs_by_hand() -> None:
    """The table's by class; where nothing is known, wider by what the kernels are wider than theirs; and no less."""
    table = {intervals.key(sort, "seen"): width for sort, width in (("mixture", 0.2), ("dense, waiting", 0.3))}
    table |= {intervals.key("mixture", "unseen"): 0.5, intervals.key(intervals.KERNELS, "unseen"): 0.4}
    sort, kernels = np.array(["mixture", "dense, waiting"]), np.array([0.8, 0.1])
    assert intervals.of_runs(table, sort, "seen", kernels).tolist() == [0.2, 0.3]
    assert intervals.of_runs(table, sort, "seen", kernels, intervals.ClassWidth(0.25, 9.0)).tolist() == [0.25, 0.3]
    both = np.array(["mixture", "mixture"])
    assert intervals.of_runs(table, both, "unseen", kernels).tolist() == [1.0, 0.5]


def test_sorts_of_runs_by_waiting_and_by_the_experts_format() -> None:
    dense: Any = SimpleNamespace(arch=SimpleNamespace(layers=[SimpleNamespace(ffn=None)]))
    shares = np.array([0.0, 0.19, 0.21, 0.49, 0.51, 0.9])
    first, second, third = intervals.DENSE
    assert intervals.sorts(dense, CARD, shares).tolist() == [first, first, second, second, third, third]  # type: ignore[arg-type]
    native = SimpleNamespace(peak_flops_per_s={"bf16": 1.0, "int8": 2.0})
    for stored, wide in (("bf16", False), ("int8", False), ("int4", True)):
        setting: Any = SimpleNamespace(formats=SimpleNamespace(experts=stored))
        assert intervals.widened(setting, native) == wide  # type: ignore[arg-type]
    there = SimpleNamespace(peak_flops_per_s={"int4": 1.0})
    assert not intervals.widened(setting, there)  # type: ignore[arg-type]
