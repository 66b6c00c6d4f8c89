"""What is tried where memory is too small: messages and advice name the same changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from chipwise import api
from chipwise.errors import DoesNotFit
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import runtime_named
from chipwise.predict.explain.cases import data_sheet_case
from chipwise.predict.explain.rules.chips import fits as rule
from chipwise.predict.served.deployment import Deployment, deployed
from chipwise.predict.served.remedies import Remedy, remedies_of
from chipwise.predict.served.request import Request
from chipwise.predict.served.shortage import shortages


def asked(device: str, runtime: str, **now: Any) -> Sequence[Sequence[Remedy]]:
    """The remedies on a named device in a named runtime."""
    return remedies_of(runtime=runtime_named(runtime), device=datasheet.load(device), **now)


def test_the_least_change_of_each_sort_comes_first() -> None:
    weights, devices, requests = asked("h100-sxm", "vllm", weights="bf16", tp=2, batch=12)
    assert [each.option for each in weights] == ["--weights fp8", "--weights int8", "--weights int4"]
    assert [each.words for each in devices] == ["4 devices", "8 devices"]
    assert [each.changes for each in requests] == [(("batch", 6),), (("batch", 3),), (("batch", 1),)]


def test_one_request_cannot_become_fewer() -> None:
    assert asked("h100-sxm", "vllm", weights=None, tp=8, batch=1)[1:] == ([], [])


@pytest.mark.parametrize(
    ("device", "runtime", "formats", "degrees"),
    [
        ("rtx-4070", "llama.cpp", ["q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k"], [2]),
        ("raspberry-pi-5", "llama.cpp", ["q8_0", "q6_k", "q5_k_m", "q4_k_m", "q3_k_m", "q2_k"], []),
        ("rtx-4090-laptop", "vllm", ["fp8", "int8", "int4"], []),
        ("apple-m4-max", "mlx", ["mlx_8bit", "mlx_4bit"], []),
        ("snapdragon-8-elite", "genie", ["int4"], []),
        ("rtx-4090", "awq", ["int4_g128"], []),
        ("h100-sxm", "vllm", ["fp8", "int8", "int4"], [2, 4, 8]),
    ],
)
def test_only_what_runtime_and_chip_have_is_tried(
    device: str, runtime: str, formats: list[str], degrees: list[int]
) -> None:
    weights, devices, _ = asked(device, runtime, weights="bf16", tp=1, batch=1)
    assert [each.changes for each in weights] == [(("weights", name),) for name in formats]
    assert [each.changes for each in devices] == [(("tp", degree),) for degree in degrees]


def test_weights_and_devices_are_changed_together_where_neither_suffices() -> None:
    """671 G parameters take 671 GB in 8 bits: 8 x 85.5 GB do not hold that and a context, with 4 bits they do."""
    short = shortages([Request(model="deepseek-ai/DeepSeek-R1", deployment=Deployment(device="h100-sxm"))])[0]
    assert short is not None
    assert [each.remedy.option for each in short.fitting] == ["--weights int4 --tp 8"]
    assert short.line.endswith("; int4 on 8 devices fits (54.8 GB each)")


def test_the_first_line_names_need_memory_and_what_fits() -> None:
    """8.03 G parameters of 16 bits are 16.1 GB; a driver takes 1 GB, and 1,152 positions of cache 0.15 GB."""
    bf16 = {"model": "meta-llama/Llama-3.1-8B", "weights": "bf16"}
    fits, card, board = shortages(
        [Request(**deployed({**bf16, "device": name})) for name in ("rtx-4090", "rtx-4070", "raspberry-pi-5")]
    )
    assert fits is None
    assert card is not None
    assert board is not None
    assert card.line == (
        "does not fit: needs 17.3 GB, has 12.9 GB; q8_0 fits (9.74 GB), or 2 devices fit (9.15 GB on each)"
    )
    assert board.line == "does not fit: needs 16.4 GB, has 16 GB; q8_0 fits (8.84 GB)"


def test_where_nothing_fits_a_chip_is_named_that_holds_it() -> None:
    short = shortages([Request(model="meta-llama/Llama-3.1-70B", deployment=Deployment(device="raspberry-pi-5"))])[0]
    assert short is not None
    assert not short.fitting
    assert short.chip is not None
    assert datasheet.load(short.chip).mem_capacity_bytes >= short.needed_bytes
    assert short.line.endswith(f"; {short.chip} has enough memory")


def test_the_message_and_the_advice_say_the_same() -> None:
    """70 G parameters in 16 bits are 138 GB, in 8 bits 69; an H100 has 80 GB, two have 160."""
    model = "meta-llama/Llama-2-70b-hf"
    with pytest.raises(DoesNotFit, match="--weights fp8 or --tp 2 would fit"):
        api.estimate(model, device="h100-sxm", weights="bf16")
    said = [proposal.title for proposal in rule(data_sheet_case(model, "h100-sxm", weights="bf16"))]
    assert said == ["weights in fp8, so that it fits", "2 devices, so that it fits"]


def test_raising_macos_limit_is_named_where_the_rest_leaves_macos_room() -> None:
    short = shortages(
        [
            Request(
                model="llama-3.3-70b",
                deployment=Deployment(device="apple-m4-max", weights="q8_0"),
                prompt_tokens=100_000,
            )
        ]
    )[0]
    assert short is not None
    assert short.limit_mib is not None
    assert 96e9 < short.needed_bytes <= 2**20 * short.limit_mib <= 120e9
    assert "has 96 GB for its GPU (of 128 GB); q5_k_m fits" in short.line
    assert short.line.endswith(f"sudo sysctl iogpu.wired_limit_mb={short.limit_mib}")
    too_large = shortages(
        [Request(model="llama-3.3-70b", deployment=Deployment(device="m4 max 64gb", weights="q8_0"))]
    )[0]
    assert too_large is not None
    assert too_large.limit_mib is None
