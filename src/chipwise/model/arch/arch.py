"""ArchSpec: a whole model as a frozen dataclass. This module needs no torch and computes no costs.

A model consists of a stem (such as a token table, or the matrix that projects image patches), layers that may all
differ, a final norm and a head.
Extra heads for multi-token prediction are not modelled.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import ClassVar, Self, TypeVar

from chipwise.core.digest import digest, plain
from chipwise.core.fields import positive, whole_number
from chipwise.core.results import Result
from chipwise.core.stored import Stored
from chipwise.errors import SpecError, Unsupported, short
from chipwise.model.arch.ends import LmHead, States, Tokens
from chipwise.model.arch.feed_forward import Activation, FeedForward, MixtureOfExperts
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.arch.record import ArchRecord
from chipwise.model.arch.trunk import Head, Reads, Stem, Trunk, check_depth, check_layers
from chipwise.model.kinds.sound.stem import SoundStem

AStem = TypeVar("AStem", bound=Stem)
AHead = TypeVar("AHead", bound=Head)
KEPT = (*(each.name for each in fields(Trunk)), "name", "encoder", "encoder_d_model", "encoder_stem")
"""Fields with the same name and value in a model and in its stored record."""


def check_heads(d_model: int, heads: int, *, field: str = "heads") -> None:
    """Checks that ``heads`` divides ``d_model``, for models whose head size is ``d_model / heads``.

    Raises:
        SpecError: ``heads`` does not divide ``d_model``.
    """
    if heads < 1:
        raise SpecError(f"must be at least 1, not {heads}", field=field)
    if d_model % heads:
        raise SpecError(f"{short(heads)} heads do not divide a width of {short(d_model)}", field=field)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ArchSpec(Trunk, Result, Stored):
    """A transformer: a decoder, an encoder (non-causal attention), or both. Every layer may be different.

    The ``stem`` defines the input (tokens, images, sound, items), the ``head`` the output. Files store the model as an
    :class:`~chipwise.model.arch.record.ArchRecord`.
    """

    STORED: ClassVar[type] = ArchRecord

    stem: Stem
    head: Head = field(default_factory=LmHead)
    name: str = "model"
    encoder: tuple[Layer, ...] = ()  # layers whose output ``cross`` attends to; norms and token table as in the decoder
    encoder_d_model: int = 0  # 0: d_model; an encoder of a different width has its own token table
    encoder_stem: SoundStem | None = None  # stem of an encoder that reads sound instead of tokens
    towers: tuple[ArchSpec, ...] = ()  # encoders of images or sound; their heads make tokens for the decoder

    def __post_init__(self) -> None:
        Trunk.__post_init__(self)
        if self.encoder_d_model:
            positive(self, "encoder_d_model")
        for name in ("encoder_d_model", "encoder_stem"):
            if getattr(self, name) and not self.encoder:
                raise SpecError("is set, but the model has no encoder", field=name)
        self.stem.check(self, self.head)
        self.head.check(self, self.stem)
        if not self.layers and not self.head.token_width:
            raise SpecError("a model needs at least one layer", field="layers")
        crosses = bool(self.encoder) or self.stem.asks
        check_layers(self.layers, self, self.stem, stack="layers", crosses=crosses)
        check_layers(self.encoder, self, self.stem, stack="encoder", crosses=False)
        self._check_towers()

    def _check_towers(self) -> None:
        if self.towers and self.head.token_width:
            raise SpecError("only a tower has a projector, and a tower cannot have towers", field="projector")
        for i, tower in enumerate(self.towers):
            if not tower.head.token_width:
                raise SpecError("a tower needs a projector", field=f"towers[{i}].projector")
            if tower.head.token_width != self.d_model:
                raise SpecError(
                    f"gives tokens of {tower.head.token_width} values to a decoder of width {self.d_model}; "
                    "both must be equal",
                    field=f"towers[{i}].projector.widths",
                )

    def stem_as(self, kind: type[AStem]) -> AStem:
        """The stem, after a check that its class is ``kind``.

        Raises:
            Unsupported: The stem has a different class.
        """
        if not isinstance(self.stem, kind):
            raise Unsupported(f"{self.name} does not {kind.does}")
        return self.stem

    def head_as(self, kind: type[AHead]) -> AHead:
        """The head, after a check that its class is ``kind``.

        Raises:
            Unsupported: The head has a different class.
        """
        if not isinstance(self.head, kind):
            raise Unsupported(f"{self.name} has a head of type {type(self.head).__name__}, not {kind.__name__}")
        return self.head

    def stored(self) -> ArchRecord:
        """This model as the record that is written to files."""
        kept = {name: getattr(self, name) for name in KEPT}
        towers = tuple(tower.stored() for tower in self.towers)
        ends = {"vocab_size": 0, "tie_embeddings": self.tie_embeddings, **self.stem.record(), **self.head.record()}
        return ArchRecord(**{**kept, **ends, "towers": towers})

    @classmethod
    def of_stored(cls, record: object) -> Self:
        """The model that a stored record describes.

        Raises:
            SpecError: The record's fields contradict each other or do not describe a model.
        """
        if not isinstance(record, ArchRecord):
            raise TypeError(f"must be the record of a model, not {type(record).__name__}")
        kept = {name: getattr(record, name) for name in KEPT}
        towers = []
        for i, tower in enumerate(record.towers):
            try:
                towers.append(cls.of_stored(tower))
            except SpecError as error:
                raise error.inside(field=f"towers[{i}]") from None
        found = cls(**kept, stem=record.stem_value(), head=record.head_value(), towers=tuple(towers))
        record.check_same(found.stored())
        return found

    @property
    def vocab_size(self) -> int:
        """Number of rows in the token table; 0 if the model reads no tokens."""
        return self.stem.vocab_size

    @property
    def tie_embeddings(self) -> bool:
        """Whether the head reuses the token table. True also for text models without an LM head."""
        return self.vocab_size > 0 and self.head.tied

    @property
    def reads_tokens(self) -> bool:
        """Whether a request is a text of any length, which a decoder can continue, and not one input of fixed size."""
        return self.vocab_size > 0

    @property
    def causal(self) -> bool:
        """Whether the model can generate text: it reads tokens, and all (decoder) attention is causal."""
        return self.reads_tokens and all(
            layer.attention.causal for layer in self.layers if isinstance(layer.attention, Attention)
        )

    def without_towers(self) -> ArchSpec:
        """A copy without towers, which reads text only."""
        return replace(self, towers=()) if self.towers else self

    def of_width(self, d_model: int) -> ArchSpec:
        """A copy of width ``d_model``; its towers then make tokens of that width."""
        fitted = tuple(replace(tower, head=tower.head.of_token_width(d_model)) for tower in self.towers)
        return replace(self, d_model=d_model, towers=fitted)

    def of_vocabulary(self, rows: int) -> ArchSpec:
        """A copy whose token table, if any, has ``rows`` rows."""
        return replace(self, stem=self.stem.of_vocabulary(rows))

    def with_tied(self, tied: bool) -> ArchSpec:
        """A copy whose head reuses the token table if ``tied``; otherwise, the head has its own matrix."""
        return replace(self, head=self.head.with_tied(tied))

    @property
    def image_tokens(self) -> int:
        """Number of sequence positions that one image occupies; 0 if the model reads no images."""
        return self.stem.image_tokens

    @property
    def crosses(self) -> bool:
        """Whether the layers process only the tokens of a question, and read the image's tokens by cross-attention."""
        return not self.encoder and any(layer.cross is not None for layer in self.layers)

    @property
    def request_tokens(self) -> int:
        """Sequence length of a request in the layers; 0 if requests have no fixed length."""
        return self.stem.request_tokens - (self.image_tokens if self.crosses else 0)

    @property
    def outputs(self) -> int:
        """Number of rows in the head's matrix: vocabulary size, number of classes, or 1 for scores."""
        return self.head.output_rows(self.stem)

    @property
    def reads(self) -> Reads:
        """The unit in which costs are counted: a token, an image, a sound or (ranking models) a request."""
        return self.stem.reads

    @property
    def first_stem(self) -> Stem:
        """The stem that reads a request: the encoder's own stem, if it has one, else the model's stem."""
        return self.stem if self.encoder_stem is None else self.encoder_stem

    @property
    def encoder_tokens(self) -> int:
        """Length of the encoder's sequence if the encoder has its own stem; 0 if it reads the prompt's tokens."""
        return self.first_stem.request_tokens if self.encoder else 0

    @property
    def own_tokens(self) -> int:
        """Sequence length of a request with a fixed size, such as an image; 0 if requests are texts of any length."""
        return self.encoder_tokens or self.request_tokens

    @property
    def context(self) -> int | None:
        """Maximum number of tokens of a prompt plus its answer; None if requests are images or sound."""
        return None if self.own_tokens else self.max_tokens

    def request_of(self, prompt_tokens: int, new_tokens: int) -> tuple[int, int]:
        """Input length and number of generated tokens of a request; images and sound have a fixed input length."""
        return self.own_tokens or prompt_tokens, self.stem.new_tokens(new_tokens)

    @property
    def sound_s(self) -> float | None:
        """Length of the sound in a request, in seconds; None for models that do not read sound."""
        return self.first_stem.seconds_heard

    @property
    def frames(self) -> int | None:
        """1 for models that read one image per request; None for all other models."""
        return {"image": 1}.get(self.reads)

    def hearing(self, seconds: float) -> ArchSpec:
        """A copy whose requests contain ``seconds`` seconds of sound.

        Raises:
            SpecError: The model does not read sound, or ``seconds`` exceeds its maximum per request.
        """
        if self.encoder_stem is not None:
            return replace(self, encoder_stem=self.encoder_stem.hearing(seconds))
        heard = self.stem.hearing(seconds)
        if heard is None:
            raise SpecError(f"{self.name} does not take audio", field="audio_s")
        return replace(self, stem=heard)

    @property
    def encoder_width(self) -> int:
        """Width of the encoder, whose output the decoder's layers attend to."""
        return self.encoder_d_model or self.d_model

    def encoding(self) -> ArchSpec:
        """The encoder as a model: a copy with the encoder's width and stem, and with no head."""
        if self.encoder_width == self.d_model and not self.encoder_tokens:
            return self
        return replace(self, d_model=self.encoder_width, stem=self.first_stem, head=States())

    def embedding_parameters(self) -> int:
        """Number of parameters of the stem, the learned positions, and the head (0 for a tied head)."""
        ends = self.stem.parameters(self.d_model) + self.stem.layer_input_parameters(self)
        ends += self.head.parameters(self, self.stem)
        if self.positions == "learned":
            ends += (self.max_tokens + self.stem.extra_positions) * self.d_model
        encoding = self.encoding()
        return ends if encoding is self else ends + encoding.stem.parameters(encoding.d_model)

    def headline(self) -> str:
        """The model's name and sizes."""
        return f"{self.name}, {self.parameters():,} parameters, {len(self.layers)} layers of width {self.d_model}"

    def rows(self) -> list[dict[str, object]]:
        """One row per layer: the classes of its blocks, and the layer whose weights it shares."""
        return [
            {
                "layer": number,
                "attention": type(layer.attention).__name__ if layer.attention else None,
                "ffn": type(layer.ffn).__name__ if layer.ffn else None,
                "shares": layer.shares,
            }
            for number, layer in enumerate(self.layers)
        ]

    def parameters(self) -> int:
        """Number of trainable parameters. Weights that several layers share, and tied weights, are counted once."""
        return self._parameters(active=False)

    def active_parameters(self) -> int:
        """Number of parameters that one token uses. Only active experts are counted; embeddings count in full."""
        return self._parameters(active=True)

    def _parameters(self, *, active: bool) -> int:
        encoding = self.encoding()
        ends = self.final_norm + self.embedding_norm
        total = self.embedding_parameters() + ends * self.norm_parameters()
        total += (self.final_norm if self.encoder or self.crosses else 0) * encoding.norm_parameters()
        for layers, whose in ((self.layers, self), (self.encoder, encoding)):
            total += sum(whose.layer_parameters(layer, active=active) for layer in layers if layer.shares is None)
        return total + sum(tower.parameters() for tower in self.towers)

    def layer_parameters(self, layer: Layer, *, active: bool = False) -> int:
        """Number of parameters of one layer and its norms. If ``active``, only active experts are counted."""
        total = layer.norms() * self.norm_parameters() * (2 if self.norm_place == "both" else 1)
        total += (layer.convs + layer.scale * len(tuple(layer.blocks()))) * self.d_model
        total += self.modulation_width(layer) * (self.d_model + 1)
        for block in layer.blocks():
            if active and isinstance(block, MixtureOfExperts):
                total += block.active_parameters(self.d_model)
            else:
                total += block.parameters(self.d_model)
        if layer.cross is not None:  # keys and values are projected from the encoder's output
            total += 2 * layer.cross.kv_width * (self.encoder_width - self.d_model)
        return total

    def modulation_width(self, layer: Layer) -> int:
        """Number of shift, scale and gate values for the blocks of ``layer`` in a denoiser; 0 for other models."""
        return self.head.modulation_width(self, layer)

    @property
    def passes(self) -> int:
        """Forward passes per request: a denoiser's steps (doubled with guidance); 1 for other models."""
        return self.head.passes

    def as_trained(self) -> ArchSpec:
        """A copy whose head has default values for settings that do not affect training."""
        return replace(self, head=self.head.as_trained())

    @property
    def digest(self) -> str:
        """Digest of the architecture, without its name."""
        fields = plain(self)
        del fields["name"]
        return digest(fields)


def uniform(
    *,
    vocab_size: int,
    d_model: int,
    depth: int,
    heads: int,
    kv_heads: int | None = None,
    head_size: int | None = None,
    ffn_width: int,
    activation: Activation = "silu",
    gated: bool = True,
    max_tokens: int = 1024,
    tie_embeddings: bool = True,
    name: str = "model",
) -> ArchSpec:
    """A Llama-style model of identical layers."""
    check_depth(whole_number("depth", depth, least=0), field="depth")
    d_model, heads = whole_number("d_model", d_model), whole_number("heads", heads)
    if head_size is None:
        check_heads(d_model, heads)
        head_size = d_model // heads
    attention = Attention(heads=heads, kv_heads=heads if kv_heads is None else kv_heads, head_size=head_size)
    ffn = FeedForward(width=ffn_width, activation=activation, gated=gated)
    return ArchSpec(
        name=name,
        stem=Tokens(vocab_size=vocab_size),
        d_model=d_model,
        layers=(Layer(attention=attention, ffn=ffn),) * depth,
        max_tokens=max_tokens,
        head=LmHead(tied=tie_embeddings),
    )
