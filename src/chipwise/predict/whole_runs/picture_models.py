"""Published diffusion models: parameters and FLOPs of their transformers, UNets, autoencoders and text encoders.

A diffusion model has three kinds of parts: a transformer (or a UNet), which runs in each step; text encoders, which run
once; and an autoencoder, whose decoder turns latents into pixels once. The transformers here are of three kinds. In the
first, image and text attend to each other with separate matrices (MMDiT), in some or all layers. In the second,
attention within the image is followed by attention to the text. The third has linear attention with convolutions. UNets
have convolutions at several resolutions; at some resolutions, the image also attends to itself and to the text.

References:
    MMDiT: Esser et al. 2024, arXiv:2403.03206. PixArt: Chen et al. 2023, arXiv:2310.00426. SANA: Xie et al. 2024,
    arXiv:2410.10629. Wan: arXiv:2503.20314. DiT: Peebles and Xie 2023, arXiv:2212.09748. UNets: Rombach et al. 2022,
    arXiv:2112.10752; Podell et al. 2023 (SDXL), arXiv:2307.01952.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

FREQUENCIES = 256  # values of the sinusoidal time embedding


def linear(into: int, out: int, *, bias: bool = True) -> int:
    """Number of parameters of a matrix with a bias."""
    return (into + bias) * out


def told(width: int) -> int:
    """Number of parameters of a time step's embedding."""
    return linear(FREQUENCIES, width) + linear(width, width)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTransformer:
    """DiT: a transformer with attention within the image, conditioned on a class, which a table embeds."""

    width: int
    layers: int
    patch: int = 2
    channels: int = 4  # channels of the latents
    classes: int = 1000
    positions: int = 256  # rows of the position table, which is stored but not trained

    def met(self) -> tuple[int, int]:
        """Parameters of the matrices that an image position uses in a step, and of those that a text position uses."""
        return 12 * self.layers * self.width**2, 0

    def parameters(self) -> int:
        """Number of parameters; the head also predicts a variance."""
        d, values = self.width, self.patch**2 * self.channels
        layer = 4 * linear(d, d) + linear(d, 4 * d) + linear(4 * d, d) + linear(d, 6 * d)
        ends = linear(values, d) + told(d) + (self.classes + 1) * d + linear(d, 2 * d) + linear(d, 2 * values)
        return self.layers * layer + ends + self.positions * d


@dataclass(frozen=True, slots=True, kw_only=True)
class JointTransformer:
    """MMDiT: in ``layers`` layers, image and text have separate matrices and attend to each other.

    Flux also has ``single`` layers, in which attention and feed-forward run in parallel and image and text share the
    matrices. In Stable Diffusion 3.5 medium, ``dual`` layers have a second attention within the image. The last joint
    layer of Stable Diffusion does not update the text (``text_ends``).
    """

    width: int
    layers: int
    single: int = 0
    dual: int = 0
    values: int = 64  # values per patch of latents
    text_width: int = 4096
    pooled_width: int = 2048
    head_size: int = 64
    qk_norm: bool = True
    text_ends: bool = True
    guidance: bool = False  # whether the guidance scale is an input

    def met(self) -> tuple[int, int]:
        """As :meth:`ClassTransformer.met`, without the modulations, which are computed once per step."""
        both = 12 * (self.layers + self.single) * self.width**2
        return both + 4 * self.dual * self.width**2, both

    def parameters(self) -> int:
        """Number of parameters."""
        d, h = self.width, self.head_size
        attention, ffn = 4 * linear(d, d), linear(d, 4 * d) + linear(4 * d, d)
        norms = 2 * h if self.qk_norm else 0
        joint = 2 * (attention + norms + ffn + linear(d, 6 * d))
        dual = attention + norms + linear(d, 3 * d)
        single = 3 * linear(d, d) + norms + linear(d, 4 * d) + linear(5 * d, d) + linear(d, 3 * d)
        ends = linear(self.values, d) + linear(self.text_width, d) + told(d) * (2 if self.guidance else 1)
        ends += linear(self.pooled_width, d) + linear(d, d) + linear(d, 2 * d) + linear(d, self.values)
        spared = linear(d, d) + ffn + linear(d, 4 * d) if self.text_ends else 0
        return self.layers * joint + self.dual * dual + self.single * single + ends - spared


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossTransformer:
    """A transformer with attention within the image and then to the text.

    All layers share one modulation, to which each layer adds an offset.
    """

    width: int
    layers: int
    ffn_width: int
    values: int = 16  # values per patch of latents
    outputs: int = 32  # values per patch that the head outputs
    text_width: int = 4096
    qk_norm: bool = False
    cross_norm: bool = False  # whether a norm with weights precedes cross-attention

    def met(self) -> tuple[int, int]:
        """As :meth:`ClassTransformer.met`."""
        each = 6 * self.width**2 + 2 * self.width * self.ffn_width
        return self.layers * each, 2 * self.layers * self.width**2

    def parameters(self) -> int:
        """Number of parameters."""
        d = self.width
        layer = 8 * linear(d, d) + linear(d, self.ffn_width) + linear(self.ffn_width, d) + 6 * d
        layer += (4 * d if self.qk_norm else 0) + (2 * d if self.cross_norm else 0)
        ends = linear(self.values, d) + told(d) + linear(d, 6 * d) + linear(self.text_width, d) + linear(d, d)
        return self.layers * layer + ends + 2 * d + linear(d, self.outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearTransformer:
    """SANA: linear attention within the image, attention to the text, and gated feed-forwards with a convolution."""

    width: int
    layers: int
    values: int = 32
    text_width: int = 2304
    ratio: float = 2.5  # width of a feed-forward relative to the model's
    qk_norm: bool = True

    def met(self) -> tuple[int, int]:
        """As :meth:`ClassTransformer.met`, including the parameters of the convolution."""
        inner = round(self.ratio * self.width)
        each = 6 * self.width**2 + 3 * self.width * inner + 18 * inner
        return self.layers * each, 2 * self.layers * self.width**2

    def parameters(self) -> int:
        """Number of parameters."""
        d, inner = self.width, round(self.ratio * self.width)
        attention = 3 * linear(d, d, bias=False) + linear(d, d) + (2 * d if self.qk_norm else 0)
        cross = 4 * linear(d, d) + (2 * d if self.qk_norm else 0)
        ffn = linear(d, 2 * inner) + 9 * 2 * inner + 2 * inner + linear(inner, d, bias=False)
        ends = linear(self.values, d) + told(d) + linear(d, 6 * d) + linear(self.text_width, d) + linear(d, d)
        ends += d + 2 * d + linear(d, self.values)  # the text's norm, the last offsets, the head
        return self.layers * (attention + cross + ffn + 6 * d) + ends


@dataclass(frozen=True, slots=True, kw_only=True)
class UNet:
    """Stable Diffusion's UNet: residual blocks downsample the latents and upsample them again, with skip connections.

    Residual blocks also take the time step as an input. Each block is followed by ``depths`` layers with
    self-attention, cross-attention to the text and a gated feed-forward. The lowest resolution has ``middle`` such
    layers.
    """

    widths: tuple[int, ...] = (320, 640, 1280, 1280)  # width by resolution, the finest first
    depths: tuple[int, ...] = (1, 1, 1, 0)
    middle: int = 1
    blocks: int = 2  # per resolution on the way down; one more on the way up
    text_width: int = 768
    latents: int = 4
    added: int = 0  # further conditioning values (SDXL: sizes, crops and the pooled text)

    @property
    def layers(self) -> int:
        """Number of layers with attention."""
        return sum((2 * self.blocks + 1) * depth for depth in self.depths) + self.middle

    def carried(self) -> tuple[int, float]:
        """Number of layers, and the mean of their widths.

        Three residual blocks count as one layer. Each width is multiplied by the layer's number of positions, divided
        by the number of latents.
        """
        blocks = [(out / 3, 1 / 3, halved) for _, out, halved in self._residuals()]
        blocks += [(width * depth, float(depth), halved) for width, depth, halved in self._attentions()]
        layers = round(sum(count for _, count, _ in blocks))
        return layers, sum(width / 4.0**halved for width, _, halved in blocks) / layers

    def met(self) -> tuple[float, float]:
        """As :meth:`ClassTransformer.met`, where each latent is a position."""
        parts = list(self._parts())
        return sum(cells / 4.0**halved for cells, _, halved in parts), float(sum(text for _, text, _ in parts))

    def seen(self) -> Iterator[tuple[int, int]]:
        """For each resolution: width times number of attention layers, and how often the resolution was halved."""
        for halved, (width, depth) in enumerate(zip(self.widths, self.depths, strict=True)):
            if depth:
                yield (2 * self.blocks + 1) * depth * width, halved
        if self.middle:
            yield self.middle * self.widths[-1], len(self.widths) - 1

    def parameters(self) -> int:
        """Number of parameters."""
        first, time = self.widths[0], 4 * self.widths[0]
        ends = linear(first, time) + linear(time, time) + 2 * first
        if self.added:
            ends += linear(self.added, time) + linear(time, time)
        norms = biases = told_times = 0
        for into, out, _ in self._residuals():
            norms += 2 * into + 2 * out
            told_times += linear(time, out)
        for width, depth, _ in self._attentions():
            norms += 2 * width + 6 * width * depth
            biases += 2 * width + depth * (3 * width + 8 * width)
        matrices = sum(cells + text for cells, text, _ in self._parts())
        return matrices + ends + norms + biases + told_times

    def _residuals(self) -> Iterator[tuple[int, int, int]]:
        """Widths before and after each residual block, and how often its resolution is halved."""
        into, skips = self.widths[0], [self.widths[0]]
        for halved, width in enumerate(self.widths):
            for _ in range(self.blocks):
                yield into, width, halved
                into = width
                skips.append(width)
            if halved < len(self.widths) - 1:
                skips.append(width)
        for _ in range(2):
            yield into, into, len(self.widths) - 1
        for halved, width in reversed(list(enumerate(self.widths))):
            for _ in range(self.blocks + 1):
                yield into + skips.pop(), width, halved
                into = width

    def _attentions(self) -> Iterator[tuple[int, int, int]]:
        """For each stack of layers with attention: width, number of layers, and how often its resolution is halved."""
        for halved, (width, depth) in enumerate(zip(self.widths, self.depths, strict=True)):
            for _ in range(2 * self.blocks + 1 if depth else 0):
                yield width, depth, halved
        if self.middle:
            yield self.widths[-1], self.middle, len(self.widths) - 1

    def _parts(self) -> Iterator[tuple[int, int, int]]:
        """Parameters of matrices and convolutions that image positions use, and of those that text positions use."""
        deepest = len(self.widths) - 1
        yield _conv(self.latents, self.widths[0]) + _conv(self.widths[0], self.latents), 0, 0
        for into, out, halved in self._residuals():
            yield _conv(into, out) + _conv(out, out) + (_conv(into, out, 1) if into != out else 0), 0, halved
        for halved, width in enumerate(self.widths):
            if halved < deepest:  # downsampling, and upsampling on the way back
                yield _conv(width, width), 0, halved + 1
                yield _conv(self.widths[halved + 1], self.widths[halved + 1]), 0, halved
        for d, depth, halved in self._attentions():
            yield 2 * d * d + depth * (6 * d * d + 12 * d * d), depth * 2 * self.text_width * d, halved


PictureTransformer = ClassTransformer | JointTransformer | CrossTransformer | LinearTransformer | UNet


@dataclass(frozen=True, slots=True, kw_only=True)
class Autoencoder:
    """Stable Diffusion's autoencoder: residual convolution blocks with three downsamplings and one attention layer.

    References:
        Rombach et al. 2022, arXiv:2112.10752, appendix E.
    """

    latents: int
    widths: tuple[int, ...] = (128, 256, 512, 512)
    mixed: bool = True  # whether a 1x1 convolution is on each side of the latents

    def parameters(self) -> int:
        """Number of parameters of encoder and decoder together."""
        mixed = linear(2 * self.latents, 2 * self.latents) + linear(self.latents, self.latents) if self.mixed else 0
        return self._encoder() + self.decoder_parameters() + mixed

    def _encoder(self) -> int:
        first, last = self.widths[0], self.widths[-1]
        total = _conv(3, first) + _middle(last) + 2 * last + _conv(last, 2 * self.latents)
        for i, (into, out) in enumerate(pairwise((first, *self.widths))):
            total += _residual(into, out) + _residual(out, out)
            total += _conv(out, out) if i < len(self.widths) - 1 else 0
        return total

    def decoder_parameters(self) -> int:
        """Number of parameters of the decoder, without the convolution of the latents."""
        turned = self.widths[::-1]
        total = _conv(self.latents, turned[0]) + _middle(turned[0]) + 2 * turned[-1] + _conv(turned[-1], 3)
        for i, (into, out) in enumerate(pairwise((turned[0], *turned))):
            total += _residual(into, out) + 2 * _residual(out, out)
            total += _conv(out, out) if i < len(turned) - 1 else 0
        return total


def _conv(into: int, out: int, taps: int = 9) -> int:
    return (into * taps + 1) * out


def _residual(into: int, out: int) -> int:
    """Parameters of a residual block: two norms, two convolutions, and a 1x1 convolution if its widths differ."""
    beside = _conv(into, out, 1) if into != out else 0
    return 2 * into + _conv(into, out) + 2 * out + _conv(out, out) + beside


def _middle(width: int) -> int:
    return 2 * _residual(width, width) + 2 * width + 4 * linear(width, width)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEncoder:
    """A text encoder: that of CLIP (with ``clip``), or that of T5 (with gated feed-forwards and without biases)."""

    name: str
    vocab_size: int
    width: int
    layers: int
    ffn_width: int
    heads: int = 64
    clip: bool = False
    projection: bool = False  # CLIP's projection into the space shared with images
    every_layer_biased: bool = False  # umT5 has relative positions in each layer, T5 in the first

    def parameters(self) -> int:
        """Number of parameters."""
        d = self.width
        if self.clip:
            layer = 4 * linear(d, d) + linear(d, self.ffn_width) + linear(self.ffn_width, d) + 4 * d
            ends = (self.vocab_size + 77) * d + 2 * d + (d * d if self.projection else 0)
            return self.layers * layer + ends
        layer = 4 * d * d + 3 * d * self.ffn_width + 2 * d
        biases = 32 * self.heads * (self.layers if self.every_layer_biased else 1)
        return self.layers * layer + self.vocab_size * d + d + biases


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """A part of a model of which only the number of parameters is known."""

    name: str
    count: int

    def parameters(self) -> int:
        """Number of parameters."""
        return self.count


@dataclass(frozen=True, slots=True, kw_only=True)
class PictureModel:
    """A published diffusion model with all its parts."""

    transformer: PictureTransformer
    autoencoder: Autoencoder | Counted
    text: tuple[TextEncoder | Counted, ...] = ()

    def parts(self) -> dict[str, int]:
        """Number of parameters of each part, by name."""
        names = {encoder.name: encoder.parameters() for encoder in self.text}
        denoiser = "UNet" if isinstance(self.transformer, UNet) else "transformer"
        return {denoiser: self.transformer.parameters(), "autoencoder": self.autoencoder.parameters(), **names}


CLIP_L = TextEncoder(name="CLIP-L", vocab_size=49_408, width=768, layers=12, ffn_width=3072, clip=True)
CLIP_L_PROJECTED = TextEncoder(
    name="CLIP-L", vocab_size=49_408, width=768, layers=12, ffn_width=3072, clip=True, projection=True
)
CLIP_G = TextEncoder(
    name="OpenCLIP-bigG", vocab_size=49_408, width=1280, layers=32, ffn_width=5120, clip=True, projection=True
)
CLIP_H = TextEncoder(name="OpenCLIP-H", vocab_size=49_408, width=1024, layers=23, ffn_width=4096, clip=True)
SDXL = UNet(widths=(320, 640, 1280), depths=(0, 2, 10), middle=10, text_width=2048, added=2816)
T5_XXL = TextEncoder(name="T5-XXL", vocab_size=32_128, width=4096, layers=24, ffn_width=10_240)
UMT5_XXL = TextEncoder(
    name="umT5-XXL", vocab_size=256_384, width=4096, layers=24, ffn_width=10_240, every_layer_biased=True
)
GEMMA_2 = Counted(name="Gemma-2-2B", count=2_614_341_888)
LATENT_16 = Autoencoder(latents=16, mixed=False)
STABLE_3 = (CLIP_L_PROJECTED, CLIP_G, T5_XXL)
WAN_AUTOENCODER = Counted(name="Wan-VAE", count=126_892_531)
DC_AUTOENCODER = Counted(name="DC-AE f32c32", count=312_250_275)


def _latent_4(transformer: PictureTransformer, *text: TextEncoder | Counted) -> PictureModel:
    return PictureModel(transformer=transformer, autoencoder=Autoencoder(latents=4), text=text)


def _stable_3(transformer: JointTransformer) -> PictureModel:
    return PictureModel(transformer=transformer, autoencoder=LATENT_16, text=STABLE_3)


def _flux(*, guidance: bool) -> PictureModel:
    transformer = JointTransformer(
        width=3072, layers=19, single=38, head_size=128, pooled_width=768, text_ends=False, guidance=guidance
    )
    return PictureModel(transformer=transformer, autoencoder=LATENT_16, text=(CLIP_L, T5_XXL))


def _sana(*, layers: int) -> PictureModel:
    transformer = LinearTransformer(width=2240, layers=layers)
    return PictureModel(transformer=transformer, autoencoder=DC_AUTOENCODER, text=(GEMMA_2,))


def _wan(*, width: int, layers: int, ffn_width: int) -> PictureModel:
    transformer = CrossTransformer(
        width=width, layers=layers, ffn_width=ffn_width, values=64, outputs=64, qk_norm=True, cross_norm=True
    )
    return PictureModel(transformer=transformer, autoencoder=WAN_AUTOENCODER, text=(UMT5_XXL,))


PICTURE_MODELS: Mapping[str, PictureModel] = {
    "dit-s-2": _latent_4(ClassTransformer(width=384, layers=12)),
    "dit-b-2": _latent_4(ClassTransformer(width=768, layers=12)),
    "dit-l-2": _latent_4(ClassTransformer(width=1024, layers=24)),
    "dit-xl-2": _latent_4(ClassTransformer(width=1152, layers=28)),
    "stable-diffusion-3-medium": _stable_3(JointTransformer(width=1536, layers=24, qk_norm=False)),
    "stable-diffusion-3.5-medium": _stable_3(JointTransformer(width=1536, layers=24, dual=13)),
    "stable-diffusion-3.5-large": _stable_3(JointTransformer(width=2432, layers=38)),
    "stable-diffusion-3.5-large-turbo": _stable_3(JointTransformer(width=2432, layers=38)),
    "flux.1": _flux(guidance=True),
    "flux.1-schnell": _flux(guidance=False),
    "stable-diffusion-v1": _latent_4(UNet(), CLIP_L),
    "stable-diffusion-2": _latent_4(UNet(text_width=1024), CLIP_H),
    "stable-diffusion-xl": _latent_4(SDXL, CLIP_L, CLIP_G),
    "sdxl-turbo": _latent_4(SDXL, CLIP_L, CLIP_G),
    "pixart-sigma": _latent_4(CrossTransformer(width=1152, layers=28, ffn_width=4608), T5_XXL),
    "sana1.5_1.6b": _sana(layers=20),
    "sana1.5_4.8b": _sana(layers=60),
    "wan2.1-t2v-1.3b": _wan(width=1536, layers=30, ffn_width=8960),
    "wan2.1-t2v-14b": _wan(width=5120, layers=40, ffn_width=13_824),
}
"""The published models, by their names in ``diffusion.KNOWN``."""
