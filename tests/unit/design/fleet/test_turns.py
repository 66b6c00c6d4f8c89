"""Calls in turn, at once and made again: the distribution of a turn, against arithmetic by hand."""

import math
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

import chipwise
from chipwise.core.files import build
from chipwise.design.fleet.agent_loop import AgentLoop, price_loop
from chipwise.design.fleet.turns import drawn_turns, in_steps, log_normal
from chipwise.errors import SpecError
from chipwise.predict.load.policy import Speculation

ACT = {"name": "act", "time": "1 s"}
TAILED = {**ACT, "time_p99": "3 s"}
THINK = {"name": "think", "model": "Qwen/Qwen3-0.6B", "prompt": 200, "new": 20}


def loop(part: dict[str, Any]) -> AgentLoop:
    return build(AgentLoop, {"budget": "9 s", "device": "l4", "parts": [part]})


def exponential(random: np.random.Generator, count: int) -> np.ndarray:
    return random.exponential(2.0, count)


@pytest.mark.parametrize("calls", [1, 2, 4, 16])
def test_the_slowest_of_exponential_calls_takes_the_harmonic_number_of_means(calls: int) -> None:
    """The first of n ends after mean/n, the next after mean/(n-1) more, and so on; P(all < t) = (1 - e^-t/mean)^n."""
    turns = drawn_turns([exponential], calls=calls, parallel=calls, retry=0.0, seed=1)
    assert turns.mean() == pytest.approx(2.0 * sum(1 / i for i in range(1, calls + 1)), rel=0.03)
    assert np.quantile(turns, 0.99) == pytest.approx(-2.0 * math.log(1 - 0.99 ** (1 / calls)), rel=0.04)


@pytest.mark.parametrize(("share", "quantile"), [(0.5, 3.6721), (0.99, 10.0451)])
def test_exponential_calls_one_after_another_are_erlang(share: float, quantile: float) -> None:
    """P(sum of four <= t) = 1 - e^-x (1 + x + x^2/2 + x^3/6) with x = t / mean."""
    assert 1 - math.exp(-quantile) * sum(quantile**i / math.factorial(i) for i in range(4)) == pytest.approx(
        share, abs=1e-4
    )
    turns = drawn_turns([exponential], calls=4, parallel=1, retry=0.0, seed=1)
    assert np.quantile(turns, share) == pytest.approx(2.0 * quantile, rel=0.02)


def test_a_try_of_two_exponential_times_is_erlang_of_two() -> None:
    """The median of a sum of two is 1.6783 means: e^-x (1 + x) = 1/2."""
    turns = drawn_turns([exponential, exponential], calls=1, parallel=1, retry=0.0, seed=1)
    assert math.exp(-1.6783) * 2.6783 == pytest.approx(0.5, abs=1e-4)
    assert np.median(turns) == pytest.approx(2.0 * 1.6783, rel=0.02)


@pytest.mark.parametrize("retry", [0.05, 0.5])
def test_exponential_tries_until_one_succeeds_are_exponential_again(retry: float) -> None:
    """A geometric sum of exponentials with mean m is exponential with mean m / (1 - p): so are median and P99."""
    turns = drawn_turns([exponential], calls=1, parallel=1, retry=retry, seed=1)
    for share in (0.5, 0.99):
        assert np.quantile(turns, share) == pytest.approx(-2.0 / (1 - retry) * math.log(1 - share), rel=0.04)


def test_rounds_follow_one_another_and_the_last_may_be_smaller() -> None:
    """Five calls of a second each, two at once: three rounds."""
    turns = drawn_turns([lambda random, count: np.ones(count)], calls=5, parallel=2, retry=0.0, seed=1)
    assert set(turns) == {3.0}


def test_the_slowest_of_four_log_normal_calls() -> None:
    """The median of the slowest is the quantile 0.5^(1/4) of one call; sigma is ln 3 over the normal's P99."""
    found = price_loop(loop({**TAILED, "calls": 4, "parallel": 4}))
    sigma = math.log(3) / NormalDist().inv_cdf(0.99)
    assert found.total.value == pytest.approx(math.exp(sigma * NormalDist().inv_cdf(0.5**0.25)), rel=0.02)
    assert found.p99_s.value == pytest.approx(math.exp(sigma * NormalDist().inv_cdf(0.99**0.25)), rel=0.04)
    assert np.median(log_normal(1.0, 3.0)(np.random.default_rng(0), 20_000)) == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(("retry", "p99_s"), [(0, 1.0), ("0.5 %", 1.0), ("5 %", 2.0), (0.2, 3.0)])
def test_retries_of_a_fixed_time_show_in_the_p99_alone(retry: object, p99_s: float) -> None:
    """P(more than k tries) = p^k: with 5 %, 5 % and 0.25 %, so 99 % of turns need at most two; with 20 %, three."""
    found = price_loop(loop({**ACT, "retry": retry}))
    assert found.total.value == pytest.approx(1.0)
    assert found.p99_s.value == pytest.approx(p99_s)


def test_a_models_calls_at_once_are_one_batch_and_cost_less_than_one_after_another() -> None:
    one, four = price_loop(loop(THINK)), price_loop(loop({**THINK, "calls": 4, "parallel": 4}))
    assert one.total.value < four.total.value < 4 * one.total.value
    assert four.p99_s.value > four.total.value
    again = price_loop(loop({**THINK, "retry": "5 %"}))
    assert again.total.value == pytest.approx(one.total.value, rel=0.05)
    assert again.p99_s.value > 1.9 * one.total.value
    assert four.parts[0].new_within(four.total.value) == one.parts[0].new_within(one.total.value) == 20


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"parallel": 2}, r"parts\[0\].parallel: must be at most 1, the value of `calls`, not 2"),
        ({"parallel": 0}, r"parts\[0\].parallel: must be at least 1, not 0"),
        ({"retry": "100 %"}, r"parts\[0\].retry: must be at least 0 % and below 100 %, not '100 %'"),
        ({"retry": -0.1}, r"parts\[0\].retry: must be at least 0 % and below 100 %, not -0.1"),
        ({"retry": "often"}, r"parts\[0\].retry: 'often' is not a quantity"),
        (
            {"calls": 600, "time_p99": "2 s"},
            r"parts\[0\].calls: the expected calls and retries per turn must be at most 500",
        ),
        (
            {"calls": 600, "retry": "5 %"},
            r"parts\[0\].calls: the expected calls and retries per turn must be at most 500",
        ),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        loop({**ACT, **change})


@pytest.mark.parametrize(("acceptance", "steps"), [(1.0, 10), (0.0, 40)])
def test_drafts_that_are_all_accepted_or_all_refused(acceptance: float, steps: int) -> None:
    """Forty tokens in steps of 2 s: four a step with three accepted drafts, one a step with none."""
    drafts = Speculation(drafted=3, acceptance=acceptance)
    draw = in_steps(lambda random, count: np.full(count, 2.0), drafts, 40)
    assert set(draw(np.random.default_rng(0), 50)) == {2.0 * steps}


def test_a_turn_of_drafted_tokens_follows_the_mean_accepted_and_differs_from_turn_to_turn() -> None:
    """Leviathan et al.: (1 - a^(k+1)) / (1 - a) tokens a step; with a = 0.5 and k = 2, 1.75."""
    draw = in_steps(lambda random, count: np.ones(count), Speculation(drafted=2, acceptance=0.5), 700)
    steps = draw(np.random.default_rng(0), 2_000)
    assert steps.mean() == pytest.approx(700 / 1.75, rel=0.01)
    assert steps.std() > 1


def test_drafts_of_a_part_cost_what_a_simulated_client_waits() -> None:
    """One client at a time: times as in chipwise simulate; if all drafts are accepted, a fifth of the steps."""
    turns = {}
    for acceptance in (0.0, 0.7, 1.0):
        found = price_loop(loop({**THINK, "new": 81, "draft": f"ngram:4:{acceptance}"}))
        alone = chipwise.simulate(
            "Qwen/Qwen3-0.6B", device="l4", clients=1, requests=60, prompt=200, new=81, spread=0, drafted=4,
            acceptance=acceptance, prefix_cache=False,
        )  # fmt: skip
        assert found.total.value == pytest.approx(alone.times["e2e_p50"].value, rel=0.1)
        turns[acceptance] = found.total.value - found.parts[0].ttft_s
    assert turns[0.0] / turns[1.0] == pytest.approx(80 / 16, rel=0.02)


def test_a_draft_model_reads_the_prompt_and_runs_once_per_drafted_token() -> None:
    """The draft of Qwen3-4B by Qwen3-0.6B costs more than n-grams that are accepted as often."""
    part = {**THINK, "model": "Qwen/Qwen3-4B", "new": 41}
    copied, drafted = (price_loop(loop({**part, "draft": f"{name}:4:0.6"})) for name in ("ngram", THINK["model"]))
    assert drafted.parts[0].ttft_s > copied.parts[0].ttft_s
    assert drafted.total.value > copied.total.value
    assert "4 tokens drafted by Qwen3-0.6B in each step" in drafted.parts[0].part.describe()
    assert price_loop(loop({**part, "draft": "ngram:4:0.6"})).parts[0].new_within(copied.total.value) == pytest.approx(
        41, abs=2
    )
    with pytest.raises(SpecError, match=r"parts\.think: draft: gpt2 has a vocabulary of 50,257 tokens"):
        price_loop(loop({**part, "draft": "gpt2:4:0.6"}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"draft": "ngram:4"}, r"parts\[0\].draft: must be MODEL:TOKENS:ACCEPTANCE, such as .*, not 'ngram:4'"),
        ({"draft": "ngram:four:0.5"}, r"draft: must be MODEL:TOKENS:ACCEPTANCE"),
        ({"draft": "ngram:0:0.5"}, "drafted: must be from 1 to 64, not 0"),
        ({"draft": "ngram:4:1.5"}, "acceptance: must be from 0 to 1, not 1.5"),
        ({"draft": "ngram:4:0.5", "new": 1}, "draft: applies only to generating models: set the field"),
    ],
)
def test_drafts_that_cannot_be_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        loop({**THINK, **change})
    with pytest.raises(SpecError, match="draft: applies only to generating models"):
        loop({**ACT, "draft": "ngram:4:0.5"})
