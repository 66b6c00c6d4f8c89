"""Stems of speech models, which turn samples or log-mel frames into the input sequence of a transformer.

References:
    Two convolutions over log-mel frames: Radford et al. 2022 (Whisper), arXiv:2212.04356. Seven
    convolutions over samples, and a wide convolution for positions: Baevski et al. 2020 (wav2vec 2.0),
    arXiv:2006.11477. Three convolutions over samples: Jeffries et al. 2024 (Moonshine), arXiv:2410.15608. Convolutions
    over frames and bands: Gulati et al. 2020 (Conformer), arXiv:2005.08100; depthwise separable ones: Rekesh et al.
    2023 (Fast Conformer), arXiv:2305.05084.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from chipwise.core.fields import check_fields, positive
from chipwise.errors import SpecError
from chipwise.model.arch.ends import Labels
from chipwise.model.arch.trunk import Reads, Stem

LONGEST_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundConv:
    """One convolution and the activation after it. In a stem with ``axes=2`` it runs over frames and bands."""

    channels: int  # output channels
    kernel: int  # taps along each axis
    stride: int = 1
    pad: int = 0  # zeros at each end
    groups: int = 1
    bias: bool = True
    norm: Literal["none", "group", "layer"] = "none"  # a norm with a weight and a bias per channel
    activation: Literal["gelu", "relu", "tanh", "none"] = "gelu"

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "channels", "kernel", "stride", "groups", most=1_000_000)
        if not 0 <= self.pad < self.kernel:
            raise SpecError(f"must be from 0 to one less than the kernel's {self.kernel}, not {self.pad}", field="pad")
        if self.channels % self.groups:
            raise SpecError(f"{self.groups} groups do not divide {self.channels} channels", field="groups")

    def out(self, length: int) -> int:
        """Output length for ``length`` inputs along one axis."""
        return max(0, (length + 2 * self.pad - self.kernel) // self.stride + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundStem(Stem):
    """Turns a sound of ``seconds`` seconds into a sequence: convolutions over its frames, then optionally a matrix.

    The input has ``rate`` frames per second with ``channels`` values each: 100 log-mel frames of 80 bands, or 16,000
    samples of one value.
    """

    reads: ClassVar[Reads] = "sound"
    does: ClassVar[str] = "take audio"
    calibration: ClassVar[str] = "sounds"
    seconds: float
    rate: float
    channels: int
    convs: tuple[SoundConv, ...]
    axes: int = 1  # axes of the convolutions: 1 is frames; 2 is frames and bands, with 1 input channel
    matrix: bool = False  # whether a matrix with a bias maps the convolutions' output to the model's width
    matrix_norm: bool = False  # a LayerNorm before that matrix
    position_taps: int = 0  # taps of a grouped convolution that adds positions (wav2vec 2.0); 0 is none
    position_groups: int = 1
    position_rows: int = 0  # rows of a position table that is added (Whisper's sinusoids)
    mask_token: bool = False  # a vector for hidden positions, which only training uses
    prefix_tokens: int = 0

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "channels", most=1_000_000)
        if self.axes not in (1, 2):
            raise SpecError(f"must be 1 (frames) or 2 (frames and bands), not {self.axes}", field="axes")
        if not 0 < self.seconds <= LONGEST_S:
            raise SpecError(f"must be above 0 and at most a day, not {self.seconds}", field="seconds")
        if self.rate <= 0:
            raise SpecError(f"must be above 0, not {self.rate}", field="rate")
        if not self.convs:
            raise SpecError("a sound stem needs at least one convolution", field="convs")
        if self.tokens < 1:
            raise SpecError(
                f"{self.seconds} s of sound is too short: the convolutions leave no position", field="seconds"
            )
        if self.position_rows and self.tokens > self.position_rows:
            longest = (
                f"{self.seconds * self.position_rows / self.tokens:.4g} s at once ({self.position_rows} positions)"
            )
            raise SpecError(f"the model reads at most {longest}, not {self.seconds:g} s", field="seconds")

    @property
    def frames(self) -> int:
        """Number of frames or samples per request."""
        return round(self.seconds * self.rate)

    def areas(self) -> tuple[int, ...]:
        """Number of frames (with two axes: frames times bands) of the input and of each convolution's output."""
        return tuple(time * bands for time, bands in self._sizes())

    def _sizes(self) -> list[tuple[int, int]]:
        time, bands = self.frames, self.channels if self.axes == 2 else 1
        found = [(time, bands)]
        for conv in self.convs:
            time, bands = conv.out(time), conv.out(bands) if self.axes == 2 else 1
            found.append((time, bands))
        return found

    def conv_inputs(self) -> tuple[int, ...]:
        """Number of input channels of each convolution."""
        return (1 if self.axes == 2 else self.channels, *(conv.channels for conv in self.convs[:-1]))

    @property
    def values(self) -> int:
        """Number of values per position before the matrix."""
        return self.convs[-1].channels * self._sizes()[-1][1]

    @property
    def tokens(self) -> int:
        """Sequence length of a request."""
        return self._sizes()[-1][0] + self.prefix_tokens

    @property
    def seconds_heard(self) -> float:
        """Length of the sound in a request, in seconds."""
        return self.seconds

    def hearing(self, seconds: float) -> SoundStem:
        """The stem for requests with ``seconds`` seconds of sound."""
        return replace(self, seconds=float(seconds))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the input: bands and frames."""
        return (self.channels, self.frames)

    def matrices(self, d_model: int) -> tuple[tuple[int, int], ...]:
        """Input and output width of each convolution with one group (written as a matrix), and of the last matrix."""
        dense = zip(self.convs, self.conv_inputs(), strict=True)
        found = [(conv.kernel**self.axes * into, conv.channels) for conv, into in dense if conv.groups == 1]
        return (*found, *(((self.values, d_model),) if self.matrix else ()))

    def parameters(self, d_model: int) -> int:
        """Number of parameters of convolutions, norms, the matrix, position embeddings and the mask vector."""
        total = 0
        for conv, into in zip(self.convs, self.conv_inputs(), strict=True):
            norm = 0 if conv.norm == "none" else 2
            total += conv.channels * (conv.kernel**self.axes * (into // conv.groups) + conv.bias + norm)
        if self.matrix:
            total += (self.values + 1) * d_model
        if self.matrix_norm:
            total += 2 * self.values
        if self.position_taps:  # weight norm has one norm per tap
            total += d_model * (d_model // self.position_groups * self.position_taps + 1) + self.position_taps
        return total + (self.position_rows + self.mask_token) * d_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Ctc(Labels):
    """A CTC head: a matrix with a bias over ``count`` characters at each position."""

    name: ClassVar[str] = "ctc"
