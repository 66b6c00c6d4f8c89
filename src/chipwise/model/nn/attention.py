"""Attention as explicit matrix products, for short sequences.

On a CPU the fused kernel's backward pass is several times slower than the two matrix products it replaces, and with a
few hundred tokens it saves no memory. Axes: B batch, N heads, K KV heads, T tokens, H head size.
"""

from __future__ import annotations

import functools
import math

import torch
import torch.nn.functional as F
from torch import Tensor

LONGEST = 256  # most tokens for which explicit matrix products are used


def causal_attention(q_BNTH: Tensor, k_BKTH: Tensor, v_BKTH: Tensor) -> Tensor:
    """Softmax attention of every token to itself and all earlier tokens, (B, N, T, H). N must be a multiple of K."""
    batch, heads, tokens, size = q_BNTH.shape
    kv_heads = k_BKTH.shape[1]
    group = heads // kv_heads  # query heads that share a KV head are stacked as rows of one matrix product
    q = q_BNTH.reshape(batch * kv_heads, group * tokens, size)
    k = k_BKTH.reshape(batch * kv_heads, tokens, size)
    v = v_BKTH.reshape(batch * kv_heads, tokens, size)
    hidden = _future(tokens, group, q.dtype, q.device)
    scores = torch.baddbmm(hidden, q, k.transpose(1, 2), alpha=1 / math.sqrt(size))
    seen = torch.softmax(scores, dim=-1, dtype=q.dtype)
    return torch.bmm(seen, v).view(batch, heads, tokens, size)


def full_attention(q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor, added: Tensor | None = None) -> Tensor:
    """Softmax attention of every token to all positions, (B, N, T, H). Keys and values may come from another sequence.

    ``added`` is added to the scores (B, N, T, S); its axes of size 1 are broadcast.
    """
    added = None if added is None else added.to(q_BNTH.dtype)
    if k_BNSH.shape[2] > LONGEST:
        return F.scaled_dot_product_attention(q_BNTH, k_BNSH, v_BNSH, attn_mask=added)
    batch, heads, _, size = q_BNTH.shape
    q, k, v = (part.reshape(batch * heads, -1, size) for part in (q_BNTH, k_BNSH, v_BNSH))
    each = q.new_zeros(1, 1, 1) if added is None else added.expand(batch, heads, -1, -1).flatten(0, 1)
    scores = torch.baddbmm(each, q, k.transpose(1, 2), alpha=1 / math.sqrt(size))
    return torch.bmm(torch.softmax(scores, dim=-1, dtype=q.dtype), v).view(q_BNTH.shape)


@functools.lru_cache(maxsize=64)
def _future(tokens: int, group: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """The causal mask (minus infinity at later keys) for ``group`` stacked heads, (1, group · T, T)."""
    mask = torch.full((tokens, tokens), float("-inf"), device=device).triu(1)
    return mask.repeat(group, 1).to(dtype)[None]
