"""Laws of two pools: nothing is lost, more of anything never hurts, and one kind of fleet contains the other."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_engine import toy_table

from chipwise.predict.load.fleet import Pool, Replica, serve, serve_apart
from chipwise.predict.load.load import RequestClass, generate_load
from chipwise.predict.load.outcome import metrics_of
from chipwise.predict.load.policy import Policy, Speculation
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.request import Request

LAWS = settings(max_examples=15, deadline=None, derandomize=True)
NOISE = 1.02  # the order of arrival at the second pool changes a little with every speed


def pool(replicas: int = 1, *, policy: Policy | None = None, cache_tokens: float = 1e6, **times: float) -> Pool:
    copy = Replica(
        request=Request(model="gpt2", deployment=Deployment(device="l4")),
        table=toy_table(**times),
        policy=policy or Policy(),
        cache_tokens=cache_tokens,
        cache_bytes_per_token=1000.0,
    )
    return Pool(replica=copy, replicas=replicas)


def load(rate: float, seed: int, count: int = 300):  # type: ignore[no-untyped-def]
    return generate_load(
        (RequestClass(prompt_tokens=100, new_tokens=20, spread=0.4),), count=count, rate_per_s=rate, seed=seed
    )


@LAWS
@given(seed=st.integers(0, 99), readers=st.integers(1, 4), writers=st.integers(1, 4), rate=st.floats(1, 12))
def test_every_request_ends_once_and_in_order(seed: int, readers: int, writers: int, rate: float) -> None:
    asked = load(rate, seed)
    pools = pool(readers, token_s=0.001), pool(writers, step_s=0.01, cache_tokens=2000)
    served = serve_apart(asked, *pools, link_bytes_per_s=1e7)
    assert served.done.all()
    assert (served.first_s >= served.arrival_s).all()
    assert (served.last_s >= served.first_s).all()
    assert served.computed_tokens >= int((asked.prompt_tokens + asked.new_tokens - 1).sum())


@LAWS
@given(seed=st.integers(0, 99), faster=st.floats(1.5, 10), what=st.sampled_from(("link", "read", "write", "rate")))
def test_more_of_anything_never_hurts(seed: int, faster: float, what: str) -> None:
    def e2e(link: float, read: float, write: float, rate: float) -> dict[str, float]:
        pools = pool(2, token_s=0.001 / read), pool(2, step_s=0.01 / write)
        return metrics_of(serve_apart(load(rate, seed), *pools, link_bytes_per_s=link))

    plain = {"link": 1e6, "read": 1.0, "write": 1.0, "rate": 8.0}
    better = plain | {what: plain[what] / faster if what == "rate" else plain[what] * faster}
    before, after = e2e(**plain), e2e(**better)
    for name in ("e2e_mean", "e2e_p99", "ttft_mean"):
        assert after[name] <= NOISE * before[name], name


def test_the_first_token_does_not_wait_for_the_second_pool() -> None:
    asked = load(8.0, 3)
    reader = pool(2, token_s=0.001)
    slow, fast = (
        serve_apart(asked, reader, pool(writers, step_s=0.05), link_bytes_per_s=1e6).first_s for writers in (1, 8)
    )
    assert slow == pytest.approx(fast)


@LAWS
@given(seed=st.integers(0, 99), drafted=st.integers(1, 6), low=st.floats(0, 0.5), more=st.floats(0.1, 0.5))
def test_drafts_that_are_accepted_more_often_never_take_more_steps(
    seed: int, drafted: int, low: float, more: float
) -> None:
    tokens = np.full(200, 100)
    few, many = (
        Speculation(drafted=drafted, acceptance=share).steps(tokens, seed=seed).mean() for share in (low + more, low)
    )
    assert 100 / (drafted + 1) <= few <= many <= 100
    assert 100 / many == pytest.approx(Speculation(drafted=drafted, acceptance=low).tokens_per_step, rel=0.05)


def test_a_step_of_no_drafts_is_a_step() -> None:
    asked = load(5.0, 1)
    plain = pool(token_s=0.001)
    never = replace(plain.replica, policy=Policy(speculation=Speculation(drafted=3, acceptance=0.0)))
    assert serve(asked, Pool(replica=never)).last_s == pytest.approx(serve(asked, plain).last_s)
