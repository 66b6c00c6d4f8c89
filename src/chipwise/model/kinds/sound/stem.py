"""Stems of speech models: how samples or log-mel frames become the positions of a transformer.

References:
    Two convolutions over log-mel frames: Radford et al. 2022 (Whisper), arXiv:2212.04356. Seven over samples, and a
    wide one that tells positions: Baevski et al. 2020 (wav2vec 2.0), arXiv:2006.11477. Three over samples: Jeffries et
    al. 2024 (Moonshine), arXiv:2410.15608. Convolutions over frames and bands: Gulati et al. 2020 (Conformer),
    arXiv:2005.08100; separated by channel: Rekesh et al. 2023 (Fast Conformer), arXiv:2305.05084.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from chipwise.core.fields import check_fields, positive
from chipwise.errors import SpecError
from chipwise.model.arch.ends import check_classes
from chipwise.model.arch.trunk import Head, Reads, Stem, Trunk

LONGEST_S = 24 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundConv:
    """One convolution, and the activation after it; with ``axes=2`` it goes over frames and bands alike."""

    channels: int  # of its output
    kernel: int  # taps along each axis
    stride: int = 1
    pad: int = 0  # zeros at each end
    groups: int = 1
    bias: bool = True
    norm: Literal["none", "group", "layer"] = "none"  # with a weight and a bias a channel
    activation: Literal["gelu", "relu", "tanh", "none"] = "gelu"

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "channels", "kernel", "stride", "groups", most=1_000_000)
        if not 0 <= self.pad < self.kernel:
            raise SpecError(f"must be from 0 to one less than the kernel's {self.kernel}, not {self.pad}", field="pad")
        if self.channels % self.groups:
            raise SpecError(f"{self.groups} groups do not divide {self.channels} channels", field="groups")

    def out(self, length: int) -> int:
        """Outputs of ``length`` inputs along one axis."""
        return max(0, (length + 2 * self.pad - self.kernel) // self.stride + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class SoundStem(Stem):
    """A sound of ``seconds`` as positions: convolutions over its frames, then perhaps a matrix.

    ``rate`` frames a second of ``channels`` values each: 100 log-mel frames of 80 bands, or 16,000 samples of one
    value. A request reads ``seconds`` of sound.
    """

    reads: ClassVar[Reads] = "sound"
    seconds: float
    rate: float
    channels: int
    convs: tuple[SoundConv, ...]
    axes: int = 1  # that convolutions go over: 1, frames; 2, frames and bands, so that channels begin with one
    matrix: bool = False  # from what the convolutions leave of a frame to the model's width, with a bias
    matrix_norm: bool = False  # a LayerNorm before it
    position_taps: int = 0  # of a grouped convolution whose result is added (wav2vec 2.0); 0 is none
    position_groups: int = 1
    position_rows: int = 0  # of a table that is added (Whisper's sinusoids)
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
            raise SpecError("a stem of sound needs a convolution", field="convs")
        if self.tokens < 1:
            raise SpecError(f"{self.seconds} s of sound leave no position", field="seconds")
        if self.position_rows and self.tokens > self.position_rows:
            longest = (
                f"{self.seconds * self.position_rows / self.tokens:.4g} s at once ({self.position_rows} positions)"
            )
            raise SpecError(f"the model reads at most {longest}, not {self.seconds:g} s", field="seconds")

    @property
    def frames(self) -> int:
        """Frames or samples of a request."""
        return round(self.seconds * self.rate)

    def areas(self) -> tuple[int, ...]:
        """Frames (with two axes, times bands) of the input and of what each convolution leaves."""
        return tuple(time * bands for time, bands in self._sizes())

    def _sizes(self) -> list[tuple[int, int]]:
        time, bands = self.frames, self.channels if self.axes == 2 else 1
        found = [(time, bands)]
        for conv in self.convs:
            time, bands = conv.out(time), conv.out(bands) if self.axes == 2 else 1
            found.append((time, bands))
        return found

    def conv_inputs(self) -> tuple[int, ...]:
        """Input channels of each convolution."""
        return (1 if self.axes == 2 else self.channels, *(conv.channels for conv in self.convs[:-1]))

    @property
    def values(self) -> int:
        """Values of a position before the matrix."""
        return self.convs[-1].channels * self._sizes()[-1][1]

    @property
    def tokens(self) -> int:
        """Positions of a request."""
        return self._sizes()[-1][0] + self.prefix_tokens

    @property
    def request_tokens(self) -> int:
        """Positions of a request."""
        return self.tokens

    @property
    def seconds_heard(self) -> float:
        """Seconds of sound in a request."""
        return self.seconds

    def hearing(self, seconds: float) -> SoundStem:
        """The stem for requests of ``seconds`` of sound."""
        return replace(self, seconds=float(seconds))

    @property
    def shape(self) -> tuple[int, ...]:
        """Bands and frames of a request."""
        return (self.channels, self.frames)

    def matrices(self, d_model: int) -> tuple[tuple[int, int], ...]:
        """Inputs and outputs of each matrix: of the convolutions without groups over frames, and of the last one."""
        dense = zip(self.convs, self.conv_inputs(), strict=True)
        found = [(conv.kernel**self.axes * into, conv.channels) for conv, into in dense if conv.groups == 1]
        return (*found, *(((self.values, d_model),) if self.matrix else ()))

    def parameters(self, d_model: int) -> int:
        """Convolutions with biases and norms, the matrix, what tells positions, and the mask's vector."""
        total = 0
        for conv, into in zip(self.convs, self.conv_inputs(), strict=True):
            norm = 0 if conv.norm == "none" else 2
            total += conv.channels * (conv.kernel**self.axes * (into // conv.groups) + conv.bias + norm)
        if self.matrix:
            total += (self.values + 1) * d_model
        if self.matrix_norm:
            total += 2 * self.values
        if self.position_taps:  # with a weight norm: a length for each tap
            total += d_model * (d_model // self.position_groups * self.position_taps + 1) + self.position_taps
        return total + (self.position_rows + self.mask_token) * d_model


@dataclass(frozen=True, slots=True, kw_only=True)
class Ctc(Head):
    """A matrix with a bias over ``count`` characters, at each position."""

    name: ClassVar[str] = "ctc"
    count: int

    def __post_init__(self) -> None:
        check_fields(self)
        check_classes(self.count, self.name)

    def output_rows(self, stem: Stem) -> int:
        """The characters."""
        return self.count

    def vector_parameters(self, trunk: Trunk, stem: Stem) -> int:
        """The bias."""
        return self.count

    def parameters(self, trunk: Trunk, stem: Stem) -> int:
        """The matrix and its bias."""
        return self.count * (trunk.d_model + 1)

    def record(self) -> Mapping[str, object]:
        """The number of characters."""
        return {"head": self.name, "classes": self.count}
