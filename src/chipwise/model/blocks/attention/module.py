"""Grouped-query attention in torch. Axes: B batch, T new tokens, S all tokens, N heads, H head size, D model width."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.projections import Projections
from chipwise.model.nn import attention as written_out
from chipwise.model.nn.precision import compute_format
from chipwise.model.nn.rotary import rotate

Cache = tuple[Tensor, Tensor]  # keys and values, each (B, kv_heads, S, H)


class AttentionModule(Projections):
    """Causal self-attention, optionally with a KV cache."""

    def __init__(self, block: Attention, d_model: int, norm_eps: float) -> None:
        super().__init__(block, d_model)
        self.q_norm = nn.RMSNorm(block.head_size, eps=norm_eps) if block.qk_norm else None
        self.k_norm = nn.RMSNorm(block.head_size, eps=norm_eps) if block.qk_norm else None

    def forward(
        self, x_BTD: Tensor, rotary: tuple[Tensor, Tensor] | None, cache: Cache | None = None
    ) -> tuple[Tensor, Cache]:
        """The block's output, without the residual, and the keys and values of all tokens so far.

        ``rotary`` holds cosine and sine of the new tokens' positions, each (T, H / 2).
        """
        x_BTD = compute_format(x_BTD)
        q_BNTH, k_BNTH, v_BNTH = self.project(x_BTD, rotary)
        if cache is not None:
            k_BNTH = torch.cat((cache[0], k_BNTH), dim=2)
            v_BNTH = torch.cat((cache[1], v_BNTH), dim=2)
        y_BNTH = self._attend(q_BNTH, k_BNTH, v_BNTH)
        return self.out(y_BNTH.transpose(1, 2).flatten(2)), (k_BNTH, v_BNTH)

    def project(self, x_BTD: Tensor, rotary: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the new tokens, each (B, heads, T, H), after their norms and rotary positions."""
        shape = (*x_BTD.shape[:2], -1, self.block.head_size)
        q, k, v = self.q(x_BTD).view(shape), self.k(x_BTD).view(shape), self.v(x_BTD).view(shape)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q_BNTH, k_BNTH = q.transpose(1, 2), k.transpose(1, 2)
        if rotary is not None:
            q_BNTH, k_BNTH = rotate(q_BNTH, *rotary), rotate(k_BNTH, *rotary)
        return q_BNTH, k_BNTH, v.transpose(1, 2)

    def _attend(self, q_BNTH: Tensor, k_BNSH: Tensor, v_BNSH: Tensor) -> Tensor:
        block, tokens, total = self.block, q_BNTH.shape[2], k_BNSH.shape[2]
        mask = self._mask(tokens, total, q_BNTH.device)
        if mask is None and 1 < tokens <= written_out.LONGEST:
            return written_out.causal_attention(q_BNTH, k_BNSH, v_BNSH)
        return F.scaled_dot_product_attention(
            q_BNTH,
            k_BNSH,
            v_BNSH,
            attn_mask=mask,
            is_causal=mask is None and tokens > 1,
            enable_gqa=block.heads != block.kv_heads,
        )

    def _mask(self, tokens: int, total: int, device: torch.device) -> Tensor | None:
        """Mask of the tokens that each new token attends to, (T, S); None for plain causal or full attention."""
        window = self.block.window
        if (window is None or window >= total) and (tokens == total or tokens == 1):
            return None
        query = torch.arange(total - tokens, total, device=device)[:, None]
        key = torch.arange(total, device=device)[None]
        seen = key <= query
        return seen if window is None else seen & (key > query - window)
