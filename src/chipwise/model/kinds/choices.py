"""Base class for the choices that only one kind of model has; it also builds layers and models from choices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.layer import AnyFeedForward, Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.arch.trunk import NormPlace

Chosen = Mapping[str, Any]
"""Chosen values by the name of the choice, as in a run file."""
Parts = tuple[Any, ...]
"""The attention that a layer chooses: heads, KV heads, and what else a kind chooses with them."""
Implied = Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]
"""Conditions on choices: pairs of ``when`` and ``only``."""
Norm = Literal["rmsnorm", "layernorm"]
NO_ATTENTION = ("none", "none")
"""The heads and KV heads of a layer without attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """The properties of a model that are common to all kinds, without its layers.

    Attributes:
        name: The model's name in messages.
        d_model: The model's width.
        norm: The kind of norm.
        norm_place: Where the norms of text models are.
        max_tokens: Most positions of a text; other kinds of models compute their positions from the choices.
    """

    name: str
    d_model: int
    norm: Norm
    max_tokens: int
    norm_place: NormPlace = "pre"


class Choices(ABC):
    """The choices of one kind of model, and how to build models from them. Fields list the possible values.

    Attributes:
        noun: The kind of model, for messages.
        models: Plural name of the models.
        one_pass: Whether a request is one pass (an image, a sound, a text to classify) and nothing is generated.
        calibration: The random models with which a machine is calibrated before designs are priced: a key of
            ``CALIBRATED`` (``deploy/calibrate/kinds.py``); empty for text models.
        bare: Whether layers may have no feed-forward.
    """

    __slots__ = ()
    noun: ClassVar[str]
    models: ClassVar[str]
    one_pass: ClassVar[bool] = True
    calibration: ClassVar[str] = ""
    bare: ClassVar[bool] = False

    @property
    @abstractmethod
    def choices(self) -> tuple[str, ...]:
        """Names of the whole-model choices that only this kind has."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Rows of the head's matrix; 0 if the space lists several."""

    @property
    def seconds(self) -> float | None:
        """Seconds of sound in a request; None if it holds none."""
        return None

    @property
    def frames(self) -> int | None:
        """Images in a request; None if it holds none."""
        return None

    @property
    def off_sheets(self) -> str:
        """Why data sheets cannot price these models; empty if they can."""
        return ""

    def unfit_norm(self, norm: Norm) -> str:
        """Why these models cannot have this norm; empty if they can."""
        return ""

    def conditions(self, widths: tuple[int, ...]) -> Implied:
        """Conditions that follow from the sizes and the listed widths.

        Raises:
            SpecError: A listed value fits no other choice.
        """
        return iter(())

    def attention(self, heads: tuple[int | str, ...], kv_heads: tuple[int, ...]) -> tuple[Parts, ...]:
        """Possible attention values: (heads, KV heads, …), with what else a layer chooses together with its heads."""
        return tuple((each, each) for each in heads)

    def completed(self, layer: Chosen) -> dict[str, Any]:
        """The choices of a layer, with defaults for those that a design may omit."""
        return dict(layer)

    def parts(self, layer: Chosen) -> Parts:
        """The value of :meth:`attention` that ``layer`` has chosen."""
        return layer["heads"], layer["kv_heads"]

    @abstractmethod
    def layer(self, chosen: Chosen, parts: Parts, *, head_size: int, ffn: AnyFeedForward | None) -> Layer:
        """A layer with the attention that ``parts`` describe and with ``ffn``, which gets the biases of this kind."""

    @abstractmethod
    def arch(self, chosen: Chosen, layers: Iterable[Layer], whole: Whole) -> ArchSpec:
        """The model of ``layers`` with the stem and head that ``chosen`` describes."""

    @abstractmethod
    def request_tokens(self, chosen: Chosen) -> int:
        """Positions per request."""

    def other_input(self, arch: ArchSpec, *, run: str) -> str:
        """Why ``arch``, an external model, cannot read the data of the run called ``run``; empty if it can."""
        return ""


def bidirectional(parts: Parts, *, head_size: int, ffn: AnyFeedForward | None, **further: Any) -> Layer:
    """A layer with biases whose positions attend to all others; ``further`` are fields of its attention."""
    heads, kv_heads, *_ = parts
    attention = Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        qkv_bias=True,
        out_bias=True,
        rope=False,
        causal=False,
        **further,
    )
    return Layer(attention=attention, ffn=None if ffn is None else replace(ffn, bias=True))


def other_sizes(arch: ArchSpec, *, run: str, got: Mapping[str, int], wanted: Mapping[str, int]) -> str:
    """Message about input sizes of ``arch`` that differ from those of a run's data; empty if none differ."""
    off = [f"{name} {got[name]}, not {wanted[name]}" for name in wanted if wanted[name] != got[name]]
    return f"{arch.name} reads other data than {run} has: {'; '.join(off)}" if off else ""
