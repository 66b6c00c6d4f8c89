"""ArchSpec: a whole model. Pure values; no torch, no costs.

A model is an embedding (of tokens, or of an image's patches), layers that may all differ, a final norm and a head.
Heads that predict several tokens ahead are no part of a model here.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from chipwise.core.digest import digest, plain
from chipwise.core.fields import check_fields, later, positive, whole_number
from chipwise.core.results import Result
from chipwise.errors import SpecError, short
from chipwise.model.arch.feed_forward import Activation, FeedForward, MixtureOfExperts
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.kinds.denoiser.denoiser import BLOCK_PARTS, UNSHIFTED, Denoiser
from chipwise.model.kinds.image.stem import ImageStem
from chipwise.model.kinds.question.projector.spec import Projector
from chipwise.model.kinds.question.question import Question
from chipwise.model.kinds.ranking.stem import RankingStem
from chipwise.model.kinds.sound.stem import SoundStem

NormKind = Literal["rmsnorm", "layernorm"]
if TYPE_CHECKING:  # as the blocks of a layer (model/arch/layer.py)
    AnyStem = Any
else:
    AnyStem = ImageStem | SoundStem | RankingStem | None

MOST_LAYERS = 10_000  # ten times the deepest transformer that was published (DeepNet, arXiv:2203.00555)


def check_depth(depth: int, *, field: str) -> None:
    """Checks a number of layers before that many are built.

    Raises:
        SpecError: There are more than ``MOST_LAYERS``.
    """
    if depth > MOST_LAYERS:
        raise SpecError(f"at most {MOST_LAYERS:,} layers are handled, not {short(depth)}", field=field)


def check_heads(d_model: int, heads: int, *, field: str = "heads") -> None:
    """Checks that ``heads`` divide the width, where their size follows from it.

    Raises:
        SpecError: They do not.
    """
    if heads < 1:
        raise SpecError(f"must be at least 1, not {heads}", field=field)
    if d_model % heads:
        raise SpecError(f"{short(heads)} heads do not divide a width of {short(d_model)}", field=field)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class ArchSpec(Result):
    """A transformer: a decoder, an encoder (attention that is not causal), or both. Layers may all differ.

    It reads tokens, or images or items where it has a ``stem``; ``vocab_size`` is then 0. Of the heads, ``pooler`` is a
    square matrix on the first position; candidates to rank are scored by a matrix of one row (``scores``), or by the
    product of what the layers made of a candidate with what went into them (``similarity``).
    """

    vocab_size: int
    d_model: int
    layers: tuple[Layer, ...]
    name: str = "model"
    max_tokens: int = 1024
    tie_embeddings: bool = True
    norm: NormKind = "rmsnorm"
    norm_eps: float = 1e-5
    norm_bias: bool = False  # LayerNorm's shift; RMSNorm has none
    positions: Literal["rope", "learned", "none"] = "rope"
    rope_theta: float = 10_000.0
    norm_place: Literal["pre", "post", "both"] = later("pre")  # before blocks, after (BERT, OLMo 2), or both (Gemma 2)
    norm_weight: bool = later(True)  # a norm without weights only divides
    final_norm: bool = later(True)
    embedding_norm: bool = later(False)
    head: Literal["lm", "pooler", "classes", "ctc", "scores", "similarity", "none"] = later("lm")
    # pooler: a square matrix on the first position; classes: of what is pooled; ctc: of each position
    head_bias: bool = later(False)
    token_types: int = later(0)  # rows of a table of segments (BERT)
    extra_positions: int = later(0)  # rows of the learned table beyond max_tokens (OPT has two)
    layer_inputs: int = later(0)  # values of a second table that each token gives each layer (Gemma 4 E2B)
    encoder: tuple[Layer, ...] = later(())  # what ``cross`` attends to; norms and embedding as in the decoder
    encoder_d_model: int = later(0)  # an encoder of another width has a token table of its own; 0 is d_model
    stem: AnyStem = later(None)  # noqa: RUF009  (images, sound, items to rank; None is a table of tokens)
    encoder_stem: SoundStem | None = later(None)  # noqa: RUF009  (what the encoder reads instead of tokens)
    classes: int = later(0)  # rows of the matrix of a ``classes`` head, which has a bias
    pooling: Literal["first", "mean", "last", "attention"] = later("first")  # of positions into what the head reads
    projection: int = later(0)  # columns of a last matrix without bias, into a space shared with text (CLIP)
    denoiser: Denoiser | None = later(None)  # noqa: RUF009  (it makes images in steps; its blocks are modulated)
    towers: tuple[ArchSpec, ...] = later(())  # what reads images or sound for the decoder, each with a projector
    projector: Projector | None = later(None)  # noqa: RUF009  (of a tower, or before a question)
    question: Question | None = later(None)  # noqa: RUF009  (words behind the image, and the answer's)

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "d_model", "max_tokens", *(() if self.stem else ("vocab_size",)))
        self._check_images()
        for name in ("token_types", "extra_positions", "layer_inputs", "encoder_d_model"):
            if getattr(self, name):
                positive(self, name)
        if self.encoder_d_model and not self.encoder:
            raise SpecError("there is no encoder to have a width", field="encoder_d_model")
        if self.norm_eps < 0:
            raise SpecError(f"must be at least 0, not {self.norm_eps}", field="norm_eps")
        if self.rope_theta <= 0:
            raise SpecError(f"must be above 0, not {self.rope_theta}", field="rope_theta")
        if not self.layers and self.projector is None:
            raise SpecError("a model needs at least one layer", field="layers")
        for stack, layers in (("layers", self.layers), ("encoder", self.encoder)):
            check_depth(len(layers), field=stack)
        if self.norm == "rmsnorm" and self.norm_bias:
            raise SpecError("RMSNorm has no bias; use norm: layernorm", field="norm_bias")
        for stack, layers in (("layers", self.layers), ("encoder", self.encoder)):
            for i, layer in enumerate(layers):
                self._check_layer(layer, layers, i, f"{stack}[{i}]")

    def _check_images(self) -> None:
        """Checks the stem, and the head of classes, against each other and the rest."""
        if (self.head in ("classes", "ctc")) != (self.classes > 0):
            raise SpecError(f"{self.classes} classes do not go with a head that is {self.head}", field="classes")
        self._check_towers()
        if self.encoder_stem is not None and not self.encoder:
            raise SpecError("there is no encoder to read sound", field="encoder_stem")
        if self.projection < 0:
            raise SpecError(f"must be at least 0, not {self.projection}", field="projection")
        ranks = self.head in ("scores", "similarity")
        if ranks != isinstance(self.stem, RankingStem):
            raise SpecError("candidates, and only they, are ranked by a head of scores or similarity", field="head")
        if self.stem is None:
            if self.denoiser is not None:
                raise SpecError("a denoiser reads images; give it a stem", field="denoiser")
            return
        self._check_denoiser(self.stem)
        object.__setattr__(self, "tie_embeddings", False)  # there is no table to tie the head to
        if self.vocab_size:
            raise SpecError("a model that reads no tokens has no vocabulary; it must be 0", field="vocab_size")
        if self.head == "lm":
            raise SpecError("a model that reads images has no head over a vocabulary; use head: classes", field="head")
        if self.head == "classes" and self.pooling == "first" and not self.stem.prefix_tokens:
            raise SpecError("without a class token the positions are pooled; use pooling: mean", field="pooling")

    def _check_denoiser(self, stem: ImageStem | RankingStem) -> None:
        if self.denoiser is None:
            return
        if not isinstance(stem, ImageStem) or stem.axes != 2 or stem.prefix_tokens or stem.convs:
            raise SpecError("a denoiser's stem is patches of an image, with no positions before them", field="stem")
        if self.head != "none":
            raise SpecError("a denoiser's head follows from its stem; use head: none", field="head")

    def _check_towers(self) -> None:
        """Checks that towers fit the decoder, and that a tower is one."""
        headless = self.head == "none" or self.question is not None
        if self.projector is not None and (self.stem is None or not headless or self.towers):
            raise SpecError("only a tower has one: a stem, no head, no towers of its own", field="projector")
        if (self.question is None) == (self.pooling == "last"):
            raise SpecError("a question, and only it, is answered by the last position: pooling: last", field="pooling")
        if self.question is not None:
            self._check_question(self.question)
        for i, tower in enumerate(self.towers):
            if tower.projector is None:
                raise SpecError("a tower needs a projector", field=f"towers[{i}].projector")
            if tower.projector.widths[-1] != self.d_model:
                raise SpecError(
                    f"gives tokens of {tower.projector.widths[-1]} values to a decoder of width {self.d_model}",
                    field=f"towers[{i}].projector.widths",
                )

    def _check_question(self, question: Question) -> None:
        if not isinstance(self.stem, ImageStem) or self.head != "classes" or self.stem.prefix_tokens:
            raise SpecError("needs an image's patches, none before them, and a head of classes", field="question")
        if self.projector is not None and self.projector.widths[-1] != self.d_model:
            raise SpecError(f"must end with the width {self.d_model}", field="projector.widths")
        positions = self.image_tokens + question.tokens
        if self.max_tokens != positions:
            raise SpecError(f"image and question have {positions} positions, not {self.max_tokens}", field="max_tokens")

    def _check_layer(self, layer: Layer, layers: tuple[Layer, ...], number: int, place: str) -> None:
        if isinstance(layer.attention, Attention) and layer.attention.rope and self.positions != "rope":
            raise SpecError(f"rope must agree with positions: {self.positions}", field=f"{place}.attention")
        if isinstance(layer.attention, Attention) and layer.attention.square is not None:
            self._check_square(layer.attention.square, f"{place}.attention.square")
        for name, block in (("attention", layer.attention), ("ffn", layer.ffn)):
            taps = getattr(layer, f"{name}_conv")
            if taps and (taps < 2 or block is None):
                reason = f"there is no {name} for it" if block is None else "it sees at least 2 positions; 0 is none"
                raise SpecError(f"a convolution of {taps}: {reason}", field=f"{place}.{name}_conv")
        if layer.cross is not None and (layers is self.encoder or not (self.encoder or self.question)):
            raise SpecError(
                "only a decoder with an encoder, or a question about an image, attends to one", field=f"{place}.cross"
            )
        if layer.shares is None:
            return
        if not 0 <= layer.shares < number:
            raise SpecError(f"must name an earlier layer, not {layer.shares}", field=f"{place}.shares")
        source = layers[layer.shares]
        convs = (layer.attention_conv, layer.ffn_conv)
        alike = tuple(source.blocks()) == tuple(layer.blocks()) and (source.attention_conv, source.ffn_conv) == convs
        if source.shares is not None or not alike:
            raise SpecError(
                f"layer {layer.shares} must own its weights and have the same blocks", field=f"{place}.shares"
            )

    def _check_square(self, square: int, place: str) -> None:
        if not isinstance(self.stem, ImageStem) or self.stem.axes != 2 or self.stem.prefix_tokens:
            raise SpecError("needs an image's patches, and no positions before them", field=place)
        if square > self.stem.grid:
            raise SpecError(
                f"squares of {square} are larger than a grid of {self.stem.grid} by {self.stem.grid} patches",
                field=place,
            )

    def owned_layers(self) -> Iterable[tuple[int, Layer]]:
        """The layers with their own weights, and their numbers; without the encoder's."""
        return ((i, layer) for i, layer in enumerate(self.layers) if layer.shares is None)

    @property
    def causal(self) -> bool:
        """Whether the model generates: it reads tokens, and no layer of its (decoder's) stack looks ahead."""
        return self.stem is None and all(
            layer.attention.causal for layer in self.layers if isinstance(layer.attention, Attention)
        )

    def without_towers(self) -> ArchSpec:
        """The decoder alone, which reads text."""
        return replace(self, towers=()) if self.towers else self

    def of_width(self, d_model: int) -> ArchSpec:
        """The model with another width, for which its towers make tokens."""
        fitted = []
        for tower in self.towers:
            assert tower.projector is not None  # as checked when it was built
            projector = replace(tower.projector, widths=(*tower.projector.widths[:-1], d_model))
            fitted.append(replace(tower, projector=projector))
        return replace(self, d_model=d_model, towers=tuple(fitted))

    @property
    def image_tokens(self) -> int:
        """Positions of an image in the layers, after stem and projector; 0 without a stem."""
        if not isinstance(self.stem, ImageStem):
            return 0
        if self.projector is None or self.question is None:
            return self.stem.tokens
        return self.projector.tokens_of(self.stem.grid, self.stem.axes)

    @property
    def crosses(self) -> bool:
        """Whether a question's words pass the layers alone, and see the image's tokens by cross-attention."""
        return self.question is not None and any(layer.cross is not None for layer in self.layers)

    @property
    def request_tokens(self) -> int:
        """Positions of one request that pass the layers of a model with a stem: of the stem, of a question; else 0."""
        if self.question is not None:
            return self.question.tokens if self.crosses else self.max_tokens
        return 0 if self.stem is None else self.stem.tokens

    @property
    def outputs(self) -> int:
        """Rows of the head's matrix: the vocabulary, the classes, or one for scores."""
        return self.classes or self.vocab_size or int(self.head == "scores")

    @property
    def reads(self) -> Literal["token", "image", "sound", "request"]:
        """Unit of a request's cost: tokens, one image or sound, or (ranking) the request itself."""
        if self.stem is None:
            return "token"
        if isinstance(self.stem, RankingStem):
            return "request"
        return "sound" if isinstance(self.stem, SoundStem) else "image"

    @property
    def sound_s(self) -> float | None:
        """Seconds of sound in a request; None for models without an audio input in seconds."""
        heard = self.encoder_stem if self.encoder_stem is not None else self.stem
        return heard.seconds if isinstance(heard, SoundStem) else None

    def hearing(self, seconds: float) -> ArchSpec:
        """The model with requests of ``seconds`` of sound.

        Raises:
            SpecError: It does not take audio, or not so long at once.
        """
        if isinstance(self.stem, SoundStem):
            return replace(self, stem=replace(self.stem, seconds=float(seconds)))
        if self.encoder_stem is not None:
            return replace(self, encoder_stem=replace(self.encoder_stem, seconds=float(seconds)))
        raise SpecError(f"{self.name} does not take audio", field="audio_s")

    @property
    def encoder_width(self) -> int:
        """Width of the encoder, whose output the decoder's layers attend to."""
        return self.encoder_d_model or self.d_model

    def encoding(self) -> ArchSpec:
        """The model with the encoder's width, as its encoder is computed."""
        return self if self.encoder_width == self.d_model else replace(self, d_model=self.encoder_width)

    def norm_parameters(self) -> int:
        """Parameters of one norm over the model's width."""
        return self.d_model * (self.norm_weight + self.norm_bias)

    def embedding_parameters(self) -> int:
        """Parameters of the token tables, segments, learned positions, and the head (an untied one is a table)."""
        untied = self.head == "lm" and not self.tie_embeddings
        tables = self.vocab_size * self.d_model * (2 if untied else 1) + self.token_types * self.d_model
        if self.positions == "learned":
            tables += (self.max_tokens + self.extra_positions) * self.d_model
        if self.encoder_width != self.d_model and self.encoder_stem is None:
            tables += self.vocab_size * self.encoder_width
        if self.stem is not None:
            tables += self.stem.parameters(self.d_model)
        if self.denoiser is not None and isinstance(self.stem, ImageStem):
            tables += self.denoiser.parameters(self.d_model, self.stem)
        if self.projector is not None and isinstance(self.stem, ImageStem | SoundStem):
            tables += self.projector.parameters(self.d_model, self.stem.axes)
        tables += self.question.words * self.d_model if self.question is not None else 0
        if self.encoder_stem is not None:
            tables += self.encoder_stem.parameters(self.encoder_width)
        pooler = self.d_model * (self.d_model + 1) if self.head == "pooler" else 0
        pooler += self.d_model + 1 if self.head == "scores" else 0
        pooler += self.classes * (self.d_model + 1) + self.projection * self.d_model + self._pooling_parameters()
        return tables + pooler + (self.vocab_size if self.head_bias else 0) + self.layer_input_parameters()

    def _pooling_parameters(self) -> int:
        """Parameters of pooling by attention: a learned query, attention with biases, a norm and a feed-forward."""
        if self.pooling != "attention":
            return 0
        last, d = self.layers[-1], self.d_model
        return d + 4 * d * (d + 1) + self.norm_parameters() + (last.ffn.parameters(d) if last.ffn is not None else 0)

    def layer_input_parameters(self) -> int:
        """Parameters of the table that gives each layer ``layer_inputs`` values of each token.

        A table over the vocabulary, a projection of the embedding with a norm, and in each layer a gate, a projection
        to the model's width and a norm.
        """
        if not self.layer_inputs:
            return 0
        all_layers = self.layer_inputs * len(self.layers)
        ends = (self.vocab_size + self.d_model) * all_layers + self.layer_inputs
        return ends + len(self.layers) * (2 * self.layer_inputs * self.d_model + self.norm_parameters())

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
        """Trainable parameters, shared and tied ones counted once."""
        return self._parameters(active=False)

    def active_parameters(self) -> int:
        """Parameters without the experts that a token does not meet; tables count whole."""
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
        """Parameters of one layer with its norms; ``active`` leaves out the experts that a token does not meet."""
        total = layer.norms() * self.norm_parameters() * (2 if self.norm_place == "both" else 1)
        total += (layer.convs + layer.scale * len(tuple(layer.blocks()))) * self.d_model
        total += self.modulation_width(layer) * (self.d_model + 1)
        for block in layer.blocks():
            if active and isinstance(block, MixtureOfExperts):
                total += block.active_parameters(self.d_model)
            else:
                total += block.parameters(self.d_model)
        if layer.cross is not None:  # its keys and values are made from what the encoder gives
            total += 2 * layer.cross.kv_width * (self.encoder_width - self.d_model)
        return total

    def modulation_width(self, layer: Layer) -> int:
        """Values that shift, scale and gate the blocks of ``layer`` in a denoiser; 0 for other models."""
        return 0 if self.denoiser is None else BLOCK_PARTS * self.d_model * len(tuple(layer.blocks()))

    @property
    def passes(self) -> int:
        """Passes that answer a request of one image: the steps of a denoiser, twice where it is guided, else 1."""
        return 1 if self.denoiser is None else self.denoiser.passes

    def as_trained(self) -> ArchSpec:
        """The model without fields that do not affect training: a denoiser takes one step, with guidance 2 if any.

        Nor does it depend on its solver and the shift of its times.
        """
        if self.denoiser is None:
            return self
        guidance = 2.0 if self.denoiser.guided else self.denoiser.guidance
        plainly = replace(self.denoiser, steps=1, guidance=guidance, solver="euler", shift=UNSHIFTED)
        return replace(self, denoiser=plainly)

    @property
    def digest(self) -> str:
        """Identity of the architecture; the name does not count."""
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
        vocab_size=vocab_size,
        d_model=d_model,
        layers=(Layer(attention=attention, ffn=ffn),) * depth,
        max_tokens=max_tokens,
        tie_embeddings=tie_embeddings,
    )
