"""Laws of queues and schedulers: conservation, monotony, the closed loop, M/D/1."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_engine import toy_load, toy_table

from chipwise.predict.load.engine import replay
from chipwise.predict.load.load import RequestClass, generate_load
from chipwise.predict.load.outcome import metrics_of, times_of
from chipwise.predict.load.policy import Policy
from chipwise.predict.load.step_times import step_times
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import estimate
from chipwise.predict.served.request import Request

quick = settings(max_examples=40, deadline=None, derandomize=True)
LLAMA = Request(model="meta-llama/Llama-3.1-8B", deployment=Deployment(device="h100-sxm"))


@quick
@given(
    seed=st.integers(0, 10_000),
    room=st.integers(40, 400),
    sequences=st.integers(1, 20),
    budget=st.integers(8, 300),
    size=st.sampled_from([1, 4, 16]),
    lookahead=st.integers(0, 1),
    mixed=st.booleans(),
    shares=st.booleans(),
)
def test_no_request_and_no_token_is_lost(
    seed: int, room: int, sequences: int, budget: int, size: int, lookahead: int, mixed: bool, shares: bool
) -> None:
    """Whatever is preempted: all are answered, in order of time, and work is what was asked plus what was repeated."""
    rng = np.random.default_rng(seed)
    count = 40
    prompt, new = rng.integers(1, 20, count), rng.integers(1, 19, count)
    prefix = {"prefix": rng.integers(0, 3, count), "prefix_tokens": np.maximum(prompt - 3, 0)} if shares else {}
    load = toy_load(np.cumsum(rng.exponential(0.02, count)).tolist(), prompt.tolist(), new.tolist(), **prefix)
    policy = Policy(
        most_tokens=budget, most_sequences=sequences, block_tokens=size, lookahead=lookahead, mixed=mixed
    )  # fmt: skip
    served = replay(load, toy_table(token_s=0.001, step_s=0.01), policy, cache_tokens=max(room, 48))
    assert served.done.all()
    assert (served.scheduled_s >= served.arrival_s - 1e-12).all()
    assert (served.first_s > served.scheduled_s).all()
    assert ((served.last_s > served.first_s) == (new > 1)).all()
    asked = int((prompt + new - 1).sum())
    if not shares:
        assert served.computed_tokens >= asked
        assert (served.computed_tokens == asked) == (not served.preemptions.any())
    assert served.busy_s <= served.last_s.max() - load.arrival_s[0] + 1e-9
    assert served.steps >= new.max()
    seconds, counts = served.spans.gaps(served.done)  # a request of n tokens has n - 1 gaps, from its first to its last
    assert counts.sum() == (new - 1).sum()
    assert seconds @ counts == pytest.approx((served.last_s - served.first_s).sum())
    assert (seconds >= 0.01 - 1e-9).all()  # each holds a step


@quick
@given(seed=st.integers(0, 10_000), faster=st.floats(1.05, 4))
def test_a_faster_chip_never_hurts(seed: int, faster: float) -> None:
    load = generate_load(
        (RequestClass(prompt_tokens=200, new_tokens=40, spread=0.5),), count=120, rate_per_s=4.0, seed=seed
    )
    table = toy_table(token_s=0.0005, step_s=0.004)
    slow, fast = (
        metrics_of(replay(load, table, Policy(), cache_tokens=40_000, slow=(factor, factor)))
        for factor in (1, 1 / faster)
    )
    for name, value in fast.items():
        if not name.startswith("queue"):  # where in a step a request arrives is luck, of one step at most
            assert value <= slow[name] * 1.03 + 0.005, name


def test_a_higher_rate_never_lowers_a_percentile_beyond_the_noise_of_seeds() -> None:
    table = toy_table(token_s=0.0005, step_s=0.004)
    kinds = (RequestClass(prompt_tokens=200, new_tokens=40, spread=0.5),)
    found = []
    for rate in (0.5, 1, 2, 4, 6, 8):
        seeds = [
            metrics_of(
                replay(generate_load(kinds, count=300, rate_per_s=rate, seed=seed), table, Policy(), cache_tokens=4000)
            )
            for seed in range(4)
        ]
        found.append({name: np.array([each[name] for each in seeds]) for name in seeds[0]})
    for before, after in itertools.pairwise(found):
        for name in ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99", "e2e_p50", "e2e_p99"):
            noise = np.std(after[name] - before[name], ddof=1) / 2  # of the mean of four paired differences
            assert after[name].mean() >= before[name].mean() - 2 * noise, name


@pytest.mark.parametrize("load", [0.3, 0.5, 0.7])
def test_waiting_for_one_slot_is_that_of_an_m_d_1_queue(load: float) -> None:
    """Mean waiting time rho s / 2 (1 - rho), Pollaczek and Khinchine; and Lindley's recursion, request by request."""
    service_s = 0.1
    waits = []
    for seed in range(3):
        asked = generate_load(
            (RequestClass(prompt_tokens=100, new_tokens=0),), count=60_000, rate_per_s=load / service_s, seed=seed
        )
        served = replay(asked, toy_table(token_s=0.001), Policy(most_sequences=1), cache_tokens=1e9)
        waited = times_of(served)["queue"]
        gaps = np.diff(asked.arrival_s)
        walk = np.concatenate([[0.0], np.cumsum(service_s - gaps)])
        assert waited == pytest.approx(walk - np.minimum.accumulate(walk), abs=1e-6)  # Lindley 1952
        # what the drawn gaps alone make of the mean, which a queue without a scheduler shows just so
        waits.append(waited.mean() / (load * service_s / (2 * (1 - load))))
    assert np.mean(waits) == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("clients", [1, 8])
def test_the_closed_loop_is_the_estimate_where_nothing_queues(clients: int) -> None:
    """One client: both times within 1 %. Several that begin together: the step that all of them decode in."""
    asked = Request(
        model=LLAMA.model, deployment=Deployment(device=LLAMA.device), batch=clients, prompt_tokens=1024, new_tokens=128
    )
    table = step_times([asked])[0]
    kinds = (RequestClass(prompt_tokens=1024, new_tokens=128),)
    load = generate_load(kinds, count=2 * clients, rate_per_s=None, clients=clients, seed=0)
    served = replay(load, table, Policy(), cache_tokens=1e9)
    found = estimate(asked)
    if clients == 1:
        metrics = metrics_of(served)
        assert metrics["ttft_mean"] == pytest.approx(found.ttft_s, rel=0.01)
        assert metrics["tpot_mean"] == pytest.approx(found.tpot_s, rel=0.01)
    else:
        from chipwise.predict.served.estimate import cost_of

        steps = (served.last_s - served.first_s)[:clients] / 127
        assert steps == pytest.approx(np.full(clients, cost_of(asked).step_s[0]), rel=0.01)
