"""Choices that models of one kind alone have: a class a kind, which makes the layers and models of its designs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.layer import AnyFeedForward, Layer

Chosen = Mapping[str, Any]
"""Values by the names of choices, as a run file writes them."""
Implied = Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]
"""Conditions: pairs of ``when`` and ``only``."""
Norm = Literal["rmsnorm", "layernorm"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What a model has beside its layers and the choices of its kind.

    Attributes:
        name: What messages call it.
        d_model: Values of a position.
        norm: The norms' kind.
        max_tokens: Positions of a text, at most; those of other requests follow from the choices.
    """

    name: str
    d_model: int
    norm: Norm
    max_tokens: int


class Choices(ABC):
    """The choices of one kind, and how designs are made of them; fields list the values that may be chosen.

    Attributes:
        noun: What the models read, for messages.
        models: What the models are called.
        one_pass: Whether a request is one pass: an image, a sound, a text to tell apart. Nothing is generated.
        calibration: The models that a machine is calibrated on before designs are priced: a key of
            ``deploy/calibrate/random_models.py``; empty: those of text.
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
        """Names of the choices for the whole model that only this kind has."""

    @property
    def listed(self) -> tuple[str, ...]:
        """Fields that must list something: the choices, and those of each layer."""
        return self.choices

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Rows of the head's matrix; 0 if they are a choice of the space."""

    @property
    def seconds(self) -> float | None:
        """Seconds of sound in a request; None if it holds none."""
        return None

    @property
    def off_sheets(self) -> str:
        """What keeps the models from being priced by data sheets; empty if those price them."""
        return ""

    def unfit_norm(self, norm: Norm) -> str:
        """What keeps the models from having this norm; empty if nothing does."""
        return ""

    def conditions(self, widths: tuple[int, ...]) -> Implied:
        """What follows from the sizes and the listed widths.

        Raises:
            SpecError: Values that fit nothing.
        """
        return iter(())

    def attention(self, heads: tuple[int, ...], kv_heads: tuple[int, ...]) -> tuple[tuple[Any, ...], ...]:
        """What attention may be: heads and as many KV heads, and what else each layer chooses with them."""
        return tuple((each, each) for each in heads)

    def completed(self, layer: Chosen) -> dict[str, Any]:
        """The choices of a layer, with what a design may leave out."""
        return dict(layer)

    def parts(self, layer: Chosen) -> tuple[Any, ...]:
        """What :meth:`attention` lists, as ``layer`` has chosen."""
        return layer["heads"], layer["kv_heads"]

    def fitting(self, chosen: Chosen, parts: tuple[Any, ...]) -> tuple[Any, ...]:
        """``parts``, or the nearest to them that the conditions allow beside ``chosen``."""
        return parts

    @abstractmethod
    def layer(self, chosen: Chosen, parts: tuple[Any, ...], *, head_size: int, ffn: AnyFeedForward | None) -> Layer:
        """A layer with the attention of ``parts`` and ``ffn``, which gets the biases that the kind has."""

    @abstractmethod
    def arch(self, chosen: Chosen, layers: Iterable[Layer], whole: Whole) -> ArchSpec:
        """The model of ``layers`` with the stem and the head of ``chosen``."""

    @abstractmethod
    def request_tokens(self, chosen: Chosen) -> int:
        """Positions of a request."""

    def other_input(self, arch: ArchSpec, *, run: str) -> str:
        """What ``arch``, a model from elsewhere, reads that the data of the run called ``run`` are not; else empty."""
        return ""


def other_sizes(arch: ArchSpec, *, run: str, got: Mapping[str, int], wanted: Mapping[str, int]) -> str:
    """Sizes of the input of ``arch`` that differ from those of a run's data; empty if none do."""
    off = [f"{name} {got[name]}, not {wanted[name]}" for name in wanted if wanted[name] != got[name]]
    return f"{arch.name} reads other data than {run} has: {'; '.join(off)}" if off else ""
