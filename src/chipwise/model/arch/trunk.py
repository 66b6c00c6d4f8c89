"""The trunk of a model (layers, norms, positions), and the base classes of its stem and head.

A stem turns the input into positions; a head turns the last states into the output. Each kind of model has subclasses
of :class:`Stem` and :class:`Head`; those that several kinds use are in :mod:`chipwise.model.arch.ends`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from chipwise.core.arrays import Count
from chipwise.core.fields import check_fields, positive
from chipwise.errors import SpecError, short
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.mixers import Attention

NormKind = Literal["rmsnorm", "layernorm"]
Positions = Literal["rope", "learned", "none"]
NormPlace = Literal["pre", "post", "both"]
Pooling = Literal["first", "mean", "last", "attention"]
Reads = Literal["token", "image", "sound", "request"]

LAST = "a question, and only it, is answered by the last position: pooling: last"
MOST_LAYERS = 10_000  # ten times the deepest published transformer (DeepNet, arXiv:2203.00555)


def check_depth(depth: int, *, field: str) -> None:
    """Checks a number of layers before they are built.

    Raises:
        SpecError: There are more than ``MOST_LAYERS``.
    """
    if depth > MOST_LAYERS:
        raise SpecError(f"at most {MOST_LAYERS:,} layers are handled, not {short(depth)}", field=field)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Trunk:
    """Layers (every one may be different), their norms and positions."""

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
        if self.norm_eps < 0:
            raise SpecError(f"must be at least 0, not {self.norm_eps}", field="norm_eps")
        if self.rope_theta <= 0:
            raise SpecError(f"must be above 0, not {self.rope_theta}", field="rope_theta")
        if self.norm == "rmsnorm" and self.norm_bias:
            raise SpecError("RMSNorm has no bias; use norm: layernorm", field="norm_bias")

    def owned_layers(self) -> Iterable[tuple[int, Layer]]:
        """The layers that own their weights, with their numbers; without the encoder's layers."""
        return ((i, layer) for i, layer in enumerate(self.layers) if layer.shares is None)

    def norm_parameters(self) -> int:
        """Parameters of one norm over the model's width."""
        return self.d_model * (self.norm_weight + self.norm_bias)


class Stem:
    """Turns a model's input into positions. Subclasses override what differs from these defaults."""

    __slots__ = ()
    reads: ClassVar[Reads]
    does: ClassVar[str]  # what its models do, in messages
    calibration: ClassVar[str] = ""  # the suffix of the profile that prices its models on a calibrated machine
    ranks: ClassVar[bool] = False  # whether requests contain candidates to rank
    fusions: ClassVar[tuple[str, ...]] = ()  # groups of operators that graphs may fuse
    asks: ClassVar[bool] = False  # whether it reads an image and a question about it

    @property
    def vocab_size(self) -> int:
        """Rows of the token table; 0 if no tokens are read."""
        return 0

    @property
    def extra_positions(self) -> int:
        """Extra rows of the learned position table, beyond ``max_tokens``."""
        return 0

    @property
    def token_types(self) -> int:
        """Rows of the segment table."""
        return 0

    @property
    def layer_inputs(self) -> int:
        """Values per token and layer from a second table."""
        return 0

    @property
    def axes(self) -> int:
        """Axes of the input: 2 for an image, 1 for a signal in time."""
        return 1

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the input array: (channels, pixels, pixels) or (bands, frames); empty if tables are looked up."""
        return ()

    @property
    def prefix_tokens(self) -> int:
        """Positions before those of the input."""
        return 0

    @property
    def request_tokens(self) -> int:
        """Positions per request; 0 if requests have no fixed length."""
        return 0

    def new_tokens(self, asked: int) -> int:
        """Tokens that a request for ``asked`` tokens generates; 1 for models of whole inputs, such as images."""
        return 1

    def units(self, positions: Count) -> Count:
        """Units of cost (:attr:`reads`) in a request of ``positions``: tokens, or one whole input."""
        return 0 * positions + 1

    @property
    def image_tokens(self) -> int:
        """Positions that one image takes in the layers; 0 if no images are read."""
        return 0

    @property
    def square_grid(self) -> int:
        """Patches on each side of the grid that window attention can divide; 0 without such a grid."""
        return 0

    def own_layers(self) -> tuple[Layer, ...]:
        """One layer of each stage inside the stem."""
        return ()

    def own_biases(self, buckets: int) -> int:
        """Position biases per head in an exported file beyond a table of ``buckets`` rows."""
        return 0

    @property
    def seconds_heard(self) -> float | None:
        """Seconds of sound in a request; None if no sound is read."""
        return None

    def hearing(self, seconds: float) -> Stem | None:
        """The stem for requests of ``seconds`` of sound; None if no sound is read."""
        return None

    def of_vocabulary(self, rows: int) -> Stem:
        """A copy whose token table, if any, has ``rows`` rows."""
        return self

    def matrices(self, d_model: int) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each matrix of the stem."""
        return ()

    def parameters(self, d_model: int) -> int:
        """Parameters of the stem; a table of learned positions is counted in the trunk."""
        raise NotImplementedError

    def layer_input_parameters(self, trunk: Trunk) -> int:
        """Parameters for the per-layer inputs of each token."""
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
    """Turns the last states into the output. Subclasses override what differs from these defaults."""

    __slots__ = ()
    name: ClassVar[str]  # used in files and messages
    ranks: ClassVar[bool] = False  # whether it scores candidates
    writes: ClassVar[bool] = False  # whether it has a matrix over the vocabulary
    answers: ClassVar[bool] = False  # whether it can answer questions about images

    @property
    def tied(self) -> bool:
        """Whether there is no separate matrix over the vocabulary."""
        return True

    @property
    def pooling(self) -> Pooling:
        """How positions are pooled before the head."""
        return "first"

    @property
    def projection(self) -> int:
        """Columns of a last matrix without bias, to a space shared with text (CLIP); 0 is none."""
        return 0

    @property
    def passes(self) -> int:
        """Passes per request."""
        return 1

    @property
    def token_width(self) -> int:
        """Values of each token made for a decoder; 0 if the model is not a tower."""
        return 0

    def output_rows(self, stem: Stem) -> int:
        """Rows of the output matrix: number of classes, 1 for scores, or vocabulary size."""
        return stem.vocab_size

    def modulation_width(self, trunk: Trunk, layer: Layer) -> int:
        """Number of shift, scale and gate values for the blocks of ``layer``; 0 except in denoisers."""
        return 0

    def matrices(self, trunk: Trunk, stem: Stem) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each matrix other than the output matrix."""
        return ()

    def vector_parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Parameters outside matrices: biases and tables."""
        return 0

    def with_tied(self, tied: bool) -> Head:
        """A copy with this value of ``tied``, if the head has a matrix over the vocabulary."""
        return self

    def of_token_width(self, width: int) -> Head:
        """A copy that makes tokens of ``width`` values, if this is a tower's head; other heads are unchanged."""
        return self

    def as_trained(self) -> Self:
        """The head without fields that do not affect training."""
        return self

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """Parameters of the head."""
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
    """Checks that layers fit each other, the positions of ``trunk``, and the stem's input.

    Args:
        layers: The layers of one stack.
        trunk: The model's trunk, which says which positions are used.
        stem: What the model reads.
        stack: The name of the field that holds the layers, for messages.
        crosses: Whether there is an encoder or image for cross-attention.

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
                reason = f"the layer has no {name}" if block is None else "it sees at least 2 positions; 0 is none"
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
