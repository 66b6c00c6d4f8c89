"""Names and shapes of a ranking model's weights outside its layers."""

from __future__ import annotations

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.blocks.weights import Shapes, linear, norm
from chipwise.model.kinds.ranking.stem import RankingStem, Scores


def stem(arch: ArchSpec) -> Shapes:
    """Weights of the tables of items and tags, and of the matrix to the model's width."""
    given = arch.stem_as(RankingStem)
    yield "stem.items.weight", (given.items + 1, given.table_width(arch.d_model))
    if given.bag:
        yield "stem.tags.weight", (given.tags + 1, given.table_width(arch.d_model))
    if given.width:
        yield from linear("stem.projection", arch.d_model, given.values, bias=given.bias)


def head(arch: ArchSpec) -> Shapes:
    """Weights of the final norm, and of the score matrix (absent for similarity scores)."""
    yield from norm(arch, "norm")
    if isinstance(arch.head, Scores):
        yield from linear("head", 1, arch.d_model, bias=True)
