"""P99s over prompts of different lengths: by hand, by drawing requests, and refused questions."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chipwise import api
from chipwise.errors import SpecError
from chipwise.predict.served.prompt_spread import factor

Z99 = 2.3263  # standard deviations from the median to P99


def test_the_factor_by_hand() -> None:
    assert factor(1.0, 900 / 64) == pytest.approx(900 / 64)  # equal requests take equal time: the prompt decides
    assert factor(3.0, 1.0) == pytest.approx(1.0)  # equal prompts
    assert 2.0 * factor(2.0, 2.0) == pytest.approx(2 ** math.sqrt(2))  # ln 2 and ln 2 add in squares
    assert factor(1.5, 0.9) == pytest.approx(1.0)  # longer prompts never shorten a P99


def test_drawn_requests_have_that_p99() -> None:
    """Seconds proportional to a lognormal prompt of 64 to 900 tokens, times lognormal noise of ln 2 at P99."""
    rng = np.random.default_rng(0)
    prompts = 64 * np.exp(math.log(900 / 64) / Z99 * rng.standard_normal(1_000_000))
    noise = np.exp(math.log(2) / Z99 * rng.standard_normal(1_000_000))
    p99 = np.quantile(0.01 * prompts * noise, 0.99)
    assert p99 == pytest.approx(0.64 * 2 * factor(2.0, 900 / 64), rel=0.02)


def test_an_estimate_over_a_spread_lies_between_the_p99s_of_both_prompts_added_up() -> None:
    case = {"runtime": "llama.cpp", "weights": "q4_k_m", "new": 50}
    short, long = (api.estimate("Qwen/Qwen3-0.6B", device="rtx-4090", prompt=prompt, **case) for prompt in (64, 900))
    found = api.estimate("Qwen/Qwen3-0.6B", device="rtx-4090", prompt=64, prompt_p99=900, **case)
    tail, longer = short.metrics["ttft_p99"].value / short.ttft_s, long.ttft_s / short.ttft_s
    assert found.ttft_s == short.ttft_s
    p99 = found.metrics["ttft_p99"]
    assert p99.value == pytest.approx(short.ttft_s * math.exp(math.hypot(math.log(tail), math.log(longer))))
    assert p99.value > max(long.ttft_s, short.metrics["ttft_p99"].value)
    assert p99.high / p99.value == pytest.approx(short.metrics["ttft_p99"].high / short.metrics["ttft_p99"].value)
    assert found.peak_memory_bytes == long.peak_memory_bytes
    table = api.estimate("Qwen/Qwen3-0.6B", devices=["rtx-4090"], prompt=64, prompt_p99=900, **case)
    assert table[0].estimate is not None
    assert table[0].estimate.metrics["ttft_p99"] == p99


@pytest.mark.parametrize(
    ("model", "p99", "said"),
    [
        ("Qwen/Qwen3-0.6B", 64, "prompt_p99: the P99 of prompts must be above their P50 of 64 tokens, not 64"),
        ("google/vit-base-patch16-224", 900, "prompt_p99: .* reads no prompt"),
    ],
)
def test_a_spread_that_means_nothing_is_refused(model: str, p99: int, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        api.estimate(model, device="l4", prompt=64, prompt_p99=p99)
