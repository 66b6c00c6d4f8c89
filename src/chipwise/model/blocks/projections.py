"""The four matrices of attention in torch. Axes: B batch, T tokens, N heads, H head size, W width of all heads."""

from __future__ import annotations

from torch import Tensor, nn

from chipwise.model.arch.mixers import Attention


class Projections(nn.Module):
    """The query, key, value and output matrices of attention."""

    def __init__(self, block: Attention, d_model: int) -> None:
        super().__init__()
        self.block = block
        self.q = nn.Linear(d_model, block.query_width, bias=block.qkv_bias)
        self.k = nn.Linear(d_model, block.kv_width, bias=block.qkv_bias)
        self.v = nn.Linear(d_model, block.kv_width, bias=block.qkv_bias)
        self.out = nn.Linear(block.query_width, d_model, bias=block.out_bias)

    def heads(self, x_BTW: Tensor) -> Tensor:
        """Splits (B, T, W) into heads, (B, N, T, H)."""
        return x_BTW.view(*x_BTW.shape[:2], -1, self.block.head_size).transpose(1, 2)
