"""The trunk of a model: its layers, norms and positions; and what stands at its two ends, each a class by kind.

A stem makes positions of what is read, a head makes the output of what the layers leave. A kind of model has its own
subclasses of :class:`Stem` and :class:`Head`; those that several kinds use are in :mod:`chipwise.model.arch.ends`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from chipwise.core.fields import check_fields, positive
from chipwise.errors import SpecError, short
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention

NormKind = Literal["rmsnorm", "layernorm"]
Positions = Literal["rope", "learned", "none"]
NormPlace = Literal["pre", "post", "both"]
Pooling = Literal["first", "mean", "last", "attention"]
Reads = Literal["token", "image", "sound", "request"]

MOST_LAYERS = 10_000  # ten times the deepest transformer that was published (DeepNet, arXiv:2203.00555)


def check_depth(depth: int, *, field: str) -> None:
    """Checks a number of layers before that many are built.

    Raises:
        SpecError: There are more than ``MOST_LAYERS``.
    """
    if depth > MOST_LAYERS:
        raise SpecError(f"at most {MOST_LAYERS:,} layers are handled, not {short(depth)}", field=field)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Trunk:
    """Layers that may all differ, their norms and positions."""

    d_model: int
    layers: tuple[Layer, ...]
    max_tokens: int = 1024
    norm: NormKind = "rmsnorm"
    norm_eps: float = 1e-5
    norm_bias: bool = False  # LayerNorm's shift; RMSNorm has none
    positions: Positions = "rope"
    rope_theta: float = 10_000.0
    norm_place: NormPlace = "pre"  # before blocks, after (BERT, OLMo 2), or both (Gemma 2)
    norm_weight: bool = True  # a norm without weights only divides
    final_norm: bool = True
    embedding_norm: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "d_model", "max_tokens")
        if self.norm_eps < 0:
            raise SpecError(f"must be at least 0, not {self.norm_eps}", field="norm_eps")
        if self.rope_theta <= 0:
            raise SpecError(f"must be above 0, not {self.rope_theta}", field="rope_theta")
        if self.norm == "rmsnorm" and self.norm_bias:
            raise SpecError("RMSNorm has no bias; use norm: layernorm", field="norm_bias")

    def owned_layers(self) -> Iterable[tuple[int, Layer]]:
        """The layers with their own weights, and their numbers; without the encoder's."""
        return ((i, layer) for i, layer in enumerate(self.layers) if layer.shares is None)

    def norm_parameters(self) -> int:
        """Parameters of one norm over the model's width."""
        return self.d_model * (self.norm_weight + self.norm_bias)


class Stem:
    """Makes the positions of a model of what it reads. What a kind does not state is as here."""

    __slots__ = ()
    reads: ClassVar[Reads]
    ranks: ClassVar[bool] = False  # whether candidates are read, which a head of scores needs
    asks: ClassVar[bool] = False  # whether words are read behind an image, to which cross-attention may look

    @property
    def vocab_size(self) -> int:
        """Rows of the table of tokens; 0 where no tokens are read."""
        return 0

    @property
    def extra_positions(self) -> int:
        """Rows of the learned table of positions beyond the model's ``max_tokens``."""
        return 0

    @property
    def token_types(self) -> int:
        """Rows of the table of segments."""
        return 0

    @property
    def layer_inputs(self) -> int:
        """Values that each token gives each layer from a second table."""
        return 0

    @property
    def axes(self) -> int:
        """Axes of what is read: 2 of an image, 1 of a signal in time."""
        return 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Axes of the array that is read: channels and pixels, or bands and frames; none where rows are looked up."""
        return ()

    @property
    def prefix_tokens(self) -> int:
        """Positions before those of what is read."""
        return 0

    @property
    def request_tokens(self) -> int:
        """Positions of one request; 0 where each request has a length of its own."""
        return 0

    @property
    def image_tokens(self) -> int:
        """Positions of an image in the layers; 0 where none is read."""
        return 0

    @property
    def square_grid(self) -> int:
        """Patches on each side of a grid that attention may cut into squares; 0 where there is no such grid."""
        return 0

    def own_layers(self) -> tuple[Layer, ...]:
        """One of each kind of layer that the stem has itself, before those of the model."""
        return ()

    def own_biases(self, square: int | None, buckets: int) -> int:
        """Biases of a head that a file holds beyond a table of ``buckets`` that attention looks them up in."""
        return 0

    @property
    def seconds_heard(self) -> float | None:
        """Seconds of sound in a request; None where no sound is read."""
        return None

    def hearing(self, seconds: float) -> Stem | None:
        """The stem for requests of ``seconds`` of sound; None where no sound is read."""
        return None

    def of_vocabulary(self, rows: int) -> Stem:
        """The stem with a table of ``rows`` tokens, where it has one."""
        return self

    def matrices(self, d_model: int) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each matrix that makes positions of what is read."""
        return ()

    def parameters(self, d_model: int) -> int:
        """Parameters of what makes positions; a table of learned positions is counted with the trunk."""
        raise NotImplementedError

    def layer_input_parameters(self, trunk: Trunk) -> int:
        """Parameters of what gives each layer values of each token."""
        return 0

    def check(self, trunk: Trunk, head: Head) -> None:
        """Checks that ``trunk`` and ``head`` can read what the stem makes.

        Raises:
            SpecError: It cannot.
        """

    def record(self) -> Mapping[str, object]:
        """The fields of a stored model that describe the stem."""
        return {"stem": self}


class Head:
    """Makes the output of what the layers leave. What a kind does not state is as here."""

    __slots__ = ()
    name: ClassVar[str]  # in files and messages
    ranks: ClassVar[bool] = False  # whether it scores candidates
    writes: ClassVar[bool] = False  # whether it has a matrix over the vocabulary
    answers: ClassVar[bool] = False  # whether it can answer a question about an image

    @property
    def tied(self) -> bool:
        """Whether no matrix over the vocabulary stands beside the table of tokens."""
        return True

    @property
    def pooling(self) -> Pooling:
        """How positions become what the head reads."""
        return "first"

    @property
    def projection(self) -> int:
        """Columns of a last matrix without bias, into a space shared with text (CLIP); 0 is none."""
        return 0

    @property
    def passes(self) -> int:
        """Passes that answer a request."""
        return 1

    @property
    def token_width(self) -> int:
        """Values of each token that is made for a decoder behind; 0 where the model is no tower."""
        return 0

    def output_rows(self, stem: Stem) -> int:
        """Rows of its matrix of outputs: the classes, one for scores, or the vocabulary."""
        return stem.vocab_size

    def modulation_width(self, trunk: Trunk, layer: Layer) -> int:
        """Values that shift, scale and gate the blocks of ``layer``; 0 but in denoisers."""
        return 0

    def matrices(self, trunk: Trunk, stem: Stem) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each matrix beside the one of outputs."""
        return ()

    def vector_parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Parameters of biases and tables, which no matrix holds."""
        return 0

    def with_tied(self, tied: bool) -> Head:
        """The head with the table of tokens as its matrix, or a matrix of its own, where it has one."""
        return self

    def of_token_width(self, width: int) -> Head:
        """The head of a tower that makes tokens of ``width`` values; any other head as it is."""
        return self

    def as_trained(self) -> Self:
        """The head without fields that do not affect training."""
        return self

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Parameters behind the last layer's norm."""
        return 0

    def check(self, trunk: Trunk, stem: Stem) -> None:
        """Checks that the head can read what ``trunk`` makes of what ``stem`` reads.

        Raises:
            SpecError: It cannot.
        """

    def record(self) -> Mapping[str, object]:
        """The fields of a stored model that describe the head."""
        return {"head": self.name}


def check_layers(layers: tuple[Layer, ...], trunk: Trunk, stem: Stem, *, stack: str, crosses: bool) -> None:
    """Checks layers against each other, the positions of ``trunk``, and what ``stem`` reads.

    Args:
        layers: The layers of one stack.
        trunk: The model's, whose positions they follow.
        stem: What the model reads.
        stack: The field that holds them, for messages.
        crosses: Whether there is something that cross-attention can look at.

    Raises:
        SpecError: A layer cannot be there.
    """
    check_depth(len(layers), field=stack)
    for i, layer in enumerate(layers):
        place = f"{stack}[{i}]"
        _check_attention(layer, trunk, stem, place)
        for name, block in (("attention", layer.attention), ("ffn", layer.ffn)):
            taps = getattr(layer, f"{name}_conv")
            if taps and (taps < 2 or block is None):
                reason = f"there is no {name} for it" if block is None else "it sees at least 2 positions; 0 is none"
                raise SpecError(f"a convolution of {taps}: {reason}", field=f"{place}.{name}_conv")
        if layer.cross is not None and not crosses:
            raise SpecError(
                "only a decoder with an encoder, or a question about an image, attends to one", field=f"{place}.cross"
            )
        if layer.shares is not None:
            _check_sharing(layer, layers[:i], layer.shares, f"{place}.shares")


def _check_attention(layer: Layer, trunk: Trunk, stem: Stem, place: str) -> None:
    if not isinstance(layer.attention, Attention):
        return
    if layer.attention.rope and trunk.positions != "rope":
        raise SpecError(f"rope must agree with positions: {trunk.positions}", field=f"{place}.attention")
    square, grid = layer.attention.square, stem.square_grid
    if square is not None and not grid:
        raise SpecError("needs an image's patches, and no positions before them", field=f"{place}.attention.square")
    if square is not None and square > grid:
        raise SpecError(
            f"squares of {square} are larger than a grid of {grid} by {grid} patches",
            field=f"{place}.attention.square",
        )


def _check_sharing(layer: Layer, before: tuple[Layer, ...], number: int, place: str) -> None:
    if not 0 <= number < len(before):
        raise SpecError(f"must name an earlier layer, not {number}", field=place)
    source, convs = before[number], (layer.attention_conv, layer.ffn_conv)
    alike = tuple(source.blocks()) == tuple(layer.blocks()) and (source.attention_conv, source.ffn_conv) == convs
    if source.shares is not None or not alike:
        raise SpecError(f"layer {number} must own its weights and have the same blocks", field=place)
