"""What suits a runtime and a chip: formats that are read, defaults, and how many chips a model is spread over."""

from __future__ import annotations

import pytest

from chipwise import api
from chipwise.core.dtypes import FORMATS
from chipwise.errors import Unsupported
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import RUNTIMES, default_runtime, runtime_named
from chipwise.hardware.suited import NARROWER, check_reads, most_devices, narrower, nearest, reads
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.request import Request, resolved

MODEL = "meta-llama/Llama-3.1-8B"


@pytest.mark.parametrize(
    ("device", "asked", "runtime", "weights"),
    [
        ("rtx-4070", {}, "llama.cpp", "q4_k_m"),
        ("gtx-1080", {}, "llama.cpp", "q4_k_m"),
        ("apple-m4-max", {}, "llama.cpp", "q4_k_m"),
        ("apple-m4-max", {"runtime": "mlx"}, "mlx", "mlx_4bit"),
        ("raspberry-pi-5", {}, "llama.cpp", "q4_k_m"),
        ("snapdragon-8-elite", {}, "llama.cpp", "q4_k_m"),
        ("epyc-9654", {}, "llama.cpp", "q4_k_m"),
        ("rtx-4070", {"runtime": "vllm"}, "vllm", "bf16"),
        ("rtx-4070", {"weights": "own"}, "llama.cpp", "bf16"),
        ("rtx-4090", {"weights": "fp8"}, "vllm", "fp8"),
        ("rtx-4090", {"weights": "awq"}, "vllm", "int4"),
        ("raspberry-pi-5", {"weights": "int8"}, "onnxruntime", "int8"),
        ("h100-sxm", {}, "vllm", "bf16"),
        ("h100-sxm", {"runtime": "llama.cpp"}, "llama.cpp", "bf16"),
        ("rtx-a6000", {}, "vllm", "bf16"),
        ("tpu-v5e", {}, "vllm", "bf16"),
        ("trainium2", {}, "vllm", "bf16"),
    ],
)
def test_what_is_not_named_follows_the_chip(device: str, asked: dict[str, str], runtime: str, weights: str) -> None:
    setting = resolved(Request(model=MODEL, deployment=Deployment(device=device, **asked))).setting
    assert (setting.runtime.name, setting.formats.stated) == (runtime, weights)


@pytest.mark.parametrize(
    ("model", "device", "runtime", "weights"),
    [
        ("openai/gpt-oss-20b", "rtx-4090", "llama.cpp", "mxfp4"),  # llama.cpp reads its own format
        ("deepseek-ai/DeepSeek-V3", "apple-m3-ultra", "llama.cpp", "q8_0"),  # 8-bit floats become the nearest it reads
        ("deepseek-ai/DeepSeek-V3", "h100-sxm", "vllm", "fp8_block"),
        ("google-bert/bert-base-uncased", "rtx-4090", "vllm", "bf16"),  # no decoder: nobody runs it in 4 bits
        ("openai/whisper-small", "rtx-4090", "vllm", "bf16"),
    ],
)
def test_the_format_of_a_checkpoint_counts(model: str, device: str, runtime: str, weights: str) -> None:
    setting = resolved(Request(model=model, deployment=Deployment(device=device))).setting
    assert (setting.runtime.name, setting.formats.stated) == (runtime, weights)


@pytest.mark.parametrize(
    ("runtime", "weights", "instead"),
    [
        ("llama.cpp", "fp8", "q8_0"),
        ("llama.cpp", "int8", "q8_0"),
        ("llama.cpp", "int4", "q4_k_m"),
        ("llama.cpp", "mlx_4bit", "q4_k_m"),
        ("mlx", "q4_k_m", "mlx_4bit"),
        ("mlx", "int8", "mlx_8bit"),
    ],
)
def test_a_format_that_a_runtime_lacks_is_refused_with_the_nearest(runtime: str, weights: str, instead: str) -> None:
    assert nearest(runtime_named(runtime), weights) == instead
    with pytest.raises(Unsupported, match=rf"does not read {weights} weights; use the nearest: --weights {instead} "):
        check_reads(runtime_named(runtime), weights)
    with pytest.raises(Unsupported, match=rf"the nearest: --weights {instead} "):
        api.estimate(MODEL, device="apple-m4-max", runtime=runtime, weights=weights)


def test_every_runtime_has_formats_to_advise_and_reads_them() -> None:
    assert set(NARROWER) == set(RUNTIMES)
    for runtime in RUNTIMES.values():
        assert all(reads(runtime, name) for name in NARROWER[runtime.name])
        bits = [FORMATS[name].bits_per_weight for name in NARROWER[runtime.name]]
        assert bits == sorted(bits, reverse=True)
        assert all(FORMATS[name].bits_per_weight < 8.5 for name in narrower(runtime, "q8_0"))


@pytest.mark.parametrize(
    ("device", "runtime", "most"),
    [
        ("raspberry-pi-5", "llama.cpp", 1),
        ("apple-m4-max", "llama.cpp", 1),
        ("snapdragon-8-elite", "llama.cpp", 1),
        ("jetson-orin-nano", "llama.cpp", 1),
        ("rtx-4070-laptop", "llama.cpp", 1),
        ("radeon-780m", "llama.cpp", 1),
        ("core-i7-13700k", "llama.cpp", 1),
        ("rtx-4070", "llama.cpp", 2),
        ("rtx-4070", "awq", 1),
        ("rx-7900-xtx", "vllm", 2),
        ("rtx-a6000", "vllm", 8),
        ("h100-sxm", "vllm", 8),
        ("tpu-v5e", "vllm", 8),
    ],
)
def test_a_model_is_spread_over_as_many_chips_as_a_machine_may_have(device: str, runtime: str, most: int) -> None:
    assert most_devices(datasheet.load(device), runtime_named(runtime)) == most


@pytest.mark.parametrize(("device", "runtime"), [("rtx-4090", "vllm"), ("apple-m4-max", "llama.cpp"), ("l4", "vllm")])
def test_a_fleet_of_geforces_is_served_by_vllm(device: str, runtime: str) -> None:
    assert default_runtime(datasheet.load(device), one_user=False) == runtime
