"""Base class for the search choices that are specific to one kind of model; it also builds models from choices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.layer import AnyFeedForward, Layer
from chipwise.model.arch.mixers import Attention
from chipwise.model.arch.trunk import NormPlace

Chosen = Mapping[str, Any]
"""The chosen value of each choice, by the choice's name in a run file."""
Parts = tuple[Any, ...]
"""A layer's choice of attention: heads, KV heads, and further values that a kind of model may add."""
Implied = Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]
"""Conditions on choices, as pairs: the ``when`` and the ``only`` of a condition in a run file."""
Norm = Literal["rmsnorm", "layernorm"]
NO_ATTENTION = ("none", "none")
"""The heads and KV heads of a layer without attention."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """Properties that models of every kind have, except their layers.

    Attributes:
        name: The model's name in messages.
        d_model: The model's width.
        norm: The kind of norm.
        norm_place: Where text models have norms: before blocks, after residual sums, or before and after blocks.
        max_tokens: Maximum length of a text in a text decoder. Other models compute their sequence length from the
            choices.
    """

    name: str
    d_model: int
    norm: Norm
    max_tokens: int
    norm_place: NormPlace = "pre"

    def around(self, layers: Iterable[Layer], *, bias: bool = False) -> Callable[..., ArchSpec]:
        """Returns a function that builds a model of ``layers`` with this name, width and norm.

        The function's arguments are the other fields of the ArchSpec. With ``bias``, LayerNorms have a bias.
        """
        norm_bias, stack = bias and self.norm == "layernorm", tuple(layers)
        return partial(
            ArchSpec, name=self.name, d_model=self.d_model, layers=stack, norm=self.norm, norm_bias=norm_bias
        )


class Choices(ABC):
    """The search choices of one kind of model, and the code that builds models from them. Each field lists the options.

    Attributes:
        noun: The kind of model, for messages.
        models: Plural name of the models.
        one_pass: Whether a request takes a single pass (an image, a sound, a text to classify) and generates no text.
        calibration: The key in ``CALIBRATED`` (``deploy/calibrate/kinds.py``) that selects the random models for
            calibration; empty for text models.
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
        """Names of the choices for the whole model (not for a layer) that only this kind of model has."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Number of rows in the head's matrix; 0 for text decoders, whose vocabulary size is itself a choice."""

    @property
    def seconds(self) -> float | None:
        """Length of the sound in a request, in seconds; None if a request has no sound."""
        return None

    @property
    def frames(self) -> int | None:
        """Number of images in a request; None if a request has no image."""
        return None

    @property
    def off_sheets(self) -> str:
        """A phrase that names these models if data sheets cannot predict their costs; otherwise empty."""
        return ""

    def unfit_norm(self, norm: Norm) -> str:
        """An error message if these models cannot have this norm; else empty."""
        return ""

    def conditions(self, widths: tuple[int, ...]) -> Implied:
        """Conditions that follow from the input sizes and the listed widths.

        Raises:
            SpecError: A listed value cannot be combined with any value of another choice.
        """
        return iter(())

    def attention(self, heads: tuple[int | str, ...], kv_heads: tuple[int, ...]) -> tuple[Parts, ...]:
        """The options for a layer's attention.

        Each option is a tuple: number of heads, number of KV heads, and any values specific to this kind of model.
        """
        return tuple((each, each) for each in heads)

    def completed(self, layer: Chosen) -> dict[str, Any]:
        """The choices of a layer, with defaults for choices that a design may omit."""
        return dict(layer)

    def parts(self, layer: Chosen) -> Parts:
        """The tuple for the choices in ``layer``, in the form that :meth:`attention` returns."""
        return layer["heads"], layer["kv_heads"]

    @abstractmethod
    def layer(self, chosen: Chosen, parts: Parts, *, head_size: int, ffn: AnyFeedForward | None) -> Layer:
        """A layer with the feed-forward ``ffn`` and with the attention in ``parts``, a tuple from :meth:`attention`.

        Which biases the layer has depends on the kind of model.
        """

    @abstractmethod
    def arch(self, chosen: Chosen, layers: Iterable[Layer], whole: Whole) -> ArchSpec:
        """Builds the model from ``layers`` and from the stem and head that ``chosen`` describes."""

    @abstractmethod
    def request_tokens(self, chosen: Chosen) -> int:
        """Sequence length of a request; 0 if requests have no fixed length."""

    def other_input(self, arch: ArchSpec, *, run: str) -> str:
        """An error message if ``arch``, a model from elsewhere, cannot read the data of the run ``run``; else empty."""
        return ""


def bidirectional(parts: Parts, *, head_size: int, ffn: AnyFeedForward | None, **further: Any) -> Layer:
    """A layer with bidirectional attention and biases; ``further`` sets more fields of its attention."""
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
    """An error message that names each size in which ``arch`` differs from the run's data; empty if all are equal."""
    off = [f"{name} {got[name]}, not {wanted[name]}" for name in wanted if wanted[name] != got[name]]
    return f"{arch.name} does not fit the data of {run}: {'; '.join(off)}" if off else ""
