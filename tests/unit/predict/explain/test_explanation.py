"""The answer as a whole: parts add up, limits are limits, saturation is where floor and slope meet."""

from __future__ import annotations

import json
import re

import pytest
from explain_cases import case
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chipwise.core import units
from chipwise.hardware import datasheet
from chipwise.hardware.runtime import runtimes_for
from chipwise.model.arch.arch import uniform
from chipwise.predict.explain.explanation import explain_case, to_data
from chipwise.predict.explain.notes import shared_context
from chipwise.predict.explain.saturation import batch_curve, saturation_point, token_curve
from chipwise.predict.explain.waterfall import WAITING, reached, waterfall

RUNTIMES = ("vllm", "sglang", "trtllm", "torch-eager", "torch-compile", "llama.cpp", "onnxruntime")


@settings(max_examples=25, deadline=None)
@given(
    model=st.sampled_from(["gpt2", "meta-llama/Llama-3.1-8B", "mistralai/Mixtral-8x7B-v0.1", "bert-base-uncased"]),
    device=st.sampled_from(["a100-sxm-80gb", "h100-sxm", "l4", "rtx-4090", "mi300x", "tpu-v5e"]),
    runtime=st.sampled_from(RUNTIMES),
    batch=st.sampled_from([1, 4, 64]),
    tp=st.sampled_from([1, 2]),
)
def test_the_parts_add_up_to_the_predicted_time(model: str, device: str, runtime: str, batch: int, tp: int) -> None:
    assume(runtime in runtimes_for(datasheet.load(device)))
    if device in ("l4", "rtx-4090", "tpu-v5e") and tp > 1:
        tp = 1
    asked = case(model, device, runtime=runtime, batch=batch, tp=tp, prompt_tokens=300)
    for phase, total in (("prefill", asked.estimate.ttft_s), ("decode", asked.estimate.tpot_s)):
        if phase not in asked.phases:
            continue
        parts = waterfall(asked, phase)  # type: ignore[arg-type]
        assert sum(part.seconds for part in parts) == pytest.approx(total, rel=1e-9)
        assert all(part.seconds > 0 for part in parts), parts
        assert 0 < reached(parts) <= 1


def test_one_request_waits_for_nobody_and_many_wait() -> None:
    names = {n: [part.name for part in waterfall(case("gpt2", batch=n), "decode")] for n in (1, 32)}
    assert WAITING not in names[1]
    assert WAITING in names[32]


def test_the_bandwidth_limit_of_llama_2_7b_is_its_bytes_over_the_bandwidth() -> None:
    """6.6 G parameters besides the token table x 2 bytes / 2.039 TB/s = 6.5 ms, and a little cache."""
    parts = {
        part.name: part.seconds for part in waterfall(case("meta-llama/Llama-2-7b-hf", prompt_tokens=64), "decode")
    }
    assert parts["bandwidth limit"] == pytest.approx((6.738e9 - 32_000 * 4096) * 2 / 2.039e12, rel=0.02)
    assert "unfused traffic" not in parts


def test_an_eager_runtime_moves_more_and_pays_for_launches() -> None:
    eager = {part.name: part.seconds for part in waterfall(case("gpt2", runtime="torch-eager"), "prefill")}
    fused = {part.name: part.seconds for part in waterfall(case("gpt2", runtime="vllm"), "prefill")}
    assert eager["unfused traffic"] > 0
    assert eager["bandwidth limit"] + eager["compute limit"] == pytest.approx(
        fused["bandwidth limit"] + fused["compute limit"], rel=1e-4
    )  # the ideal does not depend on the runtime, but for the 47 columns that vLLM adds to the head
    assert eager["launches and gaps"] > fused["launches and gaps"]


@given(floor=st.floats(0.1, 10), slope=st.floats(1e-4, 0.1))
def test_saturation_is_where_the_lines_meet(floor: float, slope: float) -> None:
    sizes = [2**i for i in range(14)]
    seconds = [max(floor, slope * size) for size in sizes]
    if slope * sizes[-2] > floor:
        assert saturation_point(sizes, seconds) == pytest.approx(floor / slope)


def test_what_never_grows_is_never_saturated() -> None:
    assert saturation_point([1, 2, 4], [1.0, 1.0, 1.0]) is None


def test_more_at_once_is_never_faster() -> None:
    for curve in (batch_curve(case("gpt2")), token_curve(case("meta-llama/Llama-3.1-8B"))):
        assert curve is not None
        assert curve.latency_s[-1] > curve.latency_s[0]


@pytest.mark.parametrize(("depth", "held"), [(1, "l2"), (2, "l2"), (60, None)])
def test_a_small_working_set_names_the_cache_that_holds_it(depth: int, held: str | None) -> None:
    """Layers of 0.26 MB in int8 beside an L2 of 2 MB in all four cores together: two fit, sixty do not."""
    arch = uniform(vocab_size=64, d_model=128, depth=depth, heads=4, ffn_width=512, max_tokens=128)
    one = case(arch, "raspberry-pi-5", runtime="onnxruntime", weights="int8", prompt_tokens=64, new_tokens=32)
    notes = [note for note in explain_case(one).notes if "holds: read at" in note]
    moved = sum(cost.work.bytes * cost.count for cost in one.operators("decode"))
    if held is None:
        assert moved > 2 * 2.1e6
        assert not notes
    else:
        (note,) = notes
        assert f"reads {units.show(float(moved), 'bytes')}, which {held} (2.1 MB) holds" in note


@pytest.mark.parametrize(
    ("device", "runtime", "held"),
    [
        ("h100-sxm", "vllm", "l2 (52.4 MB) holds: read at 9.41 TB/s, not at the 3.35 TB/s of memory"),
        ("snapdragon-8-elite", "llama.cpp", "l2 (24 MB) holds: read at 238 GB/s, not at the 84.8 GB/s of memory"),
        ("rtx-5090", "llama.cpp", None),  # nobody states the rate of its L2 cache
    ],
)
def test_caches_of_gpus_and_phones_are_named_if_their_rates_are_known(device: str, runtime: str, held: str) -> None:
    arch = uniform(vocab_size=64, d_model=128, depth=1, heads=4, ffn_width=512, max_tokens=128)
    notes = [note for note in explain_case(case(arch, device, runtime=runtime)).notes if "holds: read at" in note]
    assert [held in note for note in notes] == ([] if held is None else [True])


def test_an_encoder_has_no_batch_of_decodes() -> None:
    assert batch_curve(case("bert-base-uncased")) is None


def test_sharing_a_context_costs_less_than_proportionally() -> None:
    shared = shared_context(case("meta-llama/Llama-3.1-8B", prompt_tokens=4096))
    assert shared is not None
    one, many = shared.shared_s[0], shared.shared_s[-1]
    assert many < shared.candidates[-1] * one / 4
    savings = [shared.saving(i) for i in range(len(shared.candidates))]
    assert savings == sorted(savings)  # the more share, the more is saved
    assert savings[-1] <= shared.candidates[-1]


def test_the_verdict_names_bound_and_share() -> None:
    found = explain_case(case("meta-llama/Llama-3.1-8B"))
    prefill, decode = (phase.verdict for phase in found.phases)
    assert prefill.startswith("prefill is compute-bound: ")
    assert decode.startswith("decode is memory-bound: ")
    assert "streaming weights takes" in decode


@pytest.mark.parametrize(
    ("model", "device", "runtime"),
    [
        ("google/gemma-3-1b-pt", "apple-m3-max", "llama.cpp"),
        ("gpt2", "h100-sxm", "vllm"),
        ("gpt2", "l4", "torch-eager"),
    ],
)
def test_the_shares_of_a_verdict_are_those_of_the_waterfall(model: str, device: str, runtime: str) -> None:
    """What a phase is bound by and what the limits explain are parts of one whole: together at most 100 %."""
    for phase in explain_case(case(model, device, runtime=runtime, weights="fp16")).phases:
        whole = sum(part.seconds for part in phase.parts)
        shares = [float(share) for share in re.findall(r"([\d.]+) %", phase.verdict)]
        shown = [float(units.show(part.seconds / whole, "share", digits=2)[:-2]) for part in phase.parts]
        if "is bound by" in phase.verdict:
            assert shares[0] in shown
            assert sum(shares) <= 100 + 1
        assert shares[-1] == pytest.approx(100 * reached(phase.parts), abs=0.51)


def test_operators_add_up_and_the_largest_comes_first() -> None:
    for phase in explain_case(case("gpt2")).phases:
        assert sum(each.share for each in phase.operators) == pytest.approx(1)
        assert phase.operators[0].share == max(each.share for each in phase.operators)


def test_what_does_not_fit_is_said_first() -> None:
    found = explain_case(case("meta-llama/Llama-2-70b-hf"))
    assert found.does_not_fit.startswith("does not fit: needs ")
    assert "; fp8 fits (" in found.does_not_fit
    assert "does not fit; as if it did: prefill " in found.headline()
    assert "fits" in {advice.rule for advice in found.advice}


def test_json_is_json() -> None:
    data = json.loads(json.dumps(to_data(explain_case(case("gpt2"))), allow_nan=False))
    assert data["phases"][0]["parts"]
    assert data["advice"][0]["gains"]
