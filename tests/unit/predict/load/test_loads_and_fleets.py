"""Loads are what they say; fleets deal them out, hand caches over, and chain stages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from toy_engine import toy_load, toy_table

from chipwise.errors import DoesNotFit, SpecError
from chipwise.hardware.runtime import runtime_named
from chipwise.predict.load.cache import cache_of
from chipwise.predict.load.fleet import (  # fmt: skip
    TRANSFER_S,
    Pool,
    Replica,
    draft_of,
    handed_over,
    parts_apart,
    replica,
    serve,
    serve_apart,
)
from chipwise.predict.load.load import RequestClass, generate_load
from chipwise.predict.load.outcome import outcome, over_time, steady
from chipwise.predict.load.policy import Policy, Speculation, policy_of
from chipwise.predict.load.step_times import step_times
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.request import Request

KINDS = (RequestClass(prompt_tokens=100, new_tokens=10),)


def toy_replica(**times: float) -> Replica:
    request = Request(model="gpt2", deployment=Deployment(device="l4"))
    return Replica(
        request=request, table=toy_table(**times), policy=Policy(), cache_tokens=1e6, cache_bytes_per_token=1000.0
    )


@pytest.mark.parametrize(("arrivals", "burst", "variation"), [("constant", 1, 0), ("poisson", 1, 1), ("gamma", 4, 2)])
def test_gaps_have_the_mean_and_the_variation_that_are_asked_for(arrivals: str, burst: float, variation: float) -> None:
    load = generate_load(KINDS, count=40_000, rate_per_s=5.0, arrivals=arrivals, burstiness=burst, seed=0)
    gaps = np.diff(load.arrival_s)
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, abs=0.1)


def test_a_seed_gives_the_same_requests_at_every_rate() -> None:
    kinds = (RequestClass(share=3, spread=0.4), RequestClass(name="long", prompt_tokens=4000, spread=0.4))
    slow, fast = (generate_load(kinds, count=2000, rate_per_s=rate, seed=3) for rate in (1.0, 4.0))
    assert (slow.prompt_tokens == fast.prompt_tokens).all()
    assert (slow.kind == fast.kind).all()
    assert slow.arrival_s == pytest.approx(4 * fast.arrival_s)
    assert (slow.kind == 0).mean() == pytest.approx(0.75, abs=0.03)
    assert slow.prompt_tokens[slow.kind == 0].mean() == pytest.approx(1024, rel=0.04)


@pytest.mark.parametrize(
    ("fields", "field"),
    [({"rate_per_s": 0.0}, "rate"), ({"count": 0}, "requests"), ({"burstiness": 0.0}, "burstiness")],
)
def test_loads_that_cannot_be_are_refused(fields: dict[str, float], field: str) -> None:
    with pytest.raises(SpecError, match=field):
        generate_load(KINDS, **({"count": 10, "rate_per_s": 1.0, "seed": 0} | fields))
    with pytest.raises(SpecError, match="shared_tokens"):
        RequestClass(prompt_tokens=10, shared_tokens=10)


def test_a_router_deals_requests_out_in_turns() -> None:
    pool = Pool(replica=toy_replica(token_s=0.001), replicas=2)
    served = serve(toy_load([0.0, 0.0, 0.0], new=1), pool)
    assert served.last_s == pytest.approx([0.2, 0.1, 0.2])  # two share the first replica's step
    few = serve(toy_load([0.0, 0.0, 0.0], new=1), pool, most_lanes=1)
    assert len(few.load) == 2


def test_a_cache_crosses_the_link_before_decoding_begins() -> None:
    load = toy_load([0.0, 5.0], prompt=100, new=11)
    pools = (Pool(replica=toy_replica(token_s=0.001)), Pool(replica=toy_replica(step_s=0.01)))
    served = serve_apart(load, *pools, link_bytes_per_s=1e6)  # 100 tokens of 1,000 bytes: 0.1 s
    assert served.first_s - served.arrival_s == pytest.approx([0.1, 0.1])
    assert served.last_s - served.first_s == pytest.approx([TRANSFER_S + 0.1 + 0.1] * 2)


def test_the_outcome_counts_what_was_served() -> None:
    pool = Pool(replica=toy_replica(token_s=0.001))
    served = serve(toy_load([0.0, 1.0], prompt=100, new=11), pool, timeline=True)
    found = outcome(served)
    assert found.requests == 2
    assert found.failed == 0
    assert found.metrics["ttft_p50"] == pytest.approx(0.1)
    assert found.metrics["tpot_mean"] == pytest.approx(0.001)
    assert found.requests_per_s == pytest.approx(2 / 1.11)
    assert found.busy_share == pytest.approx(0.22 / 1.11)
    assert found.reading_share == pytest.approx(0.2 / 0.22)
    assert over_time(served, 5)["running"].max() == 1
    assert len(steady(served, 0.5).load) == 1


def test_the_cache_is_what_weights_and_working_memory_leave() -> None:
    found = cache_of(
        Request(model="meta-llama/Llama-3.1-8B", deployment=Deployment(device="rtx-4090", runtime="vllm")),
        most_tokens=2048,
        length=1500,
    )
    assert found.bytes_per_token == 2 * 32 * 8 * 128 * 2  # keys and values, layers, heads, head size, bf16
    assert found.tokens == pytest.approx(41_408, rel=0.06)  # what vLLM 0.19 reports for this card
    with pytest.raises(DoesNotFit, match=r"too much.*would fit"):
        cache_of(
            Request(
                model="meta-llama/Llama-3.1-70B-Instruct", deployment=Deployment(device="rtx-4090", runtime="vllm")
            ),
            most_tokens=2048,
            length=1500,
        )


def test_a_sender_hands_over_one_cache_at_a_time() -> None:
    # the first sender's caches are ready at 0 and 0.5 and take a second each; the second's at 0.2
    found = handed_over(np.array([0.0, 0.2, 0.5, -1.0]), np.full(4, 1.0), np.array([0, 1, 0, 1]))
    assert found == pytest.approx([1.0, 1.2, 2.0, np.inf])


@pytest.mark.parametrize(("reading", "writing"), [(1, 1), (2, 6), (7, 2), (30, 11), (64, 64)])
def test_the_lanes_that_are_replayed_get_the_load_of_all(reading: int, writing: int) -> None:
    """Each replayed writing lane gets as much of what is read as each of all lanes would."""
    read, written, share = parts_apart(reading, writing, 2)
    assert 1 <= read <= reading
    assert 1 <= written <= writing
    assert share <= 1
    if reading + writing > 4:
        assert share * (read / reading) / written == pytest.approx(1 / writing)


def test_some_lanes_of_two_pools_stand_for_all() -> None:
    """Twelve readers and six writers: two of them and one give nearly the same times as all."""
    load = generate_load(
        (RequestClass(prompt_tokens=100, new_tokens=40, spread=0.3),), count=12_000, rate_per_s=90.0, seed=1
    )
    pools = (Pool(replica=toy_replica(token_s=0.001), replicas=12), Pool(replica=toy_replica(step_s=0.02), replicas=6))
    whole, part = (
        outcome(serve_apart(load, *pools, link_bytes_per_s=1e9, most_lanes=lanes)).metrics for lanes in (None, 2)
    )
    for name in ("ttft_mean", "ttft_p99", "tpot_mean", "e2e_mean", "e2e_p99"):
        assert part[name] == pytest.approx(whole[name], rel=0.1), name


def test_no_request_is_lost_between_two_pools() -> None:
    load = generate_load(
        (RequestClass(prompt_tokens=80, new_tokens=30, spread=0.5),), count=3000, rate_per_s=50.0, seed=2
    )
    pools = (Pool(replica=toy_replica(token_s=0.001), replicas=5), Pool(replica=toy_replica(step_s=0.02), replicas=3))
    served = serve_apart(load, *pools, link_bytes_per_s=1e9)
    assert served.done.all()
    assert len(served.load) == len(load)
    assert (served.last_s >= served.first_s).all()
    assert served.computed_tokens >= int(load.prompt_tokens.sum() + load.new_tokens.sum() - len(load))


def test_a_step_that_checks_drafts_costs_its_tokens_and_the_drafts() -> None:
    """Priced as steps of so many tokens for each sequence; n-grams cost nothing, a model one pass a token."""
    request = Request(model="Qwen/Qwen3-8B", deployment=Deployment(device="l40s", runtime="vllm"), batch=12)
    sizes = {"most_tokens": 512, "most_sequences": 64, "longest": 4096}
    plain, wide = (step_times([request], width=width, **sizes)[0] for width in (1, 5))
    small = step_times([replace(request, model="Qwen/Qwen3-0.6B")], **sizes)[0]
    drafted = wide.drafted_by(small)
    assert plain.decode_s(8, 1000) < wide.decode_s(8, 1000) < 5 * plain.decode_s(8, 1000)
    draft_s = small.decode_s(8, 1000) - small.host_s - 8 * small.sequence_host_s
    assert drafted.decode_s(8, 1000) == pytest.approx(wide.decode_s(8, 1000) + 4 * draft_s)
    assert drafted.mixed_s(8, 1000, ()) == pytest.approx(drafted.decode_s(8, 1000), rel=0.02)
    assert drafted.mixed_s(0, 0, [(200, 0)]) > wide.mixed_s(0, 0, [(200, 0)])


def test_a_model_that_drafts_takes_memory_and_must_share_the_vocabulary() -> None:
    request = Request(model="Qwen/Qwen3-8B", deployment=Deployment(device="l40s", runtime="vllm"), batch=12)
    policy = policy_of(runtime_named("vllm"))
    drafting = replace(policy, speculation=Speculation(drafted=4, acceptance=0.7, draft="Qwen/Qwen3-0.6B"))
    with_draft, alone = (replica(request, policy=each).cache_tokens for each in (drafting, policy))
    assert with_draft < 0.7 * alone  # 112 KiB a position beside 144, and 1.2 GB of weights
    other = replace(policy, speculation=Speculation(drafted=4, acceptance=0.7, draft="gpt2"))
    with pytest.raises(SpecError, match=r"gpt2 has a vocabulary of 50,257 tokens and Qwen/Qwen3-8B one of 151,936"):
        draft_of(request, other)


def test_a_load_that_pauses_for_most_of_its_time_says_so() -> None:
    said = toy_load([0.0, 1.0, 2.0, 1000.0, 1001.0]).silence()
    assert said is not None
    assert "16 min 38 s of the 16 min 41 s" in said
    assert toy_load([0.0, 1.0, 2.0, 3.0]).silence() is None
    assert toy_load([0.0]).silence() is None


def test_requests_are_cut_to_the_context_prompts_last() -> None:
    cut = toy_load([0.0, 0.0, 0.0], prompt=[10, 90, 200], new=[5, 20, 20]).within(100)
    assert cut.prompt_tokens.tolist() == [10, 90, 99]
    assert cut.new_tokens.tolist() == [5, 10, 1]
