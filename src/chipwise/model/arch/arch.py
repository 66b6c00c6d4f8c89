"""ArchSpec: a whole model. Pure values; no torch, no costs.

A model is a stem (a table of tokens, or patches of an image), layers that may all differ, a final norm and a head.
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


def check_heads(d_model: int, heads: int, *, field: str = "heads") -> None:
    """Checks that ``heads`` divides ``d_model``; call it where the head size is ``d_model / heads``.

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
    encoder: tuple[Layer, ...] = ()  # layers that ``cross`` attends to; norms and embedding as in the decoder
    encoder_d_model: int = 0  # 0: d_model; an encoder of another width has its own token table
    encoder_stem: SoundStem | None = None  # stem of an encoder that reads sound instead of tokens
    towers: tuple[ArchSpec, ...] = ()  # encoders of images or sound; their heads make tokens for the decoder

    def __post_init__(self) -> None:
        Trunk.__post_init__(self)
        if self.encoder_d_model:
            positive(self, "encoder_d_model")
        for name in ("encoder_d_model", "encoder_stem"):
            if getattr(self, name) and not self.encoder:
                raise SpecError("there is no encoder to have one", field=name)
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
            raise SpecError("only a tower has one: a stem, no head, no towers of its own", field="projector")
        for i, tower in enumerate(self.towers):
            if not tower.head.token_width:
                raise SpecError("a tower needs a projector", field=f"towers[{i}].projector")
            if tower.head.token_width != self.d_model:
                raise SpecError(
                    f"gives tokens of {tower.head.token_width} values to a decoder of width {self.d_model}",
                    field=f"towers[{i}].projector.widths",
                )

    def stem_as(self, kind: type[AStem]) -> AStem:
        """The stem, checked to be a ``kind``.

        Raises:
            Unsupported: It is of another class.
        """
        if not isinstance(self.stem, kind):
            raise Unsupported(f"{self.name} does not {kind.does}")
        return self.stem

    def head_as(self, kind: type[AHead]) -> AHead:
        """The head, checked to be a ``kind``.

        Raises:
            Unsupported: It is of another class.
        """
        if not isinstance(self.head, kind):
            raise Unsupported(f"{self.name} has a head of {type(self.head).__name__}, not of {kind.__name__}")
        return self.head

    def stored(self) -> ArchRecord:
        """The record of the model that files store."""
        kept = {each.name: getattr(self, each.name) for each in fields(Trunk)}
        beside = ("name", "encoder", "encoder_d_model", "encoder_stem")
        kept |= {name: getattr(self, name) for name in beside}
        towers = tuple(tower.stored() for tower in self.towers)
        ends = {"vocab_size": 0, "tie_embeddings": self.tie_embeddings, **self.stem.record(), **self.head.record()}
        return ArchRecord(**{**kept, **ends, "towers": towers})

    @classmethod
    def of_stored(cls, record: object) -> Self:
        """The model that a stored record describes.

        Raises:
            SpecError: Its fields contradict each other, or describe no model.
        """
        if not isinstance(record, ArchRecord):
            raise TypeError(f"no record of a model: {type(record).__name__}")
        kept = {each.name: getattr(record, each.name) for each in fields(Trunk)}
        towers = []
        for i, tower in enumerate(record.towers):
            try:
                towers.append(cls.of_stored(tower))
            except SpecError as error:
                raise error.inside(field=f"towers[{i}]") from None
        found = cls(
            **kept,
            stem=record.stem_value(),
            head=record.head_value(),
            name=record.name,
            encoder=record.encoder,
            encoder_d_model=record.encoder_d_model,
            encoder_stem=record.encoder_stem,
            towers=tuple(towers),
        )
        record.check_same(found.stored())
        return found

    @property
    def vocab_size(self) -> int:
        """Rows of the token table; 0 if the model reads no tokens."""
        return self.stem.vocab_size

    @property
    def tie_embeddings(self) -> bool:
        """Whether the head reuses the token table. True also if the model has no matrix over a vocabulary."""
        return self.vocab_size > 0 and self.head.tied

    @property
    def reads_tokens(self) -> bool:
        """Whether a request is a text of any length (which may be continued), rather than one input of fixed size."""
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
        """A copy whose head reuses the token table (tied) or has a separate matrix."""
        return replace(self, head=self.head.with_tied(tied))

    @property
    def image_tokens(self) -> int:
        """Positions that one image takes in the layers; 0 if the model reads no images."""
        return self.stem.image_tokens

    @property
    def crosses(self) -> bool:
        """Whether only a question's words pass through the layers, and cross-attention reads the image's tokens."""
        return not self.encoder and any(layer.cross is not None for layer in self.layers)

    @property
    def request_tokens(self) -> int:
        """Positions per request in the layers; 0 if requests have no fixed length."""
        return self.stem.request_tokens - (self.image_tokens if self.crosses else 0)

    @property
    def outputs(self) -> int:
        """Rows of the head's matrix: vocabulary size, number of classes, or 1 for scores."""
        return self.head.output_rows(self.stem)

    @property
    def reads(self) -> Reads:
        """Unit of a request's cost: tokens, one image or sound, or (ranking) the request itself."""
        return self.stem.reads

    @property
    def first_stem(self) -> Stem:
        """The stem that reads a request: the encoder's own, if it has one."""
        return self.stem if self.encoder_stem is None else self.encoder_stem

    @property
    def encoder_tokens(self) -> int:
        """Encoder positions per request from the encoder's own stem; 0 if the encoder reads the prompt's tokens."""
        return self.first_stem.request_tokens if self.encoder else 0

    @property
    def own_tokens(self) -> int:
        """Positions of a request of fixed size, such as an image or a sound; 0 if requests are texts of any length."""
        return self.encoder_tokens or self.request_tokens

    @property
    def context(self) -> int | None:
        """Most tokens of a prompt and its answer; None if requests are images or sound."""
        return None if self.own_tokens else self.max_tokens

    def request_of(self, prompt_tokens: int, new_tokens: int) -> tuple[int, int]:
        """Positions and new tokens of a request with such a prompt; whole inputs have positions of their own."""
        return self.own_tokens or prompt_tokens, self.stem.new_tokens(new_tokens)

    @property
    def sound_s(self) -> float | None:
        """Seconds of sound in a request; None for models without an audio input in seconds."""
        return self.first_stem.seconds_heard

    @property
    def frames(self) -> int | None:
        """Images in a request; None for models that do not read an image at a time."""
        return {"image": 1}.get(self.reads)

    def hearing(self, seconds: float) -> ArchSpec:
        """A copy whose requests have ``seconds`` of sound.

        Raises:
            SpecError: The model does not take audio, or not so many seconds in one request.
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
        """A copy with the encoder's width and stem, for computing the encoder."""
        if self.encoder_width == self.d_model and not self.encoder_tokens:
            return self
        return replace(self, d_model=self.encoder_width, stem=self.first_stem, head=States())

    def embedding_parameters(self) -> int:
        """Parameters of the stem, the learned positions, and the head (if it is not tied to the token table)."""
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
        """One row per layer: its blocks and their parameters."""
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
        """Trainable parameters; shared and tied ones are counted once."""
        return self._parameters(active=False)

    def active_parameters(self) -> int:
        """Parameters that one token uses (only its active experts); embedding tables count in full."""
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
        """Parameters of one layer with its norms; ``active`` leaves out experts that a token is not routed to."""
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
        """Passes per request: a denoiser's steps (doubled if guided); 1 for other models."""
        return self.head.passes

    def as_trained(self) -> ArchSpec:
        """A copy whose head lacks the fields that do not affect training."""
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
