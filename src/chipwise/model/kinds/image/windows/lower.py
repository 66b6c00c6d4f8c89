"""Attention over the positions of an image, or within windows, as operators."""

from __future__ import annotations

from chipwise.model.arch.mixers import Attention
from chipwise.model.blocks.embedding.lower import lower_cut
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.image.windows.spec import squares_of
from chipwise.model.ops.attention import AttentionOp
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.op import Op


def attention_ops(
    block: Attention,
    stem: ImageStem,
    d_model: int,
    weights: str,
    *,
    batch: int,
    layer: int,
    positions: int | None = None,
    cut: bool = False,
) -> list[tuple[str, Op]]:
    """The operators of attention in layer number ``layer``, without the norm.

    ``positions`` is the number per image (default: the stem's); ``cut`` keeps only one before the output projection.
    Padding rows of windows are projected like all others.
    """
    positions = stem.tokens if positions is None else positions
    kept, width, squares = batch * positions, block.query_width, squares_of(block, stem, layer)
    rows, sequences, tokens = kept, batch, positions
    biases = int(block.relative_buckets > 0)
    ops: list[tuple[str, Op]] = []
    if squares is not None:
        rows, sequences, tokens = batch * squares.positions, batch * squares.number, squares.side**2
        biases = squares.number if squares.shift else biases
        if squares.filled != squares.grid:
            ops.append(("room", Elementwise(function="pad", elements=(kept + batch) * d_model)))
        if squares.plain:
            ops.append(("squares", Elementwise(function="transpose", elements=rows * d_model)))
        else:
            ops.append(("squares", EmbeddingOp(tokens=rows, width=d_model, rows=positions)))
    ops.append(("qkv", Matmul(m=rows, k=d_model, n=3 * width, weights=weights, bias=block.qkv_bias)))
    ops.append(("split", Elementwise(function="split", elements=3 * rows * width)))
    attend = AttentionOp(
        batch=sequences,
        query_tokens=tokens,
        past_tokens=0,
        heads=block.heads,
        kv_heads=block.kv_heads,
        head_size=block.head_size,
        rope=False,
        causal=False,
        biases=biases,
    )
    ops.append(("attend", attend))
    if squares is not None:
        if squares.plain:
            ops.append(("rows", Elementwise(function="transpose", elements=rows * width)))
        else:
            ops.append(("rows", EmbeddingOp(tokens=kept, width=width, rows=squares.positions)))
    rows = kept
    if cut:
        ops.append(("first_stream", lower_cut(width=d_model, rows=rows, kept=batch)))
        ops.append(("first", lower_cut(width=width, rows=rows, kept=batch)))
        rows = batch
    ops.append(("out", Matmul(m=rows, k=width, n=d_model, weights=weights, bias=block.out_bias)))
    return ops
