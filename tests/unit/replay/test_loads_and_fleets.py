"""Loads are what they say; fleets deal them out, hand caches over, and chain stages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from toy_engine import toy_load, toy_table

from chipwise.core.errors import DoesNotFit, SpecError
from chipwise.replay.cache import cache_of
from chipwise.replay.fleet import TRANSFER_S, Pool, Replica, serve, serve_apart, serve_mixed, serve_stages
from chipwise.replay.load import RequestClass, made
from chipwise.replay.outcome import capacity_per_s, outcome, over_time, steady
from chipwise.replay.policy import Policy
from chipwise.serve.request import Request

KINDS = (RequestClass(prompt_tokens=100, new_tokens=10),)


def toy_replica(**times: float) -> Replica:
    request = Request(model="gpt2", device="l4")
    return Replica(
        request=request, table=toy_table(**times), policy=Policy(), cache_tokens=1e6, cache_bytes_per_token=1000.0
    )


@pytest.mark.parametrize(("arrivals", "burst", "variation"), [("constant", 1, 0), ("poisson", 1, 1), ("gamma", 4, 2)])
def test_gaps_have_the_mean_and_the_variation_that_are_asked_for(arrivals: str, burst: float, variation: float) -> None:
    load = made(KINDS, count=40_000, rate_per_s=5.0, arrivals=arrivals, burstiness=burst, seed=0)
    gaps = np.diff(load.arrival_s)
    assert gaps.mean() == pytest.approx(0.2, rel=0.05)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, abs=0.1)


def test_a_seed_gives_the_same_requests_at_every_rate() -> None:
    kinds = (RequestClass(share=3, spread=0.4), RequestClass(name="long", prompt_tokens=4000, spread=0.4))
    slow, fast = (made(kinds, count=2000, rate_per_s=rate, seed=3) for rate in (1.0, 4.0))
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
        made(KINDS, **({"count": 10, "rate_per_s": 1.0, "seed": 0} | fields))
    with pytest.raises(SpecError, match="shared_tokens"):
        RequestClass(prompt_tokens=10, shared_tokens=10)


def test_a_router_deals_requests_out_in_turns() -> None:
    pool = Pool(replica=toy_replica(token_s=0.001), replicas=2)
    served = serve(toy_load([0.0, 0.0, 0.0], new=1), pool)
    assert served.last_s == pytest.approx([0.2, 0.1, 0.2])  # two share the first replica's step
    few = serve(toy_load([0.0, 0.0, 0.0], new=1), pool, most_lanes=1)
    assert len(few.load) == 2


def test_two_sorts_of_chips_get_their_parts() -> None:
    pools = [Pool(replica=toy_replica(token_s=0.001), weight=3), Pool(replica=toy_replica(token_s=0.002), weight=1)]
    served = serve_mixed(toy_load([10.0 * i for i in range(400)], new=1), pools)
    assert np.isclose(served.first_s - served.arrival_s, 0.2).mean() == pytest.approx(0.25, abs=0.01)


def test_a_cache_crosses_the_link_before_decoding_begins() -> None:
    load = toy_load([0.0, 5.0], prompt=100, new=11)
    pools = (Pool(replica=toy_replica(token_s=0.001)), Pool(replica=toy_replica(step_s=0.01)))
    served = serve_apart(load, *pools, link_bytes_per_s=1e6)  # 100 tokens of 1,000 bytes: 0.1 s
    assert served.first_s - served.arrival_s == pytest.approx([0.1, 0.1])
    assert served.last_s - served.first_s == pytest.approx([TRANSFER_S + 0.1 + 0.1] * 2)


def test_stages_follow_one_another() -> None:
    load = toy_load([0.0, 5.0], prompt=100, new=1)
    pools = [Pool(replica=toy_replica(token_s=0.001)), Pool(replica=toy_replica(token_s=0.002))]
    served = serve_stages([load, replace(load, new_tokens=np.full(2, 11))], pools)
    assert served.first_s - served.arrival_s == pytest.approx([0.3, 0.3])
    assert served.last_s - served.arrival_s == pytest.approx([0.32, 0.32])


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


def test_capacity_is_what_an_engine_serves_that_never_lacks_work() -> None:
    load = toy_load([0.0] * 400, prompt=100, new=1)
    served = serve(load, Pool(replica=toy_replica(token_s=0.001)))
    assert capacity_per_s(served) == pytest.approx(10.0, rel=0.15)


def test_the_cache_is_what_weights_and_working_memory_leave() -> None:
    found = cache_of(
        Request(model="meta-llama/Llama-3.1-8B", device="rtx-4090", runtime="vllm"), most_tokens=2048, length=1500
    )
    assert found.bytes_per_token == 2 * 32 * 8 * 128 * 2  # keys and values, layers, heads, head size, bf16
    assert found.tokens == pytest.approx(41_408, rel=0.06)  # what vLLM 0.19 reports for this card
    with pytest.raises(DoesNotFit, match=r"too much.*would fit"):
        cache_of(
            Request(model="meta-llama/Llama-3.1-70B-Instruct", device="rtx-4090", runtime="vllm"),
            most_tokens=2048,
            length=1500,
        )
