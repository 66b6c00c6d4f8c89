"""The trunk of a model (layers, norms, positions), and the base classes of its stem and head.

A stem turns the input into a sequence of states; a head turns the last layer's states into the output. Each kind of
model has subclasses of :class:`Stem` and :class:`Head`; those that several kinds use are in
:mod:`chipwise.model.arch.ends`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from chipwise.core.arrays import Count
from chipwise.core.fields import check_fields, not_negative, positive
from chipwise.errors import SpecError, short
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention

NormKind = Literal["rmsnorm", "layernorm"]
Positions = Literal["rope", "learned", "none"]
NormPlace = Literal["pre", "post", "both"]
Pooling = Literal["first", "mean", "last", "attention"]
Reads = Literal["token", "image", "sound", "request"]

LAST = "a model that answers questions about images needs `pooling: last`; other models cannot have it"
MOST_LAYERS = 10_000  # ten times the deepest published transformer (DeepNet, arXiv:2203.00555)


def check_depth(depth: int, *, field: str) -> None:
    """Checks that ``depth``, a number of layers, is not too large.

    Raises:
        SpecError: There are more than ``MOST_LAYERS``.
    """
    if depth > MOST_LAYERS:
        raise SpecError(f"at most {MOST_LAYERS:,} layers are supported, not {short(depth)}", field=field)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Trunk:
    """A stack of layers, which may all differ, with their norms and position embeddings."""

    d_model: int
    layers: tuple[Layer, ...]
    max_tokens: int = 1024
    norm: NormKind = "rmsnorm"
    norm_eps: float = 1e-5
    norm_bias: bool = False  # LayerNorm's bias; RMSNorm has none
    positions: Positions = "rope"
    rope_theta: float = 10_000.0
    # Norms before blocks, after them (of the sum, as in BERT; of the block alone if there is a final norm, as in
    # OLMo 2), or both before and after each block (Gemma 2).
    norm_place: NormPlace = "pre"
    norm_weight: bool = True  # False: norms without learned weights
    final_norm: bool = True
    embedding_norm: bool = False

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "d_model", "max_tokens")
        not_negative(self, "norm_eps")
        if self.rope_theta <= 0:
            raise SpecError(f"must be above 0, not {self.rope_theta}", field="rope_theta")
        if self.norm == "rmsnorm" and self.norm_bias:
            raise SpecError("RMSNorm has no bias; use `norm: layernorm`", field="norm_bias")

    def owned_layers(self) -> Iterable[tuple[int, Layer]]:
        """Yields each layer that has its own weights, as a pair (number, layer). Encoder layers are not included."""
        return ((i, layer) for i, layer in enumerate(self.layers) if layer.shares is None)

    def norm_parameters(self) -> int:
        """Number of parameters of one norm over the model's width."""
        return self.d_model * (self.norm_weight + self.norm_bias)


class Stem:
    """Turns a model's input into a sequence of states. Subclasses override what differs from these defaults."""

    __slots__ = ()
    reads: ClassVar[Reads]
    does: ClassVar[str]  # what models with this stem do, for messages
    calibration: ClassVar[str] = ""  # suffix of the calibration profile that predicts its models' costs
    ranks: ClassVar[bool] = False  # whether requests contain candidates to rank
    fusions: ClassVar[tuple[str, ...]] = ()  # groups of operators that graphs may fuse
    asks: ClassVar[bool] = False  # whether the stem reads an image and a question about it

    @property
    def vocab_size(self) -> int:
        """Number of rows in the token table; 0 if the stem reads no tokens."""
        return 0

    @property
    def extra_positions(self) -> int:
        """Number of rows that the learned position table has in addition to its ``max_tokens`` rows."""
        return 0

    @property
    def token_types(self) -> int:
        """Number of rows in the segment table."""
        return 0

    @property
    def layer_inputs(self) -> int:
        """Number of values per token that each layer gets from a second embedding table; 0 without such a table."""
        return 0

    @property
    def axes(self) -> int:
        """Number of axes along which the input extends: 2 for an image, 1 for a signal in time."""
        return 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the input array: (channels, pixels, pixels) or (bands, frames); empty for token or item numbers."""
        return ()

    @property
    def prefix_tokens(self) -> int:
        """Number of sequence positions in front of the input, such as a class token."""
        return 0

    @property
    def tokens(self) -> int:
        """Length of the sequence that the stem makes; 0 if requests have no fixed length."""
        return 0

    @property
    def request_tokens(self) -> int:
        """Sequence length of a request; 0 if requests have no fixed length."""
        return self.tokens

    def new_tokens(self, asked: int) -> int:
        """Number of outputs for a request that asks for ``asked`` tokens: always 1, except in text models."""
        return 1

    def units(self, positions: Count) -> Count:
        """Number of cost units (:attr:`reads`) in a request of this length: its tokens, or 1 for an image or sound."""
        return 0 * positions + 1

    @property
    def image_tokens(self) -> int:
        """Number of sequence positions that one image occupies; 0 if the stem reads no images."""
        return 0

    @property
    def square_grid(self) -> int:
        """Number of patches on each side of the grid that windowed attention divides; 0 if there is no such grid."""
        return 0

    def own_layers(self) -> tuple[Layer, ...]:
        """One example layer for each stage of the stem; all layers of a stage are equal."""
        return ()

    def own_biases(self, buckets: int) -> int:
        """Number of biases per head that an exported file stores in addition to the model's ``buckets`` biases."""
        return 0

    @property
    def seconds_heard(self) -> float | None:
        """Length of the sound in a request, in seconds; None if the stem reads no sound."""
        return None

    def hearing(self, seconds: float) -> Stem | None:
        """The stem for requests with ``seconds`` seconds of sound; None if the stem reads no sound."""
        return None

    def of_vocabulary(self, rows: int) -> Stem:
        """A copy whose token table, if any, has ``rows`` rows."""
        return self

    def matrices(self, d_model: int) -> tuple[tuple[int, int], ...]:
        """Input and output width of each matrix in the stem."""
        return ()

    def parameters(self, d_model: int) -> int:
        """Number of parameters of the stem. Learned positions are counted separately, by ``ArchSpec``."""
        raise NotImplementedError

    def layer_input_parameters(self, trunk: Trunk) -> int:
        """Number of parameters that compute the additional inputs of each layer (:attr:`layer_inputs`)."""
        return 0

    def check(self, trunk: Trunk, head: Head) -> None:
        """Checks that ``trunk`` and ``head`` fit the stem.

        Raises:
            SpecError: They do not fit together.
        """
        if head.pooling == "last":
            raise SpecError(LAST, field="pooling")

    def record(self) -> Mapping[str, object]:
        """The fields of a stored model that describe this stem."""
        return {"stem": self}


class Head:
    """Turns the last layer's states into the output. Subclasses override what differs from these defaults."""

    __slots__ = ()
    name: ClassVar[str]  # name of the head in files and messages
    ranks: ClassVar[bool] = False  # whether the head scores candidates
    writes: ClassVar[bool] = False  # whether the head has a matrix over the vocabulary
    answers: ClassVar[bool] = False  # whether the head can answer questions about images

    @property
    def tied(self) -> bool:
        """False if the head has its own matrix over the vocabulary."""
        return True

    @property
    def pooling(self) -> Pooling:
        """How positions are pooled before the head."""
        return "first"

    @property
    def projection(self) -> int:
        """Output width of a final projection without bias, into a space shared with text (CLIP); 0 if there is none."""
        return 0

    @property
    def passes(self) -> int:
        """Number of forward passes per request."""
        return 1

    @property
    def token_width(self) -> int:
        """Width of the tokens that a tower makes for its decoder; 0 if the model is not a tower."""
        return 0

    def output_rows(self, stem: Stem) -> int:
        """Number of rows in the output matrix: number of classes, 1 for scores, or vocabulary size."""
        return stem.vocab_size

    def modulation_width(self, trunk: Trunk, layer: Layer) -> int:
        """Number of shift, scale and gate values for the blocks of ``layer``; 0 except in denoisers."""
        return 0

    def matrices(self, trunk: Trunk, stem: Stem) -> tuple[tuple[int, int], ...]:
        """Input and output width of each matrix in the head, except the output matrix."""
        return ()

    def vector_parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Number of parameters outside matrices: biases and tables."""
        return 0

    def with_tied(self, tied: bool) -> Head:
        """A copy with this value of ``tied``, if the head has a matrix over the vocabulary."""
        return self

    def of_token_width(self, width: int) -> Head:
        """A copy that makes tokens of ``width`` values, if this is a tower's head; else the head itself."""
        return self

    def as_trained(self) -> Self:
        """The head with default values for settings that do not affect training."""
        return self

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Number of parameters of the head."""
        return 0

    def check(self, trunk: Trunk, stem: Stem) -> None:
        """Checks that the head fits ``trunk`` and ``stem``.

        Raises:
            SpecError: They do not fit together.
        """

    def record(self) -> Mapping[str, object]:
        """The fields of a stored model that describe this head."""
        return {"head": self.name}


def check_layers(layers: tuple[Layer, ...], trunk: Trunk, stem: Stem, *, stack: str, crosses: bool) -> None:
    """Checks that the layers fit each other, the position embeddings of ``trunk``, and the stem's input.

    Args:
        layers: The layers of one stack.
        trunk: The model's trunk, which states the width and the kind of position embedding.
        stem: The model's stem, which defines the input.
        stack: The name of the field that holds the layers, for messages.
        crosses: Whether the model has an encoder or an image that cross-attention can read.

    Raises:
        SpecError: A layer does not fit.
    """
    check_depth(len(layers), field=stack)
    for i, layer in enumerate(layers):
        place = f"{stack}[{i}]"
        _check_attention(layer, trunk, stem, place)
        if trunk.d_model % (groups := getattr(layer.ffn, "groups", 1)):
            raise SpecError(f"{groups} groups do not divide a width of {trunk.d_model}", field=f"{place}.ffn.groups")
        for name, block in (("attention", layer.attention), ("ffn", layer.ffn)):
            taps = getattr(layer, f"{name}_conv")
            if taps and (taps < 2 or block is None):
                reason = f"the layer has no {name}" if block is None else "at least 2 taps are needed (0 means none)"
                raise SpecError(f"a convolution cannot have {taps} taps here: {reason}", field=f"{place}.{name}_conv")
        if layer.cross is not None and not crosses:
            raise SpecError(
                "cross-attention needs an encoder, or an image that the model answers questions about",
                field=f"{place}.cross",
            )
        if layer.shares is not None:
            _check_sharing(layer, layers[:i], layer.shares, f"{place}.shares")


def _check_attention(layer: Layer, trunk: Trunk, stem: Stem, place: str) -> None:
    if not isinstance(layer.attention, Attention):
        return
    if layer.attention.rope and trunk.positions != "rope":
        raise SpecError(f"`rope` must be false with `positions: {trunk.positions}`", field=f"{place}.attention")
    square, grid = layer.attention.square, stem.square_grid
    if square is not None and not grid:
        raise SpecError("needs image patches, without prefix tokens before them", field=f"{place}.attention.square")
    if square is not None and square > grid:
        raise SpecError(
            f"square windows of side {square} do not fit into a grid of {grid} by {grid} patches",
            field=f"{place}.attention.square",
        )


def _check_sharing(layer: Layer, before: tuple[Layer, ...], number: int, place: str) -> None:
    if not 0 <= number < len(before):
        raise SpecError(f"must be the number of an earlier layer, not {number}", field=place)
    source, convs = before[number], (layer.attention_conv, layer.ffn_conv)
    alike = tuple(source.blocks()) == tuple(layer.blocks()) and (source.attention_conv, source.ffn_conv) == convs
    if source.shares is not None or not alike:
        raise SpecError(f"layer {number} must have its own weights and the same blocks as this layer", field=place)
