"""Lowers the stem of text classifiers: look-ups in the word table, a matrix to the model's width, and positions."""

from __future__ import annotations

from collections.abc import Iterator

from chipwise.model.kinds.sentence.stem import SentenceStem
from chipwise.predict.served.setting import PlacedOp, Setting, Step


def stem(setting: Setting, step: Step) -> Iterator[PlacedOp]:
    """The operators of the stem: word look-ups, a matrix if the table is narrower than the model, position look-ups."""
    own = setting.arch.stem_as(SentenceStem)
    d = setting.arch.d_model
    yield setting.table("stem.words", step.tokens, own.table_width(d), own.words)
    for into, out in own.matrices(d):
        yield setting.plain_matmul("stem.matrix", step.tokens, into, out)
    yield setting.table("stem.positions", step.tokens, d, own.tokens)
