"""Stems and heads that several kinds of models share: a table of tokens; matrices over it, over classes, or none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar

from chipwise.core.fields import check_fields, positive
from chipwise.errors import SpecError
from chipwise.model.arch.trunk import Head, Pooling, Reads, Stem, Trunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens(Stem):
    """A table of tokens, and perhaps of segments."""

    reads: ClassVar[Reads] = "token"
    vocab_size: int = field()  # no default, though a stem without a table has 0
    token_types: int = 0  # rows of a table of segments (BERT)
    extra_positions: int = 0  # rows of the learned table beyond max_tokens (OPT has two)
    layer_inputs: int = 0  # values of a second table that each token gives each layer (Gemma 4 E2B)

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "vocab_size")
        for name in ("token_types", "extra_positions", "layer_inputs"):
            if getattr(self, name):
                positive(self, name)

    def of_vocabulary(self, rows: int) -> Tokens:
        """The same with a table of ``rows`` tokens."""
        return replace(self, vocab_size=rows)

    def parameters(self, d_model: int) -> int:
        """The tables of tokens and segments."""
        return (self.vocab_size + self.token_types) * d_model

    def layer_input_parameters(self, trunk: Trunk) -> int:
        """Parameters of the table that gives each layer ``layer_inputs`` values of each token.

        A table over the vocabulary, a projection of the embedding with a norm, and in each layer a gate, a projection
        to the model's width and a norm.
        """
        if not self.layer_inputs:
            return 0
        depth = len(trunk.layers)
        ends = (self.vocab_size + trunk.d_model) * self.layer_inputs * depth + self.layer_inputs
        return ends + depth * (2 * self.layer_inputs * trunk.d_model + trunk.norm_parameters())

    def record(self) -> Mapping[str, object]:
        """The tables' sizes."""
        return {
            "vocab_size": self.vocab_size,
            "token_types": self.token_types,
            "extra_positions": self.extra_positions,
            "layer_inputs": self.layer_inputs,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LmHead(Head):
    """A matrix over the vocabulary, which is the table of tokens where it is ``tied``."""

    name: ClassVar[str] = "lm"
    writes: ClassVar[bool] = True
    tied: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def with_tied(self, tied: bool) -> LmHead:
        """The same, tied or not."""
        return replace(self, tied=tied)

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """A table of its own, and its bias."""
        return stem.vocab_size * ((0 if self.tied else trunk.d_model) + self.bias)

    def check(self, trunk: Trunk, stem: Stem) -> None:
        """Checks that tokens are read."""
        if not stem.vocab_size:
            raise SpecError("a model that reads images has no head over a vocabulary; use head: classes", field="head")

    def record(self) -> Mapping[str, object]:
        """Whether it is tied, and has a bias."""
        return {"head": self.name, "tie_embeddings": self.tied, "head_bias": self.bias}


@dataclass(frozen=True, slots=True)
class Pooler(Head):
    """A square matrix with a bias on the first position (BERT, ViT without classes)."""

    name: ClassVar[str] = "pooler"

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """The matrix and its bias."""
        return trunk.d_model * (trunk.d_model + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class States(Head):
    """No matrix over outputs: the states of the positions, or what is pooled of them and projected (CLIP, SigLIP)."""

    name: ClassVar[str] = "none"
    pooling: Pooling = "first"
    projection: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        if self.projection < 0:
            raise SpecError(f"must be at least 0, not {self.projection}", field="projection")
        if self.pooling == "last":
            raise SpecError("a question, and only it, is answered by the last position: pooling: last", field="pooling")

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """The projection, and what pools by attention."""
        return self.projection * trunk.d_model + pooling_parameters(self.pooling, trunk)

    def record(self) -> Mapping[str, object]:
        """How positions are pooled and projected."""
        return {"head": self.name, "pooling": self.pooling, "projection": self.projection}


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes(Head):
    """A matrix with a bias over ``count`` classes, of what is pooled."""

    name: ClassVar[str] = "classes"
    answers: ClassVar[bool] = True
    count: int
    pooling: Pooling = "first"

    def __post_init__(self) -> None:
        check_fields(self)
        check_classes(self.count, self.name)

    def output_rows(self, stem: Stem) -> int:
        """The classes."""
        return self.count

    def vector_parameters(self, trunk: Trunk, stem: Stem) -> int:
        """The bias."""
        return self.count

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """The matrix and its bias, and what pools by attention."""
        return self.count * (trunk.d_model + 1) + pooling_parameters(self.pooling, trunk)

    def check(self, trunk: Trunk, stem: Stem) -> None:
        """Checks that the pooled position is there."""
        if stem.asks != (self.pooling == "last"):
            raise SpecError("a question, and only it, is answered by the last position: pooling: last", field="pooling")
        if self.pooling == "first" and not stem.prefix_tokens and not stem.vocab_size:
            raise SpecError("without a class token the positions are pooled; use pooling: mean", field="pooling")

    def record(self) -> Mapping[str, object]:
        """The classes, and what they are told of."""
        return {"head": self.name, "classes": self.count, "pooling": self.pooling}


def check_classes(count: int, head: str) -> None:
    """Checks that a head of classes has some.

    Raises:
        SpecError: It has none.
    """
    if count < 1:
        raise SpecError(f"{count} classes do not go with a head that is {head}", field="classes")


def pooling_parameters(pooling: Pooling, trunk: Trunk) -> int:
    """Parameters of pooling by attention: a learned query, attention with biases, a norm and a feed-forward."""
    if pooling != "attention":
        return 0
    last, d = trunk.layers[-1], trunk.d_model
    return d + 4 * d * (d + 1) + trunk.norm_parameters() + (last.ffn.parameters(d) if last.ffn is not None else 0)
