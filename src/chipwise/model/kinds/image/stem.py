"""The stem of image models, which cuts images into patches.

A signal in time is treated as an image with one axis: its pixels are frames, its channels frequency bands, and its
patches slices of time.

References:
    Patches and class token: Dosovitskiy et al. 2021, An Image is Worth 16x16 Words, arXiv:2010.11929.
    Convolutions before them: Xiao et al. 2021, Early Convolutions Help Transformers See Better, arXiv:2106.14881.
    Slices of a spectrogram: Berg et al. 2021, Keyword Transformer, arXiv:2104.00769; convolutions over its frames with
        stride 2: Radford et al. 2022 (Whisper), arXiv:2212.04356.
    Registers: Darcet et al. 2024, Vision Transformers Need Registers, arXiv:2309.16588.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from chipwise.core.fields import check_fields, later, not_negative, positive
from chipwise.errors import SpecError
from chipwise.model.arch.layer import Layer
from chipwise.model.arch.trunk import Reads, Stem
from chipwise.model.kinds.image.stages import Stage

CONV_EDGE, CONV_STRIDE = 3, 2  # kernel size and stride of the convolutions before the patches


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageStem(Stem):
    """Cuts square images into patches of ``patch`` by ``patch`` pixels, and multiplies each with one matrix.

    With one axis, it cuts signals of ``image_size`` frames into slices of ``patch`` frames.

    ``convs`` are the output channels of 3x3 convolutions with stride 2, each followed by a GELU, before the matrix. The
    matrix then takes patches of their output, ``patch / 2**len(convs)`` on each side.
    """

    reads: ClassVar[Reads] = "image"
    does: ClassVar[str] = "read images"
    calibration: ClassVar[str] = "images"
    image_size: int  # pixels on each side
    patch: int  # pixels of the image on each side of a patch
    channels: int = 3
    convs: tuple[int, ...] = ()
    bias: bool = True  # whether the matrix has a bias
    prefix_tokens: int = 1  # positions before the patches: the class token and registers
    mask_token: bool = later(False)  # a vector for hidden patches, which only training uses (DINOv2)
    axes: int = later(2)  # 2: images; 1: signals in time
    stages: tuple[Stage, ...] = later(())  # narrower layers on finer grids before the model's layers (Swin)
    stem_norm: bool = later(False)  # a LayerNorm of the patches before the stages

    def __post_init__(self) -> None:
        check_fields(self)
        positive(self, "image_size", "patch", "channels", most=1_000_000)
        if self.axes not in (1, 2):
            raise SpecError(f"must be 2 (an image) or 1 (a signal in time), not {self.axes}", field="axes")
        not_negative(self, "prefix_tokens")
        if any(channels < 1 for channels in self.convs):
            raise SpecError(f"channels must be at least 1, not {min(self.convs)}", field="convs")
        if self.patch > self.image_size:
            raise SpecError(f"must be at most the image size, {self.image_size}, not {self.patch}", field="patch")
        if self.patch % self.halved:
            raise SpecError(
                f"a patch of {self.patch} pixels cannot be halved by {len(self.convs)} convolutions; it must be a "
                f"multiple of {self.halved}",
                field="patch",
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an image: its channels, then its pixels along each axis."""
        return (self.channels, *([self.image_size] * self.axes))

    @property
    def taps(self) -> int:
        """Number of pixels in the kernel of a convolution."""
        return int(CONV_EDGE**self.axes)

    @property
    def areas(self) -> tuple[int, ...]:
        """Number of pixels in the image and in each convolution's output."""
        return tuple(side**self.axes for side in self.sides)

    @property
    def sides(self) -> tuple[int, ...]:
        """Number of pixels on each side of the image and of each convolution's output."""
        found = [self.image_size]
        for _ in self.convs:
            found.append(-(-found[-1] // CONV_STRIDE))
        return tuple(found)

    @property
    def halved(self) -> int:
        """Factor by which all convolutions together shrink each side of the image."""
        return math.prod(CONV_STRIDE for _ in self.convs)

    @property
    def edge(self) -> int:
        """Side of a patch in the output of the convolutions."""
        return self.patch // self.halved

    @property
    def values(self) -> int:
        """Number of values per patch, which the patch matrix takes as input."""
        return int(self.edge**self.axes) * (self.convs[-1] if self.convs else self.channels)

    @property
    def first_grid(self) -> int:
        """Number of patches on each side before the stages. Pixels that do not fill a patch are ignored."""
        return self.sides[-1] // self.edge

    @property
    def grid(self) -> int:
        """Number of positions on each side after the stages, each of which halves the number."""
        return int(self.first_grid // 2 ** len(self.stages))

    @property
    def patches(self) -> int:
        """Number of patches per image after all stages."""
        return int(self.grid**self.axes)

    @property
    def tokens(self) -> int:
        """Number of sequence positions per image: patches and prefix tokens."""
        return self.patches + self.prefix_tokens

    def own_layers(self) -> tuple[Layer, ...]:
        """One example layer for each stage; all layers of a stage are equal."""
        return tuple(Layer(attention=stage.attention, ffn=stage.ffn) for stage in self.stages)

    def own_biases(self, buckets: int) -> int:
        """Number of biases per head that an exported file stores in addition to the model's ``buckets`` biases.

        The file stores one bias for each pair of positions.
        """
        return self.tokens**2 - buckets

    @property
    def image_tokens(self) -> int:
        """Number of sequence positions per image: patches and prefix tokens."""
        return self.tokens

    @property
    def square_grid(self) -> int:
        """Number of patches on each side of the grid for windowed attention; 0 for signals or with prefix tokens."""
        return self.grid if self.axes == 2 and not self.prefix_tokens else 0

    def conv_shapes(self) -> tuple[tuple[int, int], ...]:
        """Input and output channels of each convolution."""
        return tuple(zip((self.channels, *self.convs), self.convs, strict=False))

    def matrices(self, d_model: int) -> tuple[tuple[int, int], ...]:
        """Input and output width of the patch matrix."""
        return ((self.values, d_model),)

    def parameters(self, d_model: int) -> int:
        """Number of parameters of convolutions, patch matrix, prefix tokens, and stages with their merges.

        Learned positions are counted separately, by ``ArchSpec``.
        """
        convs = sum((self.taps * into + 1) * out for into, out in self.conv_shapes())
        vectors = self.prefix_tokens + self.mask_token + self.bias
        widths = [*(stage.d_model for stage in self.stages), d_model]
        total = convs + (self.values + vectors + 2 * self.stem_norm) * widths[0]
        for stage, width in zip(self.stages, widths[1:], strict=True):
            each = stage.attention.parameters(stage.d_model) + stage.ffn.parameters(stage.d_model) + 4 * stage.d_model
            total += stage.depth * each + stage.merge_parameters(width)
        return total
