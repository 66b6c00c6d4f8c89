"""The search choices that only speech recognisers have: stride, local attention, convolution modules."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from chipwise.core.fields import check_fields, positive
from chipwise.errors import SpecError
from chipwise.model.arch.arch import ArchSpec
from chipwise.model.arch.layer import AnyFeedForward, Layer
from chipwise.model.arch.mixers import ConvModule
from chipwise.model.arch.rates import FRAMES_PER_S
from chipwise.model.kinds.choices import Choices, Chosen, Implied, Whole, bidirectional
from chipwise.model.kinds.sound.form import GLOBAL, frame_conv
from chipwise.model.kinds.sound.stem import Ctc, SoundStem

NO_MODULE = "none"
_WINDOW, _MODULE = re.compile(r"local\d+"), re.compile(r"conv\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundSpace(Choices):
    """The input sounds, and the search choices that only speech recognisers have. Each choice lists its options.

    Sounds are log-mel spectrograms of ``size`` frames of 10 ms and ``channels`` bands. ``stride`` is the factor by
    which two convolutions shorten the spectrograms. ``window`` is ``global``, or ``local20`` for attention within
    chunks of 20 positions. ``module`` is ``none``, or ``conv15`` for a convolution module with 15 taps in every layer.
    The sizes determine which values can be combined; a forbidden value is replaced with the nearest allowed one.
    """

    choices: ClassVar[tuple[str, ...]] = ("stride", "window", "module")
    noun: ClassVar[str] = "sounds"
    models: ClassVar[str] = "audio models"
    calibration: ClassVar[str] = SoundStem.calibration
    off_sheets: ClassVar[str] = "models that transcribe"

    size: int  # frames of 10 ms
    classes: int  # number of characters, plus CTC's blank
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
                raise SpecError(f"unknown window {window!r}; write global, or a chunk such as local20", field="window")
        for module in self.module:
            if module != NO_MODULE and not (_MODULE.fullmatch(module) and taps_of(module) % 2):
                raise SpecError(
                    f"unknown module {module!r}; write none, or conv and an odd kernel size, such as conv15",
                    field="module",
                )

    @property
    def outputs(self) -> int:
        """Number of rows in the head's matrix."""
        return self.classes

    @property
    def seconds(self) -> float:
        """Length of a sound in seconds."""
        return self.size / FRAMES_PER_S

    def conditions(self, widths: tuple[int, ...]) -> Implied:
        """Conditions that follow from the input sizes: attention chunks must divide the number of positions.

        Raises:
            SpecError: For one of the strides, no listed window is possible.
        """
        for stride in self.stride:
            positions = self.size // stride
            fit = [each for each in self.window if (chunk := window_of(each)) is None or _fits(chunk, positions)]
            if not fit:
                raise SpecError(
                    f"no listed chunk divides {positions} positions (stride {stride}); add 'global'", field="window"
                )
            if len(fit) < len(self.window):
                yield {"stride": [stride]}, {"window": fit}

    def stem_of(self, choices: Chosen, d_model: int) -> SoundStem:
        """The stem that ``choices`` describe: Whisper's, but with stride 2 in both convolutions if ``stride`` is 4."""
        strides = (1, 2) if choices["stride"] == 2 else (2, 2)
        return SoundStem(
            seconds=self.seconds,
            rate=FRAMES_PER_S,
            channels=self.channels,
            convs=tuple(frame_conv(d_model, stride) for stride in strides),
        )

    def layer(self, chosen: Chosen, parts: tuple[int, ...], *, head_size: int, ffn: AnyFeedForward | None) -> Layer:
        """A layer with biases as in Whisper."""
        layer = bidirectional(parts, head_size=head_size, ffn=ffn, chunk=window_of(chosen["window"]))
        return replace(layer, conv=module_of(chosen["module"]))

    def arch(self, chosen: Chosen, layers: Iterable[Layer], whole: Whole) -> ArchSpec:
        """Builds the speech recogniser from ``layers`` and from the stem that ``chosen`` describes."""
        stem, head = self.stem_of(chosen, whole.d_model), Ctc(count=self.classes)
        return whole.around(layers, bias=True)(stem=stem, head=head, max_tokens=stem.tokens, positions="learned")

    def request_tokens(self, chosen: Chosen) -> int:
        """Sequence length of a request."""
        return self.size // int(chosen["stride"])

    def other_input(self, arch: ArchSpec, *, run: str) -> str:
        """An error message if ``arch`` cannot read the sounds of ``run``; else empty."""
        return "" if arch.reads == "sound" else f"{arch.name} does not read sound, but the data of {run} are sounds"


def _fits(chunk: int, positions: int) -> bool:
    """Whether ``chunk`` divides the positions evenly into more than one chunk."""
    return chunk < positions and positions % chunk == 0


def window_of(window: str) -> int | None:
    """Number of positions per attention chunk, from the window's name in a run file; None for global attention.

    >>> window_of("local20"), window_of("global")
    (20, None)
    """
    return None if window == GLOBAL else int(window.removeprefix("local"))


def taps_of(module: str) -> int:
    """Number of taps of a convolution module, from its name in a run file; 0 without a module.

    >>> taps_of("conv15"), taps_of("none")
    (15, 0)
    """
    return 0 if module == NO_MODULE else int(module.removeprefix("conv"))


def module_of(module: str) -> ConvModule | None:
    """The convolution module of every layer, if there is one."""
    taps = taps_of(module)
    return ConvModule(taps=taps, norm="layer") if taps else None
