"""Advice: gains are ratios of prices, correlated errors cancel in intervals, uncertain advice is hidden by default."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import pytest
from explain_cases import case

from chipwise.model.ops.work import Work
from chipwise.predict.cost.model import Bound, CostEstimate, OpCost
from chipwise.predict.explain.advice import Proposal
from chipwise.predict.explain.gains import FORMAT_SPREAD, OPERATOR_SPREAD, advise, gains_of, ratio_spread
from chipwise.predict.explain.question import Case


def kernel(place: str, seconds: float, flops: int) -> OpCost:
    work = Work(flops=flops, read_bytes=10, write_bytes=0)
    return OpCost(place=place, kind="matmul", latency_s=seconds, bound=Bound.MEMORY, work=work)


def passes(*costs: OpCost, device: str = "toy") -> CostEstimate:
    """A pass that is its kernels and nothing beside them."""
    total = sum(cost.latency_s for cost in costs)
    return CostEstimate(
        ttft_s=total, tpot_s=total, peak_memory_bytes=100.0, metrics={}, prefill=costs, decode=costs, model="toy",
        device=device, runtime="toy",
    )  # fmt: skip


def test_operators_that_both_have_alike_cancel() -> None:
    before = passes(kernel("a", 1.0, 1), kernel("b", 3.0, 2))
    assert ratio_spread(before, before, "decode") == 0
    moved = passes(kernel("elsewhere", 1.0, 1), kernel("b", 3.0, 2))  # the place does not matter, the work does
    assert ratio_spread(before, moved, "decode") == 0


def test_an_operator_counts_by_the_difference_of_its_shares() -> None:
    before = passes(kernel("a", 1.0, 1), kernel("b", 3.0, 2))  # shares 1/4 and 3/4
    after = passes(kernel("a", 1.0, 1), kernel("c", 1.0, 3))  # 1/2, and 1/2 of another
    expected = OPERATOR_SPREAD * math.sqrt(0.25**2 + 0.75**2 + 0.5**2)
    assert ratio_spread(before, after, "decode") == pytest.approx(expected)


def test_products_in_another_format_err_together() -> None:
    before, after = passes(kernel("a", 1.0, 1), kernel("b", 1.0, 2)), passes(kernel("a", 1.0, 3), kernel("b", 1.0, 4))
    own = ratio_spread(before, after, "decode")
    recast = ratio_spread(before, after, "decode", recast=True)  # all of both passes: 1 and 1
    assert recast == pytest.approx(math.sqrt(own**2 + 2 * FORMAT_SPREAD**2))


def test_gains_are_before_over_after_with_memory_counted_exactly() -> None:
    before, after = passes(kernel("a", 4.0, 1)), replace(passes(kernel("b", 1.0, 2)), peak_memory_bytes=50.0)
    gains = {gain.metric: gain for gain in gains_of(before, after)}
    assert gains["tpot_p50"].ratio.value == 4
    assert gains["tpot_p50"].ratio.low < 4 < gains["tpot_p50"].ratio.high
    memory = gains["peak_memory"].ratio
    assert (memory.low, memory.value, memory.high) == (2, 2, 2)


def nothing(case: Case) -> Iterable[Proposal]:
    """Proposes what changes nothing, and what is a loss."""
    yield Proposal(title="nothing", touches="runtime", how="", changed=case.question)
    yield Proposal(title="a loss", touches="batching", how="", changed=case.question.but(prompt_tokens=30_000))


def test_no_gain_inside_its_interval_is_said_unless_asked() -> None:
    asked = case("meta-llama/Llama-3.1-8B")
    assert advise(asked, chosen={"nothing": nothing}) == []
    told = advise(asked, every=True, chosen={"nothing": nothing})
    assert [advice.proposal.title for advice in told] == ["a loss"]  # a factor that prints as 1 is never advice
    assert not any(advice.sure for advice in told)


def test_what_is_said_is_surely_a_gain_and_sorted() -> None:
    told = advise(case("meta-llama/Llama-2-7b-hf", prompt_tokens=16_000))
    assert told
    assert all(advice.headline.ratio.low > 1 for advice in told)
    ratios = [advice.headline.ratio.value for advice in told]
    assert ratios == sorted(ratios, reverse=True)


def test_an_encoder_has_no_decode() -> None:
    told = advise(case("bert-base-uncased", prompt_tokens=256), every=True)
    assert told
    assert {gain.metric for advice in told for gain in advice.gains} == {"ttft_p50", "peak_memory"}


def test_fp8_weights_halve_what_decode_streams_on_an_h100() -> None:
    """Within a tenth of 2 at most: head, cache and host stay as they are."""
    told = advise(case("meta-llama/Llama-2-70b-hf", device="h100-sxm", tp=4), every=True)
    found = next(advice for advice in told if advice.proposal.title == "weights in fp8")
    assert 1.4 < found.headline.ratio.value < 2.0


def test_what_would_no_longer_fit_is_no_advice() -> None:
    """138 GB of weights fit two cards of 80 GB: half the devices would be cheaper, and too small."""
    asked = case("meta-llama/Llama-2-70b-hf", tp=2, weights="bf16")
    fewer = [advice for advice in advise(asked, every=True) if advice.proposal.changed.deployment.tp == 1]
    assert fewer
    assert not any(advice.fits or advice.sure for advice in fewer)
    assert all(advice.fits for advice in advise(asked))


def test_sizes_that_differ_by_less_than_a_kernel_model_tells_cancel() -> None:
    before = passes(kernel("a", 2.0, 100_514), kernel("b", 2.0, 7))
    after = passes(kernel("a", 2.0, 100_608), kernel("b", 2.0, 7))  # 0.1 % more FLOPs
    assert ratio_spread(before, after, "decode") == 0


def test_what_rests_on_published_timings_widens_the_ratio_to_both_sides() -> None:
    """Half of a pass that may take half or twice as long: 0.75 to 1.5 times the whole."""
    doubted = replace(kernel("a", 1.0, 1), doubt=math.log(2))
    gains = {gain.metric: gain for gain in gains_of(passes(doubted, kernel("b", 1.0, 2)), passes(kernel("b", 1.0, 2)))}
    ratio = gains["tpot_p50"].ratio
    assert ratio.value == 2
    assert ratio.low < 2 * 0.75
    assert ratio.high > 2 * 1.5
