"""Estimates of served models against pencil arithmetic and laws."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chipwise import api
from chipwise.errors import ChipwiseError, DoesNotFit, SpecError, UnknownName, Unsupported
from chipwise.hardware import datasheet
from chipwise.predict.cost.model import Bound
from chipwise.predict.served.batching import tpot_s
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import cost_of, estimate, estimate_of, estimates
from chipwise.predict.served.plan import Plan
from chipwise.predict.served.request import Request

LLAMA_70B = Request(
    model="meta-llama/Llama-2-70b-hf", deployment=Deployment(device="a100-sxm-80gb", weights="fp16"), prompt_tokens=128
)


def test_70b_in_fp16_is_140_gb_and_at_least_70_ms_a_token_at_2_tb_per_s() -> None:
    cost = cost_of(LLAMA_70B)  # 68.98 G parameters x 2 bytes = 138 GB; / 2.039 TB/s = 67.6 ms
    assert cost.memory.row(0)["weights"] == pytest.approx(68.98e9 * 2, rel=0.002)
    assert cost.step_s[0] > 0.0676
    assert cost.step_s[0] < 2 * 0.0676  # bandwidth is most of it


def test_decode_at_batch_1_is_memory_bound_and_prefill_compute_bound() -> None:
    found = api.estimate("meta-llama/Llama-2-70b-hf", device="a100-sxm-80gb", weights="fp16", tp=2, prompt=2048)
    assert found.bound is Bound.MEMORY
    products = [cost for cost in found.prefill if cost.kind == "matmul" and cost.place.startswith("layers")]
    assert {cost.bound for cost in products} == {Bound.COMPUTE}
    assert found.mfu["prefill"] > 0.4 > found.mfu["decode"]
    assert found.mbu["decode"] > 0.5 > found.mbu["prefill"]


def test_the_kv_cache_of_llama_2_70b_is_eight_heads_of_128_in_80_layers() -> None:
    cost = cost_of(LLAMA_70B.but(batch=4, prompt_tokens=4000, new_tokens=96))
    # keys and values x layers x KV heads x head size x tokens x sequences x bytes
    assert cost.memory.row(0)["cache"] == 2 * 80 * 8 * 128 * 4096 * 4 * 2


def test_the_parts_of_a_pass_add_up() -> None:
    cost = cost_of(LLAMA_70B)
    found = estimate_of(cost, 0)
    assert sum(op.latency_s for op in found.decode) == pytest.approx(float(cost.decode.latency_s[0]))
    assert sum(found.memory_bytes.values()) == pytest.approx(found.peak_memory_bytes)


def test_active_experts_are_read_and_all_are_kept() -> None:
    one = Request(model="mistralai/Mixtral-8x7B-v0.1", deployment=Deployment(device="h200-sxm"), prompt_tokens=64)
    few, many = cost_of(one), cost_of(one.but(batch=64))
    assert few.memory.row(0)["weights"] == pytest.approx(46.7e9 * 2, rel=0.01)
    read = [next(p.op for p in cost.decode.parts if p.op.kind == "experts").work().weight_bytes for cost in (few, many)]
    assert read[1] / read[0] == pytest.approx(4.0)  # two of eight experts for one token; 64 tokens meet all
    assert many.decode.class_s("experts")[0] > 2 * few.decode.class_s("experts")[0]


@given(batch=st.integers(1, 256), prompt=st.integers(1, 8192), more=st.integers(1, 256))
@settings(max_examples=25, deadline=None)
def test_more_requests_never_need_less_memory_or_fewer_seconds_a_step(batch: int, prompt: int, more: int) -> None:
    one = Request(
        model="Qwen/Qwen3-8B",
        deployment=Deployment(device="h200-sxm"),
        batch=batch,
        prompt_tokens=prompt,
        new_tokens=64,
    )
    few, many = cost_of(one), cost_of(one.but(batch=batch + more))
    assert many.memory.peak_bytes[0] >= few.memory.peak_bytes[0]
    assert many.tokens_per_s[0] > 0
    # A fitted model may be off by a little between neighbouring sizes, not by more.
    assert many.step_s[0] >= 0.97 * few.step_s[0]


@given(tp=st.sampled_from([2, 4, 8]))
def test_tensor_parallelism_divides_the_weights(tp: int) -> None:
    one = Request(model="Qwen/Qwen3-32B", deployment=Deployment(device="h200-sxm"))
    alone, shared = cost_of(one), cost_of(one.but(tp=tp))
    assert shared.memory.row(0)["weights"] == pytest.approx(alone.memory.row(0)["weights"] / tp, rel=0.1)
    assert any(part.op.kind == "all_reduce" for part in shared.decode.parts)
    assert not any(part.op.kind == "all_reduce" for part in alone.decode.parts)


def test_tpot_waits_for_the_others_prefills() -> None:
    # 8 requests of 100 tokens, a step of 10 ms, a prefill of 50 ms, all of it waited for: 10 + 7 * 50 / 100 = 13.5 ms
    assert tpot_s(0.010, 0.050, in_flight=8, new_tokens=100, share=1.0) == pytest.approx(0.0135)
    assert tpot_s(0.010, 0.050, in_flight=1, new_tokens=100, share=1.0) == pytest.approx(0.010)


def test_a_token_draws_no_more_than_the_boards_can_in_its_time() -> None:
    found = api.estimate("Qwen/Qwen3-32B", device="h100-sxm", tp=2, batch=16)
    seconds_a_token = 1 / found.metrics["throughput"].value
    energy = found.metrics["joules_per_token"]
    assert 0 < energy.value < 2 * datasheet.load("h100-sxm").board_power_w * seconds_a_token * 1.1
    assert energy.low < energy.value < energy.high


def test_price_is_devices_times_rate_over_throughput() -> None:
    found = api.estimate("Qwen/Qwen3-32B", device="h100-sxm", tp=2, batch=16)
    rate = 2 * datasheet.load("h100-sxm").price_usd_per_s
    assert found.metrics["usd_per_1k_tokens"].value == pytest.approx(1000 * rate / found.metrics["throughput"].value)


def test_what_does_not_fit_says_by_how_much_and_what_would() -> None:
    with pytest.raises(
        DoesNotFit, match=r"needs 1\d\d GB .* has 85\.5 GB: .* too much; --weights fp8 or --tp 2 would fit"
    ):
        api.estimate("meta-llama/Llama-2-70b-hf", device="h100-sxm", weights="bf16")


def test_names_that_are_not_known_offer_the_nearest() -> None:
    with pytest.raises(UnknownName, match="h100-sxm"):
        api.estimate("Qwen/Qwen3-8B", device="h100-smx")
    with pytest.raises(UnknownName, match="Qwen3-8B"):
        api.estimate("Qwen/Qwen3-8", device="h100-sxm")
    with pytest.raises(UnknownName, match="vllm"):
        api.estimate("Qwen/Qwen3-8B", device="h100-sxm", runtime="vllmm")
    with pytest.raises(UnknownName, match="fp8"):
        api.estimate("Qwen/Qwen3-8B", device="h100-sxm", weights="fp9")


def test_a_format_that_the_device_has_no_rate_for() -> None:
    with pytest.raises(Unsupported, match=r"v100.* has no .*bf16"):
        api.estimate("Qwen/Qwen3-8B", device="v100-sxm2-32gb", weights="bf16")


def test_plans_that_do_not_divide() -> None:
    with pytest.raises(SpecError, match="3 devices do not divide the 32 heads"):
        api.estimate("Qwen/Qwen3-8B", device="h100-sxm", tp=3)
    with pytest.raises(SpecError, match="no experts"):
        api.estimate("Qwen/Qwen3-8B", device="h100-sxm", tp=2, ep=2)
    with pytest.raises(SpecError, match="ep"):
        Plan(tp=2, ep=3)
    with pytest.raises(SpecError, match="batch"):
        Request(model="Qwen/Qwen3-8B", deployment=Deployment(device="h100-sxm"), batch=0)


def test_device_names_of_the_silicon_tables_and_runtimes_in_any_case() -> None:
    plain = api.estimate("Qwen/Qwen3-8B", device="h100-sxm", runtime="vllm")
    assert api.estimate("qwen/qwen3-8b", device="h100_sxm", runtime="VLLM").tpot_s == plain.tpot_s


def test_all_devices_answer_or_say_why_not() -> None:
    answers = api.estimate("Qwen/Qwen3-8B", devices="all", weights="int8")
    assert len(answers) == len(datasheet.names())
    assert all((row.estimate is None) == bool(row.problem) for row in answers)
    fitting = [row.estimate.tpot_s for row in answers if row.estimate is not None]
    assert fitting == sorted(fitting)
    assert len(fitting) > 30


def test_estimates_together_are_those_one_by_one() -> None:
    requests = [
        Request(model=model, deployment=Deployment(device=device), batch=batch)
        for model, device, batch in (
            ("gpt2", "l4", 1),
            ("gpt2", "h100-sxm", 4),
            ("meta-llama/Llama-3.1-70B", "rtx-4090", 1),  # does not fit
            ("gpt2", "hailo-10h", 1),
            ("gpt2", "apple-m4", 2),
            ("gpt2", "no-such-chip", 1),
            ("meta-llama/Llama-3.1-8B", "l4", 4096),  # not all at once
        )
    ]
    for request, found in zip(requests, estimates(requests), strict=True):
        if isinstance(found, ChipwiseError):
            with pytest.raises(type(found)) as refused:
                estimate(request)
            assert str(found) == str(refused.value)
            continue
        alone = estimate(request)
        assert (found.tpot_s, found.ttft_s) == pytest.approx((alone.tpot_s, alone.ttft_s))
        assert found.notes == alone.notes
        assert found.provenance == alone.provenance
        assert found.metrics["throughput"].high == pytest.approx(alone.metrics["throughput"].high)
