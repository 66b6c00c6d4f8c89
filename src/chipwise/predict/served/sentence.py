"""Lowers the stem of text classifiers: look-ups in the word table, the matrix after them, and positions."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.kinds.sentence.stem import SentenceStem
from chipwise.model.ops.embedding import EmbeddingOp
from chipwise.predict.served.setting import PlacedOp, Setting, Step


def stem(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """Word look-ups, the matrix if rows are narrow, and position look-ups."""
    own = setting.arch.stem_as(SentenceStem)
    d, formats = setting.arch.d_model, setting.formats
    kept = {"weights": formats.table, "activations": formats.activations}
    words = EmbeddingOp(tokens=step.tokens, width=own.table_width(d), rows=own.words, **kept)
    yield PlacedOp(place="stem.words", op=words)
    for into, out in own.matrices(d):
        yield setting.plain_matmul("stem.matrix", step.tokens, into, out)
    yield PlacedOp(place="stem.positions", op=EmbeddingOp(tokens=step.tokens, width=d, rows=own.tokens, **kept))
