"""The form in which files store a model: flat fields, of which each kind of model uses only some.

The fields and their defaults enter every model's digest, so no existing field or default may change. New fields
are marked ``later``: at their default they do not enter the digest.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Literal

from chipwise.core.fields import later
from chipwise.errors import SpecError
from chipwise.model.arch.ends import Classes, LmHead, Pooler, States, Tokens
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.trunk import Head, NormKind, NormPlace, Pooling, Positions, Stem
from chipwise.model.kinds.denoiser.denoiser import Denoiser
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.kinds.question.question import Question, QuestionStem
from chipwise.model.kinds.ranking.stem import RankingStem, Scores, Similarity
from chipwise.model.kinds.sentence.stem import SentenceStem
from chipwise.model.kinds.sound.stem import Ctc, SoundStem


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchRecord:
    """The fields of a stored model; :meth:`stem_value` and :meth:`head_value` build its stem and head from them."""

    vocab_size: int
    d_model: int
    layers: tuple[Layer, ...]
    name: str = "model"
    max_tokens: int = 1024
    tie_embeddings: bool = True
    norm: NormKind = "rmsnorm"
    norm_eps: float = 1e-5
    norm_bias: bool = False
    positions: Positions = "rope"
    rope_theta: float = 10_000.0
    norm_place: NormPlace = later("pre")  # noqa: RUF009
    norm_weight: bool = later(True)
    final_norm: bool = later(True)
    embedding_norm: bool = later(False)
    head: Literal["lm", "pooler", "classes", "ctc", "scores", "similarity", "none"] = later("lm")
    head_bias: bool = later(False)
    token_types: int = later(0)
    extra_positions: int = later(0)
    layer_inputs: int = later(0)
    encoder: tuple[Layer, ...] = later(())
    encoder_d_model: int = later(0)
    stem: ImageStem | SoundStem | SentenceStem | RankingStem | None = later(None)  # noqa: RUF009
    encoder_stem: SoundStem | None = later(None)  # noqa: RUF009
    classes: int = later(0)
    pooling: Pooling = later("first")  # noqa: RUF009
    projection: int = later(0)
    denoiser: Denoiser | None = later(None)  # noqa: RUF009
    towers: tuple[ArchRecord, ...] = later(())
    projector: Projector | None = later(None)  # noqa: RUF009
    question: Question | None = later(None)  # noqa: RUF009

    def stem_value(self) -> Stem:
        """The stem that the fields describe.

        Raises:
            SpecError: The fields contradict each other.
        """
        if isinstance(self.stem, ImageStem) and self.question is not None:
            if self.projector is None:
                raise SpecError("a model that answers questions about images needs a projector", field="projector")
            return QuestionStem(image=self.stem, question=self.question, projector=self.projector)
        if self.stem is not None:
            return self.stem
        return Tokens(**{each.name: getattr(self, each.name) for each in fields(Tokens)})

    def head_value(self) -> Head:
        """The head that the fields describe.

        Raises:
            SpecError: The fields contradict each other.
        """
        if self.head == "lm":
            return LmHead(tied=self.tie_embeddings, bias=self.head_bias)
        if self.head == "classes":
            return Classes(count=self.classes, pooling=self.pooling)
        if self.head == "ctc":
            return Ctc(count=self.classes)
        if self.head == "none":
            tower = None if self.question is not None else self.projector
            return self.denoiser or tower or States(pooling=self.pooling, projection=self.projection)
        return {"pooler": Pooler(), "scores": Scores(), "similarity": Similarity()}[self.head]

    def check_same(self, found: ArchRecord) -> None:
        """Checks that these fields equal ``found``, the record of the model built from them.

        Raises:
            SpecError: A field is set that this model's stem and head do not use.
        """
        ignored = {"tie_embeddings", "towers"}  # tying has no effect without a matrix over a vocabulary
        for field in fields(self):
            given, kept = getattr(self, field.name), getattr(found, field.name)
            if field.name not in ignored and given != kept:
                raise SpecError(f"does not fit the stem and the head ({self.head}) of this model", field=field.name)
