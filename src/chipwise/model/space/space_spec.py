"""The search space of a run file: choices, ties between layers, and conditions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from chipwise.core.dtypes import weight_format
from chipwise.core.fields import MOST, check_fields, later, positive
from chipwise.errors import ChipwiseError, SpecError, nearest, short
from chipwise.model.arch.feed_forward import Activation, FeedForward, MixtureOfExperts
from chipwise.model.arch.layer import AnyFeedForward
from chipwise.model.arch.trunk import NormPlace
from chipwise.model.kinds.choices import NO_ATTENTION, Choices, Norm, Parts
from chipwise.model.kinds.image.choices import ImageSpace
from chipwise.model.kinds.ranking.choices import RankingSpace
from chipwise.model.kinds.sentence.choices import SentenceSpace
from chipwise.model.kinds.sound.choices import SoundSpace
from chipwise.model.kinds.text.choices import TEXT

FfnName = Literal[
    "relu", "gelu", "silu", "reglu", "geglu", "swiglu", "relu-g2", "relu-g4", "swiglu-g2", "swiglu-g4", "swiglu-g8",
    "swiglu-8x1", "swiglu-8x2", "swiglu-16x1", "swiglu-16x2", "swiglu-32x2", "swiglu-64x4", "none",
]  # fmt: skip
FFN_KINDS: dict[str, tuple[Activation, bool]] = {
    "relu": ("relu", False),
    "gelu": ("gelu", False),
    "silu": ("silu", False),
    "reglu": ("relu", True),
    "geglu": ("gelu", True),
    "swiglu": ("silu", True),
}
EXPERTS: dict[str, tuple[int, int]] = {  # experts and active experts; ``ffn_width`` is the width of each
    "swiglu-8x1": (8, 1),
    "swiglu-8x2": (8, 2),
    "swiglu-16x1": (16, 1),
    "swiglu-16x2": (16, 2),
    "swiglu-32x2": (32, 2),
    "swiglu-64x4": (64, 4),
}
# Groups of block-diagonal matrices:
GROUPED = {"relu-g2": 2, "relu-g4": 4, "swiglu-g2": 2, "swiglu-g4": 4, "swiglu-g8": 8}
NO_FFN = "none"  # a layer without a feed-forward
GLOBALS = ("d_model", "depth", "vocab_size", "head_size", "tie_embeddings", "weights", "sharing")
CONVS = ("none", "attention", "both")
LAYER_CHOICES = ("attention", "ffn", "ffn_width")  # per layer; attention: heads and KV heads
ATTENTION_PARTS = ("heads", "kv_heads", "square")
LAYER_WEIGHTS = "layer_weights"  # a per-layer choice if ``layer.weights`` lists formats
MOST_VALUES = 1_000  # most values in one list
MOST_LAYERS = 128
MOST_BLOCKS = 50_000  # most distinct blocks: the cost of each is predicted before a search (milliseconds each)
TIES = ("each", "alike", "alternating", "thirds")


def ffn_block(kind: str, width: int) -> AnyFeedForward | None:
    """The feed-forward called ``kind``: one of ``FFN_KINDS``, ``GROUPED`` or ``EXPERTS``, or ``none``."""
    if kind == NO_FFN:
        return None
    activation, gated = FFN_KINDS[kind.partition("-")[0]]
    block = FeedForward(width=width, activation=activation, gated=gated, groups=GROUPED.get(kind, 1))
    if kind not in EXPERTS:
        return block
    experts, active = EXPERTS[kind]
    return MixtureOfExperts(experts=experts, active=active, expert=block)


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpace:
    """The possible values of per-layer choices. Without ``weights``, layers have the head's format."""

    heads: tuple[int | Literal["none"], ...]  # none: layers of text models without attention
    kv_heads: tuple[int, ...] = ()  # empty for images and ranking: the same numbers as heads
    ffn: tuple[FfnName, ...] = ("swiglu",)
    ffn_width: tuple[int, ...]
    weights: tuple[str, ...] | None = later(None)

    def __post_init__(self) -> None:
        check_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """If every choice in ``when`` has one of its listed values, the choices in ``only`` are limited to their lists.

    Conditions on per-layer choices apply within one layer. ``layer`` in ``when`` selects layers by number (with
    alternating ties: ``even`` and ``odd``; with thirds: ``first``, ``middle`` and ``last``). A single value means
    a list of one value.
    """

    when: Mapping[str, Any]
    only: Mapping[str, Any]

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("when", "only"):
            if not getattr(self, name):
                raise SpecError("must name at least one choice, or the condition has no effect", field=name)

    def __str__(self) -> str:
        parts = [
            ", ".join(f"{name} {listed(values)}" for name, values in part.items()) for part in (self.when, self.only)
        ]
        return f"when {parts[0]}: only {parts[1]}"


def listed(values: object) -> list[Any]:
    """``values`` as a list; a single value becomes a list of one value."""
    return list(values) if isinstance(values, list | tuple) else [values]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSpec:
    """The search space of a run file. Every field lists the possible values.

    ``layers`` states which layers must have equal choices: ``each`` (none), ``alike`` (all), ``alternating`` (all even
    layers, and all odd layers), or ``thirds`` (all layers in the same third of the depth). It is one word for all
    choices, or a mapping with a word for each of ``attention``, ``ffn``, ``ffn_width`` and ``layer_weights``.
    """

    d_model: tuple[int, ...]
    depth: tuple[int, ...]
    vocab_size: tuple[int, ...] = ()  # for images the number of classes, for ranking 1
    layer: LayerSpace
    head_size: tuple[int, ...] = (32,)
    tie_embeddings: tuple[bool, ...] = (True,)
    weights: tuple[str, ...] = ("fp32",)  # for all matrices; only for the head if layer.weights lists formats
    sharing: tuple[Literal["none", "pairs"], ...] = ("none",)  # pairs: layers 1, 3, … use the weights of 0, 2, …
    conv: tuple[Literal["none", "attention", "both"], ...] = ("none",)  # blocks with a convolution before them
    conv_taps: int = 4  # positions that a convolution reads
    layers: str | dict[str, str] = "each"
    conditions: tuple[Condition, ...] = field(default=())
    norm: Norm | tuple[Norm, ...] = "rmsnorm"  # a list is a choice of text models
    norm_place: tuple[NormPlace, ...] = later(("pre",))  # a choice of text models
    max_tokens: int = 512
    image: ImageSpace | None = later(None)  # noqa: RUF009  (what images are, and the choices that only they have)
    ranking: RankingSpace | None = later(None)  # noqa: RUF009  (what requests hold, and the choices that only they have)
    sentence: SentenceSpace | None = later(None)  # noqa: RUF009  (what texts are, and the choice that only they have)
    sound: SoundSpace | None = later(None)  # noqa: RUF009  (what sounds are, and the choices that only they have)

    def __post_init__(self) -> None:
        check_fields(self)
        if self.own is not None:
            self._read_own(self.own)
        positive(self, "max_tokens")
        for name in (*GLOBALS, "conv", "norm", "norm_place"):
            _checked(name, self.values(name))
        if max(self.depth) > MOST_LAYERS:
            raise SpecError(f"must be at most {MOST_LAYERS} layers, not {short(max(self.depth))}", field="depth")
        if self.conv_taps < 2:
            raise SpecError(f"a convolution needs at least 2 taps, not {self.conv_taps}", field="conv_taps")
        self._check_missing_blocks()
        for name in ("heads", *(() if self.own else ("kv_heads",)), "ffn", "ffn_width"):
            _checked(f"layer.{name}", getattr(self.layer, name))
        _known_formats("weights", self.weights)
        if self.layer.weights is not None:
            _checked("layer.weights", self.layer.weights)
            _known_formats("layer.weights", self.layer.weights)
        if any(size % 2 for size in self.head_size):
            raise SpecError("rotary positions need even head sizes", field="head_size")
        if self.attention_choices()[:1] in ((), (NO_ATTENTION,)):
            raise SpecError(
                f"no combination is possible: no value of `kv_heads` {list(self.layer.kv_heads)} divides any value of "
                f"`heads` {list(self.layer.heads)}",
                field="layer.kv_heads",
            )
        if (blocks := self._blocks()) > MOST_BLOCKS:
            raise SpecError(
                f"the lists allow {blocks:,} distinct blocks, but costs are predicted for at most {MOST_BLOCKS:,}: "
                "list fewer values of d_model, head_size, heads, kv_heads, ffn or ffn_width"
            )
        for name, word in ({"": self.layers} if isinstance(self.layers, str) else self.layers).items():
            where = f"layers.{name}" if name else "layers"
            if name and name not in self.layer_choices:
                raise SpecError(f"is not a per-layer choice; {nearest(name, self.layer_choices)}", field=where)
            if word not in TIES:
                raise SpecError(f"{word!r} is not an accepted value; {nearest(word, TIES)}", field=where)

    def _check_missing_blocks(self) -> None:
        """Checks the choices for layers without attention or feed-forward, and for grouped feed-forwards.

        Adds a condition: a layer without a feed-forward always has the first of the listed feed-forward widths.

        Raises:
            SpecError: Models of this kind cannot have such layers, or cannot have them together with convolutions; or
                the number of groups does not divide a width.
        """
        for name, values, possible in (
            ("heads", self.layer.heads, self.own is None),
            ("ffn", self.layer.ffn, self.kind.bare),
        ):
            if "none" in values and not possible:
                block = "attention" if name == "heads" else "a feed-forward"
                raise SpecError(f"{self.kind.models} cannot have layers without {block}", field=f"layer.{name}")
            if "none" in values and self.conv != ("none",):
                raise SpecError(
                    "convolutions need layers with both blocks; leave out `conv`, or `none` in `heads` and `ffn`",
                    field="conv",
                )
        for kind in set(self.layer.ffn) & set(GROUPED):
            if self.own is not None:
                raise SpecError(f"{self.kind.models} cannot have grouped feed-forwards ({kind})", field="layer.ffn")
            for name, sizes in (("d_model", self.d_model), ("layer.ffn_width", self.layer.ffn_width)):
                if uneven := [size for size in sizes if size % GROUPED[kind]]:
                    raise SpecError(f"{kind}: {GROUPED[kind]} groups do not divide {uneven[0]}", field=name)
        width = Condition(when={"ffn": [NO_FFN]}, only={"ffn_width": list(self.layer.ffn_width[:1])})
        if NO_FFN in self.layer.ffn and width not in self.conditions:
            object.__setattr__(self, "conditions", (*self.conditions, width))

    @property
    def _given(self) -> dict[str, Choices]:
        """The run file's sections for kinds of models other than text decoders, by name."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, Choices)}

    @property
    def own(self) -> Choices | None:
        """The choices that are specific to the searched kind of model; None for text decoders."""
        return next(iter(self._given.values()), None)

    @property
    def part(self) -> str:
        """The name of the field that contains :attr:`own`; empty for text decoders."""
        return next(iter(self._given), "")

    @property
    def kind(self) -> Choices:
        """The choices that are specific to the searched kind of model, also for text decoders."""
        return self.own or TEXT

    @property
    def sound_s(self) -> float | None:
        """Length of the sound in a request, in seconds; None if a request has no sound."""
        return self.kind.seconds

    @property
    def frames(self) -> int | None:
        """Number of images in a request; None if a request has no image."""
        return self.kind.frames

    def _read_own(self, own: Choices) -> None:
        """For models other than text decoders: checks the fields, sets some of them, and adds implied conditions."""
        given = list(self._given)
        if len(given) > 1:
            raise SpecError(
                "a space has one kind of model: give only one of the fields `image`, `ranking`, `sound` and `sentence`",
                field=given[1],
            )
        if self.vocab_size not in ((), (own.outputs,)):
            raise SpecError(f"{own.noun} have no vocabulary; leave it out", field="vocab_size")
        if self.layer.kv_heads:
            raise SpecError(f"{own.noun} have as many KV heads as heads; leave kv_heads out", field="layer.kv_heads")
        if not isinstance(self.norm, str):
            raise SpecError(f"{own.models} cannot have several norms; write `norm: {self.norms[0]}`", field="norm")
        for name, only in (("sharing", ("none",)), ("conv", ("none",)), ("norm_place", ("pre",))):
            if getattr(self, name) != only:
                raise SpecError(f"is not possible for {own.noun}; leave this field out", field=name)
        if any(kind in EXPERTS for kind in self.layer.ffn):
            raise SpecError(f"experts are not possible for {own.noun}", field="layer.ffn")
        if unfit := own.unfit_norm(self.norm):
            raise SpecError(unfit, field="norm")
        for name in own.choices:
            _checked(f"{given[0]}.{name}", getattr(own, name))
        implied = [Condition(when=when, only=only) for when, only in own.conditions(self.d_model)]
        rest = tuple(item for item in self.conditions if item not in implied)
        for name, value in (
            ("vocab_size", (own.outputs,)),
            ("tie_embeddings", (False,)),
            ("conditions", (*rest, *implied)),
        ):
            object.__setattr__(self, name, value)

    def _blocks(self) -> int:
        """Number of distinct attention and feed-forward blocks, counting all widths and formats."""
        attention = len(self.head_size) * len(self.attention_choices())
        feed_forward = len(self.layer.ffn) * len(self.layer.ffn_width)
        return len(self.formats) * len(self.d_model) * len(self.conv) * (attention + feed_forward)

    def attention_choices(self) -> tuple[Parts, ...]:
        """The possible pairs (heads, KV heads), where the number of KV heads divides the number of heads.

        For image models, each pair has a third value, which is always ``none``.

        If layers may have no attention, :data:`~chipwise.model.kinds.choices.NO_ATTENTION` comes last.
        """
        return self.kind.attention(self.layer.heads, self.layer.kv_heads)

    @property
    def globals(self) -> tuple[str, ...]:
        """Names of the whole-model choices; convolutions and norms are included if the run file lists several."""
        listed = {"conv": self.conv != ("none",), "norm": not isinstance(self.norm, str)}
        listed["norm_place"] = self.norm_place != ("pre",)
        return (*GLOBALS, *(name for name, chosen in listed.items() if chosen), *self.kind.choices)

    @property
    def norms(self) -> tuple[Norm, ...]:
        """The possible kinds of norm."""
        return (self.norm,) if isinstance(self.norm, str) else self.norm

    def usual(self, name: str) -> str:
        """The value of a global choice for a design that does not state it, such as a reference design."""
        values = self.values(name) if name in ("norm", "norm_place") else ("none",)
        return next((value for value in values if value in ("rmsnorm", "pre")), str(values[0]))

    @property
    def layer_choices(self) -> tuple[str, ...]:
        """Names of the per-layer choices. Weight formats are among them only if the run file lists any."""
        return LAYER_CHOICES if self.layer.weights is None else (*LAYER_CHOICES, LAYER_WEIGHTS)

    @property
    def formats(self) -> tuple[str, ...]:
        """All weight formats that designs of this space may have."""
        return tuple(dict.fromkeys((*self.weights, *(self.layer.weights or ()))))

    def values(self, name: str) -> tuple[Any, ...]:
        """The possible values of the choice ``name``, one of ``globals`` or ``layer_choices``."""
        if name == "attention":
            return self.attention_choices()
        if name == LAYER_WEIGHTS:
            return self.layer.weights or ()
        if name == "norm":
            return self.norms
        if name in self.kind.choices:
            return tuple(getattr(self.kind, name))
        return tuple(getattr(self.layer if name in LAYER_CHOICES else self, name))

    def tie(self, choice: str) -> str:
        """Which layers must have equal values of ``choice``: a word of ``TIES``, such as ``alike``."""
        return self.layers if isinstance(self.layers, str) else self.layers.get(choice, "each")


def _known_formats(field: str, names: Sequence[str]) -> None:
    for name in names:
        try:
            weight_format(name)
        except ChipwiseError as error:
            raise SpecError(str(error), field=field) from None


def _checked(name: str, values: Sequence[object]) -> None:
    if len(values) > MOST_VALUES:
        raise SpecError(f"lists {len(values):,} values; at most {MOST_VALUES:,} may be listed", field=name)
    if not values:
        raise SpecError("the list is empty; list at least one value", field=name)
    if len(set(values)) != len(values):
        raise SpecError(f"a value is listed twice in {short(list(values))}", field=name)
    for value in values:
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise SpecError(f"must be at least 1, not {short(value)}", field=name)
        if isinstance(value, int) and value > MOST:
            raise SpecError(f"must be at most {MOST:,}, not {short(value)}", field=name)


_LABELS = {"alternating": ("even", "odd"), "thirds": ("first", "middle", "last")}


@dataclass(frozen=True)
class Slots:
    """The slots of one per-layer choice. A slot is a layer, or several layers that must have equal values.

    Attributes:
        labels: Label of each slot: a layer's number, ``even``, ``first`` …
        of: The slot of each layer, (sharing, depth, layer). Sharing and depth are indices into the space's lists.
        used: Whether any layer has this slot, (sharing, depth, slot).
    """

    labels: tuple[str, ...]
    of: NDArray[np.int64]
    used: NDArray[np.bool_]


def slots_of(spec: SpaceSpec) -> dict[str, Slots]:
    """The slots of each per-layer choice, by its name."""
    return {choice: _slots(spec, spec.tie(choice)) for choice in spec.layer_choices}


def _slots(spec: SpaceSpec, tie: str) -> Slots:
    deepest = max(spec.depth)
    labels = _LABELS.get(tie, tuple(map(str, range(deepest if tie == "each" else 1))))[:deepest]
    of = np.zeros((len(spec.sharing), len(spec.depth), deepest), np.int64)
    used = np.zeros((len(spec.sharing), len(spec.depth), len(labels)), bool)
    for s, sharing in enumerate(spec.sharing):
        for d, depth in enumerate(spec.depth):
            for layer in range(deepest):
                owner = layer - layer % 2 if sharing == "pairs" else layer
                of[s, d, layer] = _slot(tie, owner, depth)
                if layer < depth:
                    used[s, d, of[s, d, layer]] = True
    return Slots(labels, of, used)


def _slot(tie: str, layer: int, depth: int) -> int:
    """The slot of layer number ``layer`` in a model of ``depth`` layers.

    >>> [_slot("thirds", layer, 7) for layer in range(7)]
    [0, 0, 0, 1, 1, 2, 2]
    """
    if tie == "alternating":
        return layer % 2
    if tie == "thirds":
        return min(3 * layer // depth, 2)
    return layer if tie == "each" else 0
