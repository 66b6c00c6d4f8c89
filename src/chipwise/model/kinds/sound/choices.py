"""Choices that only spaces of models that transcribe sound have: how much it is shortened, stretches, modules."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from chipwise.core.fields import check_fields, positive
from chipwise.errors import SpecError
from chipwise.model.arch.mixers import ConvModule
from chipwise.model.arch.rates import FRAMES_PER_S
from chipwise.model.kinds.sound.form import frame_conv
from chipwise.model.kinds.sound.stem import SoundStem

SOUND_CHOICES = ("stride", "window", "module")
GLOBAL, NO_MODULE = "global", "none"
_WINDOW, _MODULE = re.compile(r"local\d+"), re.compile(r"conv\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundSpace:
    """What sounds are, and the choices that only transcribing models have; each lists the values that may be chosen.

    Sounds are log-mel spectrograms of ``size`` frames of 10 ms and ``channels`` bands. ``stride`` is how many times two
    convolutions shorten them; ``window`` is ``global``, or ``local20`` where positions see those of their own stretch
    of 20; ``module`` is ``none``, or ``conv15`` for a convolution module of 15 taps in every layer. Which of them go
    together follows from the sizes: a forbidden value is replaced by the nearest allowed one, as by any condition.
    """

    choices: ClassVar[tuple[str, ...]] = SOUND_CHOICES
    noun: ClassVar[str] = "sounds"
    models: ClassVar[str] = "models of sound"

    size: int  # frames of 10 ms
    classes: int  # characters, and CTC's blank
    channels: int = 40  # mel bands
    stride: tuple[Literal[2, 4], ...] = (2, 4)
    window: tuple[str, ...] = (GLOBAL,)
    module: tuple[str, ...] = (NO_MODULE,)

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "size", "classes", "channels", most=65_536)
        if self.size % 4:
            raise SpecError(f"must be a multiple of 4 frames, not {self.size}", field="size")
        for window in self.window:
            if window != GLOBAL and not (_WINDOW.fullmatch(window) and window_of(window)):
                raise SpecError(f"{window!r} is no window; write global or local20", field="window")
        for module in self.module:
            if module != NO_MODULE and not (_MODULE.fullmatch(module) and taps_of(module) % 2):
                raise SpecError(f"{module!r} is no module; write none, or conv15 with an odd number", field="module")

    @property
    def outputs(self) -> int:
        """Rows of the head's matrix."""
        return self.classes

    @property
    def seconds(self) -> float:
        """Seconds of a sound."""
        return self.size / FRAMES_PER_S

    def conditions(self) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """What follows from the sizes: pairs of ``when`` and ``only``. Stretches divide the positions.

        Raises:
            SpecError: No window fits a stride.
        """
        for stride in self.stride:
            positions = self.size // stride
            fit = [each for each in self.window if (chunk := window_of(each)) is None or _fits(chunk, positions)]
            if not fit:
                raise SpecError(f"none divides {positions} positions (stride {stride}); list global", field="window")
            if len(fit) < len(self.window):
                yield {"stride": [stride]}, {"window": fit}

    def stem_of(self, choices: Mapping[str, Any], d_model: int) -> SoundStem:
        """The stem that ``choices`` describe, for a model of this width: Whisper's, shortened at the end."""
        strides = (1, 2) if choices["stride"] == 2 else (2, 2)
        return SoundStem(
            seconds=self.seconds,
            rate=FRAMES_PER_S,
            channels=self.channels,
            convs=tuple(frame_conv(d_model, stride) for stride in strides),
        )

    def request_tokens(self, choices: Mapping[str, Any]) -> int:
        """Positions of a request."""
        return self.size // int(choices["stride"])


def _fits(chunk: int, positions: int) -> bool:
    """Whether chunks of ``chunk`` divide the positions evenly, into more than one."""
    return chunk < positions and positions % chunk == 0


def window_of(window: str) -> int | None:
    """Positions of a stretch, as the run file writes it; None where positions see all.

    >>> window_of("local20"), window_of("global")
    (20, None)
    """
    return None if window == GLOBAL else int(window.removeprefix("local"))


def taps_of(module: str) -> int:
    """Taps of a convolution module, as the run file writes it; 0 is none.

    >>> taps_of("conv15"), taps_of("none")
    (15, 0)
    """
    return 0 if module == NO_MODULE else int(module.removeprefix("conv"))


def module_of(module: str) -> ConvModule | None:
    """The convolution module of every layer, if there is one."""
    taps = taps_of(module)
    return ConvModule(taps=taps, norm="layer") if taps else None


def module_name(block: ConvModule | None) -> str:
    """The module as the run file writes it."""
    return f"conv{block.taps}" if block is not None else NO_MODULE
