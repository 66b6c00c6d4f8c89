"""Operators of a text classifier outside its layers: word table, matrix, positions, mean pooling and classes."""

from __future__ import annotations

from chipwise.model.blocks.lowering import Operators, Pass
from chipwise.model.kinds.sentence.stem import SentenceStem
from chipwise.model.ops.elementwise import Elementwise
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.model.ops.matmul import Matmul
from chipwise.model.ops.pool import PoolOp


def _stem(at: Pass) -> None:
    stem, d = at.arch.stem_as(SentenceStem), at.arch.d_model
    at.tokens = stem.tokens
    at.put("stem", [("words", EmbeddingOp(tokens=at.rows, width=stem.table_width(d), rows=stem.words))])
    for into, out in stem.matrices(d):
        at.put("stem", [("projection", Matmul(m=at.rows, k=into, n=out, weights=at.head))])
    at.put("stem", [("positions", Elementwise(function="add", elements=at.rows * d, inputs=2))])


def _head(at: Pass) -> None:
    d = at.arch.d_model
    at.put_norm("norm")
    at.put("head", [("mean", PoolOp(batch=at.batch, positions=at.tokens, width=d))])
    at.put("head", [("logits", Matmul(m=at.batch, k=d, n=at.arch.outputs, weights=at.head, bias=True))])


OPERATORS = Operators(stem=_stem, head=_head)
