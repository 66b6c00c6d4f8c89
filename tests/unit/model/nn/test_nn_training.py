"""The written-out attention and loss are the textbook ones, in value and in gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from chipwise.model.nn.attention import causal_attention
from chipwise.model.nn.rotary import rotate, tables
from chipwise.training.loop.loss import head_loss


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).requires_grad_()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(1, 17), st.sampled_from([2, 8]))
def test_attention_agrees_with_torch(batch: int, kv_heads: int, group: int, tokens: int, size: int) -> None:
    q = normal(batch, kv_heads * group, tokens, size)
    k, v = (normal(batch, kv_heads, tokens, size, seed=seed) for seed in (1, 2))
    ours = causal_attention(q, k, v)
    theirs = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert torch.allclose(ours, theirs, atol=1e-5)
    weight = torch.linspace(-1, 1, ours.numel()).view_as(ours)
    for a, b in zip(*(torch.autograd.grad((y * weight).sum(), (q, k, v)) for y in (ours, theirs)), strict=True):
        assert torch.allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("vocabulary", [11, 20_000])  # in one block, and in several
def test_head_loss_agrees_with_cross_entropy(vocabulary: int) -> None:
    x, table = normal(150, 8), normal(vocabulary, 8, seed=1)
    target = torch.randint(0, vocabulary, (150,), generator=torch.Generator().manual_seed(2))
    ours = head_loss(x, table, target)
    theirs = functional.cross_entropy(x @ table.t(), target)
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)
    for a, b in zip(*(torch.autograd.grad(3 * y, (x, table)) for y in (ours, theirs)), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_head_loss_in_bf16_is_close_enough_to_learn_from() -> None:
    x, table = normal(64, 32), normal(500, 32, seed=1)
    target = torch.arange(64)
    ours = head_loss(x.bfloat16(), table, target)
    assert ours.item() == pytest.approx(functional.cross_entropy(x @ table.t(), target).item(), rel=0.01)


def test_rotation_turns_each_pair_by_its_angle() -> None:
    cos, sin = tables(4, 6, 10_000.0)
    x = normal(1, 1, 6, 4)
    pairs = torch.complex(x[..., :2], x[..., 2:]) * torch.complex(cos, sin)
    assert torch.allclose(rotate(x, cos, sin), torch.cat((pairs.real, pairs.imag), dim=-1), atol=1e-6)
