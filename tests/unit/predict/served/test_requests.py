"""Requests with cached tokens and with layers kept wide: pencil arithmetic, and nothing changes without them."""

from __future__ import annotations

import pytest

from chipwise.errors import SpecError
from chipwise.predict.served.deployment import Deployment
from chipwise.predict.served.estimate import cost_of, estimate_of
from chipwise.predict.served.request import Request

LLAMA = Request(model="meta-llama/Llama-3.1-8B", deployment=Deployment(device="h100-sxm", weights="fp8"))
LAYER = 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14_336)  # parameters of the products of one layer


def test_a_layer_that_is_kept_wide_takes_a_second_byte_a_parameter() -> None:
    narrow, mixed, wide = (
        estimate_of(cost_of(request), 0).memory_bytes["weights"]
        for request in (LLAMA, LLAMA.but(wide_layers=frozenset({0, 31})), LLAMA.but(weights="bf16"))
    )
    assert mixed - narrow == pytest.approx(2 * LAYER, rel=1e-3)
    assert wide - narrow == pytest.approx(32 * LAYER, rel=1e-3)


def test_all_layers_kept_wide_are_the_wide_model() -> None:
    every = estimate_of(cost_of(LLAMA.but(wide_layers=frozenset(range(32)))), 0)
    assert every.tpot_s == estimate_of(cost_of(LLAMA.but(weights="bf16")), 0).tpot_s


def test_a_layer_that_there_is_not_is_refused() -> None:
    with pytest.raises(SpecError, match="layers 0 to 31, not 40"):
        cost_of(LLAMA.but(wide_layers=frozenset({3, 40})))


def test_cached_tokens_are_not_computed() -> None:
    """1,024 tokens of which 896 are cached: an eighth of the FLOPs of products; attention still sees all."""
    whole, rest = (estimate_of(cost_of(LLAMA.but(cached_tokens=cached)), 0) for cached in (0, 896))
    flops = [
        sum(cost.work.flops * cost.count for cost in each.prefill if "gate_up" in cost.place) for each in (whole, rest)
    ]
    assert flops[1] == flops[0] / 8
    assert rest.ttft_s < 0.5 * whole.ttft_s
    for kind in ("weights", "cache"):
        assert rest.memory_bytes[kind] == whole.memory_bytes[kind]


@pytest.mark.parametrize("cached", [-1, 1024])
def test_a_prompt_is_never_all_cached(cached: int) -> None:
    with pytest.raises(SpecError, match="cached_tokens"):
        Request(model="gpt2", deployment=Deployment(device="h100-sxm"), prompt_tokens=1024, cached_tokens=cached)
