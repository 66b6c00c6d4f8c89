"""Choices that only spaces of image classifiers have: patches, the stem, pooling, squares of patches."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from chipwise.core.errors import SpecError
from chipwise.core.fields import check_fields, later, positive
from chipwise.spec import ImageStem
from chipwise.spec.stem import CONV_STRIDE

IMAGE_CHOICES = ("patch", "stem", "pooling", "square")
PATCHES, EVERYWHERE = "patches", "none"
_STEM, _SQUARE = re.compile(r"conv\d+(-\d+)*"), re.compile(r"(\d+)x\1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageSpace:
    """What images are, and the choices that only image classifiers have; each lists the values that may be chosen.

    ``stem`` is ``patches``, or ``conv16`` or ``conv8-16`` for convolutions of so many channels before them, each of
    which halves the image; ``pooling`` is a class token (``first``) or the mean of all positions; ``square`` is
    ``none``, or ``7x7`` where positions see those of their own square of so many patches. Which of them go together
    follows from the sizes: a forbidden value is replaced by the nearest allowed one, as by any condition.
    """

    size: int  # pixels on each side; images are scaled to it
    classes: int
    channels: int = 1
    patch: tuple[int, ...]
    stem: tuple[str, ...] = (PATCHES,)
    pooling: tuple[Literal["first", "mean"], ...] = ("first",)
    square: tuple[str, ...] = (EVERYWHERE,)
    axes: int = later(2)  # 1: a signal of ``size`` frames in slices of ``patch``, with ``channels`` bands

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "size", "classes", "channels", most=65_536)
        for patch in self.patch:
            if patch < 1 or self.size % patch:
                raise SpecError(f"patches of {patch} pixels do not divide images of {self.size}", field="patch")
        for stem in self.stem:
            if stem != PATCHES and not _STEM.fullmatch(stem):
                raise SpecError(f"{stem!r} is no stem; write patches, conv16 or conv8-16", field="stem")
        if self.axes not in (1, 2):
            raise SpecError(f"must be 2 (images) or 1 (signals in time), not {self.axes}", field="axes")
        if self.axes == 1 and self.square != (EVERYWHERE,):
            raise SpecError("a signal has no squares; leave it out", field="square")
        for square in self.square:
            if square != EVERYWHERE and not _SQUARE.fullmatch(square):
                raise SpecError(f"{square!r} is no square; write none or 7x7", field="square")

    def conditions(self) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """What follows from the sizes: pairs of ``when`` and ``only``."""
        for patch in self.patch:
            stems = [stem for stem in self.stem if self._halves(patch, len(convs_of(stem)))]
            if len(stems) < len(self.stem):
                yield {"patch": [patch]}, {"stem": stems}
            grid = self.size // patch
            squares = [s for s in self.square if (edge := square_of(s)) is None or (grid % edge == 0 and edge < grid)]
            if len(squares) < len(self.square):
                yield {"patch": [patch]}, {"square": squares}
        if "first" in self.pooling and self.square != (EVERYWHERE,):
            yield {"pooling": ["first"]}, {"square": [EVERYWHERE]}

    def _halves(self, patch: int, times: int) -> bool:
        """Whether patch and image can be halved so many times."""
        each = int(CONV_STRIDE**times)
        return patch % each == 0 and self.size % each == 0

    def stem_of(self, choices: Mapping[str, Any]) -> ImageStem:
        """The stem that ``choices`` describe."""
        return ImageStem(
            image_size=self.size,
            patch=choices["patch"],
            channels=self.channels,
            convs=convs_of(choices["stem"]),
            prefix_tokens=int(choices["pooling"] == "first"),
            axes=self.axes,
        )


def convs_of(stem: str) -> tuple[int, ...]:
    """Channels of the convolutions of a stem, as the run file writes it.

    >>> convs_of("conv8-16"), convs_of("patches")
    ((8, 16), ())
    """
    return () if stem == PATCHES else tuple(map(int, stem.removeprefix("conv").split("-")))


def square_of(square: str) -> int | None:
    """Patches on each side of a square; None where positions see all.

    >>> square_of("7x7"), square_of("none")
    (7, None)
    """
    return None if square == EVERYWHERE else int(square.partition("x")[0])


def stem_name(stem: ImageStem) -> str:
    """The stem as the run file writes it."""
    return f"conv{'-'.join(map(str, stem.convs))}" if stem.convs else PATCHES
