"""Half-widths of classes of runs are those that the document states, and waiting adds up by pencil."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from chipwise.hardware import datasheet
from chipwise.hardware.runtime import runtime_named
from chipwise.model.ops.work import Work
from chipwise.predict.cost.model import Bound, OpCost
from chipwise.predict.kernels import local
from chipwise.predict.served import intervals
from chipwise.predict.served.batching import constants, tpot_s
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import misaligned
from chipwise.predict.served.plan import Plan
from chipwise.predict.served.request import Request, resolved

TABLE = Path(__file__).parents[4] / "docs" / "notes" / "validation.md"
ROWS = {  # the document's row, and a run of its class: runtime, device, several requests, devices
    "PyTorch, NVIDIA GPUs": ("torch-compile", "l4", False, 1),
    "vLLM, A100": ("vllm", "a100-sxm-80gb", False, 1),
    "TensorRT-LLM, A100": ("trtllm", "a100-sxm-80gb", False, 1),
    "llama.cpp, MI300X": ("llama.cpp", "mi300x", True, 1),
    "llama.cpp, Max 1550": ("llama.cpp", "max-1550", True, 1),
    "PyTorch, Gaudi 2 (measured in DeepSpeed)": ("torch-compile", "gaudi2", False, 1),
    "llama.cpp on several NVIDIA devices, which split layers": ("llama.cpp", "rtx-4090", False, 2),
    "everything else": ("vllm", "tpu-v5e", False, 1),
}


def width_of(runtime: str, device: str, several: bool = False, devices: int = 1) -> intervals.ClassWidth | None:
    found = resolved(Request(model="gpt2", deployment=Deployment(device="l4", runtime="vllm"))).setting
    asked = replace(found, runtime=runtime_named(runtime), plan=Plan(tp=devices))
    return intervals.class_width(asked, datasheet.load(device), several=several)


@pytest.mark.parametrize("row", ROWS)
def test_a_classs_width_is_the_one_that_was_read_off_its_measurements(row: str) -> None:
    line = next(line for line in TABLE.read_text().splitlines() if line.startswith(f"| {row}"))
    stated = float(re.findall(r"\| (\d\.\d),", line)[0])
    found = width_of(*ROWS[row])
    assert found is not None
    assert found.tpot == stated
    assert found.ttft is None


def test_less_known_runtimes_and_devices_of_one_user_are_less_sure() -> None:
    """PyTorch and ONNX Runtime: a factor of e on CPUs, more on Apple's GPUs, most on phones and boards."""
    names = ("l4", "epyc-9755", "apple-m4", "snapdragon-8-elite", "raspberry-pi-5", "tpu-v5e")
    widths = [width_of("onnxruntime", name).tpot for name in names]  # type: ignore[union-attr]
    assert widths == [0.7, 1.0, 1.15, 1.5, 1.5, 2.0]
    assert width_of("llama.cpp", "rtx-4090", True).tpot == 1.0  # type: ignore[union-attr]
    assert width_of("llama.cpp", "apple-m4", True).tpot == 2.0  # type: ignore[union-attr]


def test_fitted_engines_and_families_have_no_class_and_local_ones_their_own_runs() -> None:
    assert width_of("vllm", "h100-sxm") is None
    assert width_of("sglang", "b200-sxm") is None
    assert width_of("vllm", "rtx-5090").tpot == 0.6  # type: ignore[union-attr]  # of the family, without its memory
    sheet, held = datasheet.load("apple-m4"), local.shipped()
    part = local.part_of(sheet, "llama.cpp")
    found = width_of("llama.cpp", "apple-m4")
    assert found is not None
    assert (found.tpot, found.ttft) == tuple(held.halfwidth(phase, sheet, part) for phase in ("decode", "prefill"))
    encoder = resolved(Request(model="bert-base-uncased", deployment=Deployment(device="l4"))).setting
    assert intervals.class_width(encoder, datasheet.load("h100-sxm")) == intervals.UNCHECKED


def test_how_much_of_a_tokens_time_is_waiting_decides_the_sort() -> None:
    dense = resolved(Request(model="gpt2", deployment=Deployment(device="h100-sxm"))).setting
    sheet = datasheet.load("h100-sxm")
    found = intervals.sorts(dense, sheet, np.array([0.1, 0.3, 0.6])).tolist()
    assert found == ["dense, hardly waiting", "dense, waiting", "dense, mostly waiting"]
    mixture = resolved(Request(model="Qwen/Qwen3-30B-A3B", deployment=Deployment(device="h100-sxm"))).setting
    assert intervals.sorts(mixture, sheet, np.array([0.1, 0.9])).tolist() == ["mixture", "mixture"]


def test_what_the_fits_saw_of_a_run() -> None:
    setting = resolved(Request(model="gpt2", deployment=Deployment(device="h100-sxm"))).setting

    def seen(device: str, kernels: str = "seen", fold: str | None = None, runtime: str = "vllm") -> str:
        asked = replace(setting, runtime=runtime_named(runtime))
        return intervals.situation_of(kernels, asked, datasheet.load(device), fold)  # type: ignore[arg-type]

    assert (seen("h100-sxm"), seen("h100-sxm", "sibling"), seen("h100-sxm", "unseen")) == ("seen", "sibling", "unseen")
    assert seen("h100-sxm", fold="device:h100-sxm") == "sibling"  # the H200 is left
    assert seen("h100-sxm", fold="family:hopper") == "unseen"
    assert (seen("gb300"), seen("a100-sxm-80gb"), seen("tpu-v5e")) == ("sibling", "unseen", "unseen")
    assert (seen("mi300x"), seen("mi300x", fold="vendor:AMD")) == ("seen", "unseen")  # whole runs of vLLM
    assert seen("apple-m4", "sibling", runtime="llama.cpp") == "sibling"


def test_waiting_for_the_others_prompts() -> None:
    """Steps of 10 ms; while one of 5 makes 20 tokens, four prompts of 100 ms wait at a share of 0.5."""
    assert float(tpot_s(0.01, 0.1, in_flight=5, new_tokens=20, share=0.5)) == pytest.approx(0.01 + 0.5 * 0.1 * 4 / 20)
    assert float(tpot_s(0.01, 0.1, in_flight=1, new_tokens=20, share=0.5)) == 0.01


def test_a_pass_on_the_device_and_with_its_host() -> None:
    """Products of 4 s, attention of 2, experts of 3, all at their scale; communication 1, the rest 5, 10 kernels."""
    classes = {"matmul": 4.0, "attention": 2.0, "experts": 3.0, "other": 5.0}
    times = SimpleNamespace(
        latency_s=np.array([20.0]),
        kernels=10,
        busy_s=lambda kind, scale=1.0: np.array([scale * classes[kind]]),
        class_s=lambda kind: np.array([1.0]),
    )
    vllm = runtime_named("vllm")
    known = replace(
        constants(),
        kernel_scale=2.0,
        experts_scale={"vllm": 3.0},
        gap_s=0.5,
        host_s={"vllm": 7.0},
        sequence_s=0.25,
        ranks_s=0.5,
    )
    device_s = 2 * 4 + 2 * 2 + 3 * 3 + 1 + 5 + 10 * 0.5
    assert known.device_s(times, vllm).tolist() == [device_s]  # type: ignore[arg-type]
    eager = replace(vllm, graphs=False, dispatch_s=1.0)
    assert known.device_s(times, eager).tolist() == [20.0]  # type: ignore[arg-type]
    assert known.device_s(times, replace(eager, dispatch_s=3.0)).tolist() == [30.0]  # type: ignore[arg-type]
    setting = SimpleNamespace(runtime=vllm, plan=Plan(tp=4))
    host_s = 7 + 0.25 * 8 + 0.5 * 2
    assert known.step_s(times, setting, 8).tolist() == [device_s + host_s]  # type: ignore[arg-type]
    assert known.waited_s(times, setting, 2).tolist() == [device_s]  # type: ignore[arg-type]
    apart = SimpleNamespace(runtime=replace(vllm, mixes=False), plan=Plan(tp=4))
    assert known.waited_s(times, apart, 2).tolist() == [(device_s + 8) / 2]  # type: ignore[arg-type]
    alone = replace(runtime_named("llama.cpp"), python=True)
    assert known.host_step_s(alone, sequences=3, tp=1) == 0.0


def test_three_misaligned_products_are_named_and_the_rest_counted() -> None:
    def product(place: str, seconds: float, doubt: float = 0.1) -> OpCost:
        work = Work(flops=1)
        return OpCost(place=place, kind="matmul", latency_s=seconds, bound=Bound.MEMORY, work=work, doubt=doubt)

    assert misaligned([product("a", 1.0, doubt=0.0)], []) == []
    (three,) = misaligned([product(name, 1.0) for name in "abc"], [product("a", 1.0)])
    assert three.startswith("rows of a, b, c are not a multiple of 16 bytes")
    (five,) = misaligned([product(name, 1.0) for name in "abcde"])
    assert five.startswith("rows of a, b, c and 2 more are")
    (large,) = misaligned([product("a", 1.0), product("b", 0.009)])  # less than a hundredth is not worth a note
    assert large.startswith("rows of a are")


def test_one_core_was_measured_and_several_were_not() -> None:
    """ONNX Runtime on one core of a server: its own widths, also of first tokens; on several their class's."""

    def width(device: str) -> tuple[float, float | None]:
        found = resolved(Request(model="gpt2", deployment=Deployment(device=device, runtime="onnxruntime")))
        known = intervals.class_width(found.setting, found.device)
        assert known is not None
        return known.tpot, known.ttft

    assert width("xeon-8480-plus:1-core") == (0.6, 0.7)
    assert width("xeon-8480-plus") == width("core-i7-13700k") == (1.0, 1.0)
    assert width("raspberry-pi-5") == (1.5, 1.5)
    assert width("rtx-4090") == (0.7, None)


def test_widths_of_encoder_decoders_are_those_of_their_platform() -> None:
    def width(device: str, runtime: str) -> intervals.ClassWidth | None:
        found = resolved(Request(model="google-t5/t5-small", deployment=Deployment(device=device, runtime=runtime)))
        return intervals.class_width(found.setting, found.device)

    for device, runtime, stated in (
        ("rtx-4090", "torch-compile", 1.6),
        ("core-i7-13700k", "onnxruntime", 2.1),
        ("raspberry-pi-5", "onnxruntime", 2.7),
        ("apple-m4", "onnxruntime", 2.7),  # where no table was found, as on the least known
    ):
        assert width(device, runtime) == intervals.ClassWidth(stated)
