"""Layers of blocks with norms, as operators: what models of sound and encoders of images lower alike."""

from __future__ import annotations

from collections.abc import Iterable

from chipwise.blocks.norm.lower import lower as lower_norm
from chipwise.ops import AttentionOp, Elementwise, Matmul, Op, Placed
from chipwise.spec import ArchSpec, Attention

LayerOps = list[tuple[str, list[tuple[str, Op]]]]
"""The blocks of a layer in order, each with its name and its operators, without norms."""


def lower_layers(arch: ArchSpec, layers: Iterable[LayerOps], *, rows: int) -> tuple[list[Placed], bool]:
    """The layers with a norm before or after each block, as ``arch`` has them.

    Also whether the last block's result is still to be added to the residual stream, as before the last norm.
    """
    placed: list[Placed] = []
    skip, after = False, arch.norm_place == "post"
    for i, blocks in enumerate(layers):
        for name, ops in blocks:
            place = f"layers.{i}.{name}"
            inner = [Placed(place=f"{place}.{part}", op=op) for part, op in ops]
            norm = Placed(place=f"{place}.norm", op=lower_norm(arch, rows=rows, skip=skip or after))
            placed += [*inner, norm] if after else [norm, *inner]
            skip = not after
    return placed, skip


def attention_ops(block: Attention, positions: int, d_model: int, weights: str, *, batch: int) -> list[tuple[str, Op]]:
    """The operators of attention over all ``positions``, or within stretches of them, without the norm."""
    rows, width, tokens = batch * positions, block.query_width, block.chunk or positions
    attend = AttentionOp(
        batch=rows // tokens,
        query_tokens=tokens,
        past_tokens=0,
        heads=block.heads,
        kv_heads=block.kv_heads,
        head_size=block.head_size,
        rope=False,
        causal=False,
    )
    return [
        ("qkv", Matmul(m=rows, k=d_model, n=3 * width, weights=weights, bias=block.qkv_bias)),
        ("split", Elementwise(function="split", elements=3 * rows * width)),
        ("attend", attend),
        ("out", Matmul(m=rows, k=width, n=d_model, weights=weights, bias=block.out_bias)),
    ]
