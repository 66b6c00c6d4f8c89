"""Attention block by block: what was summed under an old maximum must be rescaled when a larger one comes.

References:
    Milakov and Gimelshein 2018, Online normalizer calculation for softmax, arXiv:1805.02867.
    Dao 2023, FlashAttention-2, arXiv:2307.08691, algorithm 1.
"""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention


def blockwise(q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, *, block: int, rescale: bool = True) -> Tensor:
    """Attention of every query over blocks of keys; scores of one block at a time are held.

    The result is a sum of values weighted by ``exp(score - maximum)``. When a block raises the maximum from m to
    m', all that is summed so far counts ``exp(m - m')`` of itself: once for the result, once for the sum of weights.
    """
    scale = q_BHTD.shape[-1] ** -0.5
    result = torch.zeros_like(q_BHTD)
    maximum = torch.full((*q_BHTD.shape[:-1], 1), float("-inf"), dtype=q_BHTD.dtype)
    weights = torch.zeros_like(maximum)
    for start in range(0, k_BHSD.shape[-2], block):
        keys, values = k_BHSD[..., start : start + block, :], v_BHSD[..., start : start + block, :]
        scores = q_BHTD @ keys.transpose(-2, -1) * scale
        larger = torch.maximum(maximum, scores.amax(-1, keepdim=True))
        kept = torch.exp(maximum - larger) if rescale else torch.ones_like(larger)
        chances = torch.exp(scores - larger)
        result = result * kept + chances @ values
        weights = weights * kept + chances.sum(-1, keepdim=True)
        maximum = larger
    return result / weights


def often_sketched(q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, *, block: int) -> Tensor:
    """The common slip: each block under its own maximum, the normaliser a log-sum of the maxima, nothing rescaled."""
    scale = q_BHTD.shape[-1] ** -0.5
    result = torch.zeros_like(q_BHTD)
    normaliser = torch.full((*q_BHTD.shape[:-1], 1), float("-inf"), dtype=q_BHTD.dtype)
    for start in range(0, k_BHSD.shape[-2], block):
        scores = q_BHTD @ k_BHSD[..., start : start + block, :].transpose(-2, -1) * scale
        own = scores.amax(-1, keepdim=True)
        result = result + torch.exp(scores - own) @ v_BHSD[..., start : start + block, :]
        normaliser = torch.logaddexp(normaliser, own)
    return result / normaliser.exp()


def inputs(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values in double precision, so that only mathematics can differ."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    return q, k, v


@settings(max_examples=40, deadline=None)
@given(tokens=st.integers(1, 40), block=st.integers(1, 48), size=st.sampled_from([1, 4, 16]), seed=st.integers(0, 99))
def test_rescaled_blocks_are_attention_whatever_their_size(tokens: int, block: int, size: int, seed: int) -> None:
    q, k, v = inputs(2, 3, tokens, size, seed=seed)
    truth = scaled_dot_product_attention(q, k, v)
    assert torch.allclose(blockwise(q, k, v, block=block), truth, atol=1e-12, rtol=1e-10)


def test_two_scores_by_hand() -> None:
    # Scores 0 then ln 3, a key a block: weights 1/4 and 3/4, so the result is 0.25 * 8 + 0.75 * 4 = 5.
    q, v = torch.ones(1, 1, 1, 1).double(), torch.tensor([8.0, 4.0]).view(1, 1, 2, 1).double()
    k = torch.tensor([1.0, 3.0]).double().log().view(1, 1, 2, 1)
    assert blockwise(q, k, v, block=1).item() == pytest.approx(5)
    # Without rescaling both blocks weigh 1: (8 + 4) / (1 + 1) = 6.
    assert blockwise(q, k, v, block=1, rescale=False).item() == pytest.approx(6)
    # With maxima in place of sums: (8 + 4) / (e^0 + e^(ln 3)) = 3.
    assert often_sketched(q, k, v, block=1).item() == pytest.approx(3)


def test_without_rescaling_it_is_not_attention() -> None:
    q, k, v = inputs(1, 2, 64, 16)
    truth = scaled_dot_product_attention(q, k, v)
    assert (blockwise(q, k, v, block=16, rescale=False) - truth).abs().max() > 0.05
    assert (often_sketched(q, k, v, block=16) - truth).abs().max() > 0.5


def test_one_block_hides_the_missing_rescaling() -> None:
    q, k, v = inputs(1, 2, 32, 16)
    truth = scaled_dot_product_attention(q, k, v)
    assert torch.allclose(blockwise(q, k, v, block=32, rescale=False), truth)
