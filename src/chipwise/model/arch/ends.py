"""Stems and heads that several kinds of models share: token table, LM head, pooler, class head, and no head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import ClassVar

from chipwise.core.arrays import Count
from chipwise.core.fields import check_fields, not_negative, positive
from chipwise.errors import SpecError
from chipwise.model.arch.trunk import Head, Pooling, Reads, Stem, Trunk


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens(Stem):
    """The stem of text models: a token table, optionally with a table of segments (as in BERT)."""

    reads: ClassVar[Reads] = "token"
    does: ClassVar[str] = "read text"
    vocab_size: int = field()  # required, whereas other stems have 0
    token_types: int = 0  # rows of a table of segments (BERT)
    extra_positions: int = 0  # rows of the learned table beyond max_tokens (OPT has two)
    layer_inputs: int = 0  # values per token and layer from a second table (Gemma 4 E2B)

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "vocab_size")
        for name in ("token_types", "extra_positions", "layer_inputs"):
            if getattr(self, name):
                positive(self, name)

    def new_tokens(self, asked: int) -> int:
        """Returns ``asked``, because text models generate as many tokens as a request asks for."""
        return asked

    def units(self, positions: Count) -> Count:
        """Returns ``positions``, because the costs of text models are counted per token."""
        return positions

    def of_vocabulary(self, rows: int) -> Tokens:
        """A copy whose table has ``rows`` rows."""
        return replace(self, vocab_size=rows)

    def parameters(self, d_model: int) -> int:
        """Number of parameters of the token and segment tables."""
        return (self.vocab_size + self.token_types) * d_model

    def layer_input_parameters(self, trunk: Trunk) -> int:
        """Number of parameters for the additional inputs of the layers: ``layer_inputs`` values per layer and token.

        They belong to a second table over the vocabulary, and to a projection of the embedding with its norm. Each
        layer also has a gate, a projection to the model's width, and a norm.
        """
        if not self.layer_inputs:
            return 0
        depth = len(trunk.layers)
        ends = (self.vocab_size + trunk.d_model) * self.layer_inputs * depth + self.layer_inputs
        return ends + depth * (2 * self.layer_inputs * trunk.d_model + trunk.norm_parameters())

    def record(self) -> Mapping[str, object]:
        """The stored fields: the sizes of the tables."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class LmHead(Head):
    """The LM head: a matrix over the vocabulary. If ``tied``, it is the token table."""

    name: ClassVar[str] = "lm"
    writes: ClassVar[bool] = True
    tied: bool = True
    bias: bool = False

    def __post_init__(self) -> None:
        check_fields(self)

    def with_tied(self, tied: bool) -> LmHead:
        """A copy with this value of ``tied``."""
        return replace(self, tied=tied)

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Number of parameters of the matrix (none if tied) and of the bias."""
        return stem.vocab_size * ((0 if self.tied else trunk.d_model) + self.bias)

    def check(self, trunk: Trunk, stem: Stem) -> None:
        """Checks that the stem reads tokens."""
        if not stem.vocab_size:
            raise SpecError("a model that reads images cannot have an LM head; use `head: classes`", field="head")

    def record(self) -> Mapping[str, object]:
        """The stored fields: whether the head is tied, and whether it has a bias."""
        return {"head": self.name, "tie_embeddings": self.tied, "head_bias": self.bias}


@dataclass(frozen=True, slots=True)
class Pooler(Head):
    """A pooler: a square matrix with a bias, applied to the first position (BERT, ViT without classes)."""

    name: ClassVar[str] = "pooler"

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Parameters of the matrix and its bias."""
        return trunk.d_model * (trunk.d_model + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class States(Head):
    """A head without an output matrix: it outputs all states, or one pooled and projected vector (CLIP, SigLIP)."""

    name: ClassVar[str] = "none"
    pooling: Pooling = "first"
    projection: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        not_negative(self, "projection")

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Number of parameters of the projection and of attention pooling."""
        return self.projection * trunk.d_model + pooling_parameters(self.pooling, trunk)

    def record(self) -> Mapping[str, object]:
        """The stored fields: the pooling and the projection."""
        return {"head": self.name, "pooling": self.pooling, "projection": self.projection}


@dataclass(frozen=True, slots=True, kw_only=True)
class Labels(Head):
    """A matrix with a bias that outputs ``count`` logits; subclasses define what the labels are."""

    count: int

    def __post_init__(self) -> None:
        check_fields(self)
        check_classes(self.count, self.name)

    def output_rows(self, stem: Stem) -> int:
        """Number of labels."""
        return self.count

    def vector_parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Parameters of the bias."""
        return self.count

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Number of parameters of the matrix, its bias and attention pooling."""
        return self.count * (trunk.d_model + 1) + pooling_parameters(self.pooling, trunk)

    def record(self) -> Mapping[str, object]:
        """The stored fields: the number of labels."""
        return {"head": self.name, "classes": self.count}


@dataclass(frozen=True, slots=True, kw_only=True)
class Classes(Labels):
    """A classification head: a matrix with a bias from the pooled state to ``count`` classes."""

    name: ClassVar[str] = "classes"
    answers: ClassVar[bool] = True
    pooling: Pooling = "first"

    def check(self, trunk: Trunk, stem: Stem) -> None:
        """Checks that the pooling fits the stem: first-position pooling needs a class token."""
        if self.pooling == "first" and not stem.prefix_tokens and not stem.vocab_size:
            raise SpecError("needs a class token; without one, use `pooling: mean`", field="pooling")

    def record(self) -> Mapping[str, object]:
        """The stored fields: the number of classes and the pooling."""
        return {"head": self.name, "classes": self.count, "pooling": self.pooling}


def check_classes(count: int, head: str) -> None:
    """Checks that a head with labels has at least one label.

    Raises:
        SpecError: ``count`` is below 1. The message contains ``head``, the type of the head.
    """
    if count < 1:
        raise SpecError(f"a head of type {head} cannot have {count} classes", field="classes")


def pooling_parameters(pooling: Pooling, trunk: Trunk) -> int:
    """Number of parameters of attention pooling: a learned query, attention with biases, a norm and a feed-forward."""
    if pooling != "attention":
        return 0
    last, d = trunk.layers[-1], trunk.d_model
    return d + 4 * d * (d + 1) + trunk.norm_parameters() + (last.ffn.parameters(d) if last.ffn is not None else 0)
