"""Served engines off NVIDIA's GPUs: laws that must hold, what was measured, and where the law ends."""

from __future__ import annotations

import numpy as np
import pytest

from chipwise import api
from chipwise.hardware import datasheet
from chipwise.predict.served import stack_law
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.request import Request, resolved
from chipwise.predict.served.stack_law import Where, Work, constants, sequences_held
from chipwise.predict.whole_runs.sums import value_of
from chipwise_fitting.vendors import between, closed_batch_law

MODEL = "meta-llama/Meta-Llama-3-8B"


def seconds(device: str, stack: str, batch: list[int], length: list[int], devices: int = 1) -> np.ndarray:
    setting = resolved(
        Request(model=MODEL, deployment=Deployment(device="h100-sxm", runtime="vllm", tp=devices))
    ).setting
    where = Where(stack=stack, device=datasheet.load(device), devices=devices)
    law = closed_batch_law(setting, where, np.array(batch), np.array(length))
    return np.asarray(value_of(law, constants().terms()))


@pytest.mark.parametrize(("device", "stack"), [("mi300x", "vllm"), ("max-1550", "vllm"), ("gaudi2", "deepspeed")])
def test_more_requests_take_longer_and_are_served_faster(device: str, stack: str) -> None:
    batch = [1, 4, 16, 64]
    found = seconds(device, stack, batch, [512] * 4)
    assert np.all(np.diff(found) > 0)
    assert np.all(np.diff(np.array(batch) / found) > 0)


def test_longer_answers_take_longer() -> None:
    assert np.all(np.diff(seconds("mi300x", "vllm", [16] * 4, [128, 256, 512, 1024])) > 0)


@pytest.mark.parametrize(
    ("device", "stack", "batch", "length", "measured_s"),
    [  # argonne-lcf/LLM-Inference-Bench, Meta-Llama-3-8B on one device
        ("mi300x", "vllm", 64, 512, 22.14),
        ("gaudi2", "deepspeed", 16, 512, 5.36),
        ("h100-sxm", "tensorrt-llm", 16, 512, 4.58),
        ("a100-sxm-40gb", "vllm", 32, 512, 11.60),
    ],
)
def test_whole_batches_take_about_what_was_measured(
    device: str, stack: str, batch: int, length: int, measured_s: float
) -> None:
    assert seconds(device, stack, [batch], [length])[0] == pytest.approx(measured_s, rel=0.25)


def test_what_waits_for_memory() -> None:
    """Llama 2 7B holds 2 · 32 · 4,096 · 2 bytes a token; what does not fit in an A100 of 40,960 MiB waits."""
    setting = resolved(
        Request(model="meta-llama/Llama-2-7b-hf", deployment=Deployment(device="h100-sxm", runtime="vllm"))
    ).setting
    found = sequences_held(setting, datasheet.load("a100-sxm-40gb"), np.array([4, 64]), np.array([128, 2048]))
    free = 0.9 * 40_960 * 2**20 - 2 * (6.74e9 - 32000 * 4096) - 1e9
    assert found[0] == 4
    assert found[1] == pytest.approx(free / (2 * 32 * 4096 * 2 * 1.8 * 2048), rel=0.03)


def test_sizes_between_measured_ones_share_their_terms() -> None:
    assert between(32, (16, 32, 64)) == [(32, 1.0)]
    assert between(1000, (16, 32, 64)) == [(64, 1.0)]
    (below, less), (above, more) = between(2**4.25, (16, 32, 64))
    assert (below, above) == (16, 32)
    assert (less, more) == pytest.approx((0.75, 0.25))


def test_mi300x_in_vllm_is_priced_by_whole_runs_and_what_people_own_is_not() -> None:
    found = api.estimate(MODEL, device="mi300x", runtime="vllm", batch=64, prompt=512, new=512)
    assert "whole runs of vllm" in found.provenance
    assert found.tpot_s * 512 + 64 * found.ttft_s == pytest.approx(22.14, rel=0.4)  # seconds of the whole batch
    for device in ("arc-b580", "h100-sxm", "rx-7900-xtx"):
        setting = resolved(Request(model=MODEL, deployment=Deployment(device=device, runtime="vllm"))).setting
        assert stack_law.served_where(setting, datasheet.load(device)) is None


def test_an_engine_and_a_chip_that_were_run_are_surer_than_a_sibling() -> None:
    widths = {}
    for device in ("mi300x", "mi355x"):
        setting = resolved(Request(model=MODEL, deployment=Deployment(device=device, runtime="vllm"))).setting
        where = stack_law.served_where(setting, datasheet.load(device))
        assert where is not None
        widths[device] = stack_law.held_situation(where)
    assert widths["mi300x"][0] == "seen"
    assert widths["mi355x"][0] == "sibling"
    assert widths["mi300x"][1] < widths["mi355x"][1]
    unseen = Where(stack="vllm", device=datasheet.load("mi300x"))
    assert stack_law.held_situation(unseen, "vendor:AMD")[0] == "unseen"


@pytest.mark.parametrize("prompt", [True, False])
def test_the_summands_of_a_pass_by_pencil(prompt: bool) -> None:
    """Weights and FLOPs of a pass belong to one sum, all else to sums of their own, ten further on for a prompt."""
    device = datasheet.load("mi300x")
    where, one = Where(stack="vllm", device=device, devices=4), np.ones(1)
    work = Work(
        weight_bytes=3e9 * one,
        product_flops=5e12 * one,
        cache_bytes=7e8 * one,
        attention_flops=1e12 * one,
        collective_bytes=2e7 * one,
        collectives=11.0,
        kernels=13.0,
    )
    law = stack_law.pass_law(work, where, prompt=prompt, sequences=6.0, times=2.0)
    bandwidth, peak = device.mem_bandwidth_bytes_per_s, stack_law.peak_flops_per_s(device)
    flops = 6e12 if prompt else 5e12  # attention's are hidden behind its cache where tokens are decoded
    expected = [
        (0, 3e9 / bandwidth),
        (0, flops / peak),
        (2, 1.0),
        (3, 13.0),
        *(() if prompt else ((1, 7e8 / bandwidth), (4, 6.0))),
        (5, 11.0),
        (6, 2e7 / stack_law.link_bytes_per_s(device)),
    ]
    first = 10 if prompt else 0
    assert [amount.sum - first for amount in law] == [place for place, _ in expected]
    assert [float(np.ravel(amount.value)[0]) for amount in law] == pytest.approx([2 * value for _, value in expected])
