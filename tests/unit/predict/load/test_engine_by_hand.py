"""The scheduler's steps, added up with a pencil."""

from __future__ import annotations

import numpy as np
import pytest
from toy_engine import toy_load, toy_table

from chipwise.errors import DoesNotFit
from chipwise.predict.load.engine import replay
from chipwise.predict.load.outcome import metrics_of
from chipwise.predict.load.policy import Policy, Speculation

ROOM = 1e9


def test_a_request_alone_takes_its_prompt_and_a_step_for_each_token_after_the_first() -> None:
    served = replay(toy_load([0.0], prompt=100, new=11), toy_table(token_s=0.001), Policy(), cache_tokens=ROOM)
    assert served.first_s[0] == pytest.approx(0.1)
    assert served.last_s[0] == pytest.approx(0.1 + 10 * 0.001)
    assert served.steps == 11
    assert served.computed_tokens == 110


def test_a_prompt_that_arrives_while_another_decodes_rides_in_its_next_step() -> None:
    # step 1: 100 tokens, 0.1 s; then steps of 1 token; at 0.1005 the second arrives, read in the step from 0.101 on
    served = replay(toy_load([0.0, 0.1005], new=11), toy_table(token_s=0.001), Policy(), cache_tokens=ROOM)
    assert served.scheduled_s[1] == pytest.approx(0.101)
    assert served.first_s[1] == pytest.approx(0.101 + 0.101)
    # the first decodes 1 + 1 (mixed) + 8 steps, the eight together with the second's
    assert served.last_s[0] == pytest.approx(0.202 + 8 * 0.002)


def test_with_a_step_formed_ahead_an_arrival_waits_for_one_step_more() -> None:
    load = toy_load([0.0, 0.1005], new=11)
    served = replay(load, toy_table(token_s=0.001), Policy(lookahead=1), cache_tokens=ROOM)
    assert served.scheduled_s[1] == pytest.approx(0.102)


def test_prompts_longer_than_the_budget_are_read_in_chunks() -> None:
    policy = Policy(most_tokens=64)
    served = replay(toy_load([0.0], prompt=200, new=1), toy_table(step_s=1.0), policy, cache_tokens=ROOM)
    assert served.steps == 4  # 64 + 64 + 64 + 8
    assert served.last_s[0] == pytest.approx(4.0)


def test_without_mixing_prompts_come_first_and_decoding_waits() -> None:
    load = toy_load([0.0, 0.1005], new=11)
    served = replay(load, toy_table(token_s=0.001), Policy(mixed=False), cache_tokens=ROOM)
    assert served.first_s[1] == pytest.approx(0.101 + 0.1)
    assert served.last_s[0] == pytest.approx(0.201 + 9 * 0.002)


def test_another_prompt_is_one_long_gap_in_a_stream() -> None:
    # the first has 10 gaps: 1 of 1 token's step; 1 of a prompt, or of a prompt and then a step; 8 of 2 tokens' steps
    load = toy_load([0.0, 0.1005], new=11)
    for policy, long_s, joint in ((Policy(), 0.101, 8), (Policy(mixed=False), 0.102, 8)):
        served = replay(load, toy_table(token_s=0.001), policy, cache_tokens=ROOM)
        seconds, counts = served.spans.taken(np.array([0]), 2).gaps(np.array([True]))
        assert np.sort(np.repeat(seconds, counts)) == pytest.approx([0.001, *[0.002] * joint, long_s])
        metrics = metrics_of(served)
        assert metrics["itl_p50"] == pytest.approx(0.002)
        assert metrics["itl_p99"] == pytest.approx(long_s)
        assert metrics["tpot_p99"] < 0.02 < metrics["itl_p99"]  # the mean of a request hides its longest gap


def test_a_preempted_request_waits_for_its_cache_between_two_tokens() -> None:
    served = replay(toy_load([0.0, 0.0], prompt=32, new=65), toy_table(token_s=0.001), Policy(), cache_tokens=128)
    # both read 64 positions and write 32 more tokens each, 0.002 s a step; then the second is put back until the first
    # has written its last 32, 0.001 s a step, and its 32 + 33 positions are computed again
    seconds, counts = served.spans.taken(np.array([1]), 2).gaps(np.array([True]))
    assert counts.sum() == 64
    assert seconds.max() == pytest.approx(32 * 0.001 + 65 * 0.001)


def test_no_more_sequences_run_than_are_allowed() -> None:
    policy = Policy(most_sequences=1)
    served = replay(toy_load([0.0, 0.0, 0.0], new=11), toy_table(token_s=0.001), policy, cache_tokens=ROOM)
    assert served.last_s == pytest.approx([0.11, 0.22, 0.33])
    assert served.blocked["sequences"] > 0


def test_a_prompt_begins_where_the_cache_ends() -> None:
    shared = {"prefix": np.zeros(2, np.int64), "prefix_tokens": np.full(2, 64)}
    load = toy_load([0.0, 1.0], prompt=100, new=1, **shared)
    served = replay(load, toy_table(token_s=0.001), Policy(), cache_tokens=ROOM)
    assert served.first_s - served.arrival_s == pytest.approx([0.1, 0.036])
    cold = replay(load, toy_table(token_s=0.001), Policy(prefix_cache=False), cache_tokens=ROOM)
    assert cold.first_s - cold.arrival_s == pytest.approx([0.1, 0.1])


def test_a_beginning_that_nobody_uses_makes_room() -> None:
    shared = {"prefix": np.array([0, 1, 0]), "prefix_tokens": np.full(3, 64)}
    load = toy_load([0.0, 1.0, 2.0], prompt=96, new=1, **shared)
    served = replay(load, toy_table(token_s=0.001), Policy(), cache_tokens=96)  # one prompt and no beginning besides
    assert served.first_s - served.arrival_s == pytest.approx([0.096, 0.096, 0.096])


def test_preemption_computes_again_and_loses_nothing() -> None:
    load = toy_load([0.0, 0.0], prompt=32, new=65)  # 96 positions each in the end, and room for 8 blocks of 16
    served = replay(load, toy_table(token_s=0.001), Policy(), cache_tokens=128)
    assert served.done.all()
    assert served.preemptions.tolist() == [0, 1]
    # both are at 64 positions after 32 steps; the second is computed again from its prompt and the 33 it had given
    assert served.computed_tokens == 2 * 96 + 32 + 32
    assert served.last_s[0] < served.last_s[1]


def test_a_client_that_gives_up_is_not_answered_and_frees_its_place() -> None:
    policy = Policy(most_sequences=1, timeout_s=0.15)
    load = toy_load([0.0, 0.0, 0.16], prompt=100, new=1)  # the second's client leaves at 0.15, during its own step
    served = replay(load, toy_table(token_s=0.001), policy, cache_tokens=ROOM)
    assert served.done.tolist() == [True, False, True]
    assert served.last_s[2] == pytest.approx(0.3)


def test_a_request_longer_than_the_cache_is_refused() -> None:
    with pytest.raises(DoesNotFit, match="109 positions, but the whole cache only holds 96"):
        replay(toy_load([0.0]), toy_table(token_s=1), Policy(), cache_tokens=100)


def test_speculation_gives_as_many_tokens_a_step_as_are_accepted() -> None:
    always = Speculation(drafted=3, acceptance=1.0)
    assert always.tokens_per_step == 4
    assert Speculation(drafted=2, acceptance=0.5).tokens_per_step == pytest.approx(1.75)  # 1 + 1/2 + 1/4
    assert Speculation(drafted=5, acceptance=0.0).tokens_per_step == 1
    served = replay(
        toy_load([0.0], prompt=100, new=41), toy_table(step_s=1.0), Policy(speculation=always), cache_tokens=ROOM
    )
    assert served.last_s[0] == pytest.approx(1.0 + 10.0)


def test_the_tokens_of_a_step_are_drawn_as_drafts_are_accepted() -> None:
    """One and the run of accepted drafts before the first refused one; a request of 21 tokens after the first."""
    speculation = Speculation(drafted=3, acceptance=0.6)
    one = speculation.steps(np.ones(20_000, np.int64) * 1, seed=0)
    assert (one == 1).all()
    many = speculation.steps(np.full(4000, 400), seed=0)
    assert 400 / many.mean() == pytest.approx(speculation.tokens_per_step, rel=0.01)
    assert many.min() >= 100  # four a step at most
    assert many.std() > 0
    # after two tokens' worth: a draft refused at once (.4) needs a second step, else one is enough
    two = speculation.steps(np.full(40_000, 2), seed=3)
    assert (two == 2).mean() == pytest.approx(0.4, abs=0.01)
    assert speculation.steps(np.array([0, 7]), seed=1)[0] == 0


def test_requests_that_draft_end_after_their_own_steps_and_lose_no_token() -> None:
    luck = Speculation(drafted=3, acceptance=0.6)
    load = toy_load([0.0] * 40, prompt=64, new=41)
    policy = Policy(speculation=luck, block_tokens=16)
    served = replay(load, toy_table(step_s=1.0), policy, cache_tokens=ROOM)
    steps = np.sort(luck.steps(load.new_tokens - 1, seed=1))
    assert np.sort(served.last_s - served.first_s) == pytest.approx(steps)
    tight = replay(load, toy_table(step_s=1.0), policy, cache_tokens=64 * 16)  # preempts
    assert tight.done.all()
    assert tight.preemptions.sum() > 0


def test_a_closed_loop_keeps_as_many_in_flight_as_it_has_clients() -> None:
    load = toy_load([0.0] * 6, prompt=100, new=1, clients=2, think_s=1.0)
    served = replay(load, toy_table(token_s=0.001), Policy(), cache_tokens=ROOM, timeline=True)
    assert served.done.all()
    assert served.arrival_s == pytest.approx([0, 0, 1.2, 1.2, 2.4, 2.4])
    assert served.timeline is not None
    assert served.timeline.running.max() == 2


def test_padding_costs_every_prompt_the_longest() -> None:
    load = toy_load([0.0, 0.0], prompt=[100, 900], new=0)
    table = toy_table(token_s=0.001)
    packed = replay(load, table, Policy(), cache_tokens=ROOM)
    padded = replay(load, table, Policy(padded=True), cache_tokens=ROOM)
    assert packed.last_s[1] == pytest.approx(1.0)
    assert padded.last_s[1] == pytest.approx(1.8)
