"""The short convolution as an operator."""

from __future__ import annotations

from chipwise.model.ops.matmul import ConvOp


def lower(taps: int, *, d_model: int, batch: int, query_tokens: int) -> ConvOp:
    """A depthwise convolution over ``query_tokens`` positions per sequence. The residual is folded into the weights."""
    return ConvOp(
        batch=batch, positions=query_tokens, in_channels=d_model, out_channels=d_model, taps=taps, groups=d_model
    )
