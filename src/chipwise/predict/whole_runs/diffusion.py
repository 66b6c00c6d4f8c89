"""Diffusion transformers and UNets for images and videos: the work of one image, and its time on GPUs.

An image is generated in steps. Each step runs the transformer over all positions of the latents and of the prompt; with
classifier-free guidance, it runs twice. The time is a sum of matrix products, attention, a cost per kernel and a cost
per pixel (decoding the latents), at rates that were fitted to published runs (``predict/whole_runs/sums.py``).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from chipwise.core.typed import left_of, words_of
from chipwise.errors import Unsupported
from chipwise.hardware.datasheet import DeviceProfile
from chipwise.predict.whole_runs import vision
from chipwise.predict.whole_runs.picture_models import PICTURE_MODELS, JointTransformer, UNet
from chipwise.predict.whole_runs.sums import Amount, Law, Terms, named, value_of

KERNELS_A_LAYER = 30.0
BYTES = 2.0  # bytes of a 16-bit weight


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionTransformer:
    """Properties of a diffusion model that determine its time.

    ``pixels`` is the width of a latent position in pixels. ``frames`` is the number of video frames that a position
    spans, except that the first frame has its own positions. ``linear`` means that the cost of attention grows linearly
    with the number of positions, not with its square.
    """

    parameters: float
    layers: int
    width: int
    text_tokens: int = 256
    pixels: int = 16
    frames: int = 4
    frame_patch: int = 1
    passes: int = 2  # passes per step: with and without the prompt
    linear: bool = False
    cross: bool = False  # cross-attention to the text instead of joint attention
    dual: int = 0  # number of layers with a second attention within the image
    met: tuple[float, float] | None = None  # parameters used per image position, and per text position
    seen: tuple[tuple[int, int], ...] = ()  # for a UNet: (width times attention layers, number of halvings)

    def tokens(self, height: int, width: int, frames: int = 1) -> float:
        """Number of latent positions of an image or video."""
        whole = math.ceil(((frames - 1) / self.frames + 1) / self.frame_patch)
        return (height // self.pixels) * (width // self.pixels) * whole

    def product_flops(self, tokens: float, steps: int) -> float:
        """FLOPs of the matrix products with weights in all steps."""
        image, text = (self.parameters, self.parameters) if self.met is None else self.met
        return 2.0 * (image * tokens + text * self.text_tokens) * steps * self.passes

    def attention_flops(self, tokens: float, steps: int) -> float:
        """FLOPs of attention's scores and values in all steps."""
        if self.seen:
            each = ((width, tokens / 4.0**halved) for width, halved in self.seen)
            return 4.0 * sum(width * n * (n + self.text_tokens) for width, n in each) * steps * self.passes
        if self.cross:
            seen = tokens * (self.text_tokens + (0.0 if self.linear else tokens))
        else:
            seen = 0.0 if self.linear else (tokens + self.text_tokens) ** 2
        return 4.0 * self.width * (self.layers * seen + self.dual * tokens**2) * steps * self.passes


def _known(name: str) -> DiffusionTransformer:
    """Builds the entry of ``KNOWN`` for a model in ``picture_models``."""
    transformer = PICTURE_MODELS[name].transformer
    parameters, met = transformer.parameters(), transformer.met()
    if isinstance(transformer, UNet):
        (layers, width), seen = transformer.carried(), tuple(transformer.seen())
        return DiffusionTransformer(
            parameters=parameters, layers=layers, width=round(width), text_tokens=77, pixels=8, met=met, seen=seen
        )
    layers, dual = transformer.layers, 0
    if isinstance(transformer, JointTransformer):
        layers, dual = layers + transformer.single, transformer.dual
    return DiffusionTransformer(parameters=parameters, layers=layers, width=transformer.width, dual=dual, met=met)


def _joined(layers: int, width: int) -> tuple[float, float]:
    """Parameters that an image token uses and parameters that a text token uses, if they use the same matrices."""
    return 12.0 * layers * width**2, 12.0 * layers * width**2


# Sizes as the models' papers and configs give them: SANA 1.5 (arXiv:2501.18427), PixArt-Sigma (2403.04692), Stable
# Diffusion 3 (2403.03206) and 3.5's model cards, FLUX.1's card, HunyuanDiT (2405.08748), Wan 2.1 (2503.20314),
# CogVideoX (2408.06072) and 1.5's card, HunyuanVideo (2412.03603), LTX-Video (2501.00103), Mochi 1's card.
KNOWN: Mapping[str, DiffusionTransformer] = {
    "dit-s-2": replace(_known("dit-s-2"), text_tokens=0),
    "dit-b-2": replace(_known("dit-b-2"), text_tokens=0),
    "dit-l-2": replace(_known("dit-l-2"), text_tokens=0),
    "dit-xl-2": replace(_known("dit-xl-2"), text_tokens=0),
    "stable-diffusion-v1": _known("stable-diffusion-v1"),
    "stable-diffusion-2": _known("stable-diffusion-2"),
    "stable-diffusion-xl": _known("stable-diffusion-xl"),
    "sdxl-turbo": replace(_known("sdxl-turbo"), passes=1),
    "sana1.5_1.6b": replace(_known("sana1.5_1.6b"), text_tokens=300, pixels=32, linear=True, cross=True),
    "sana1.5_4.8b": replace(_known("sana1.5_4.8b"), text_tokens=300, pixels=32, linear=True, cross=True),
    "pixart-sigma": replace(_known("pixart-sigma"), text_tokens=300, cross=True),
    "stable-diffusion-3.5-large-turbo": replace(_known("stable-diffusion-3.5-large-turbo"), text_tokens=333, passes=1),
    "stable-diffusion-3.5-large": replace(_known("stable-diffusion-3.5-large"), text_tokens=333),
    "stable-diffusion-3.5-medium": replace(_known("stable-diffusion-3.5-medium"), text_tokens=333),
    "stable-diffusion-3-medium": replace(_known("stable-diffusion-3-medium"), text_tokens=333),
    "flux.1-schnell": replace(_known("flux.1-schnell"), passes=1),
    "flux.1": replace(_known("flux.1"), text_tokens=512, passes=1),
    "hunyuandit": DiffusionTransformer(parameters=1.5e9, layers=40, width=1408),
    "hunyuanvideo": DiffusionTransformer(parameters=13e9, layers=60, width=3072, passes=1),
    "wan2.1-t2v-1.3b": replace(_known("wan2.1-t2v-1.3b"), text_tokens=512, cross=True),
    "wan2.1-t2v-14b": replace(_known("wan2.1-t2v-14b"), text_tokens=512, cross=True),
    "cogvideox-2b": DiffusionTransformer(
        parameters=1.7e9, layers=30, width=1920, text_tokens=226, met=_joined(30, 1920)
    ),
    "cogvideox-5b": DiffusionTransformer(
        parameters=5.6e9, layers=42, width=3072, text_tokens=226, met=_joined(42, 3072)
    ),
    "cogvideox1.5-5b": DiffusionTransformer(
        parameters=5.6e9, layers=42, width=3072, text_tokens=224, frame_patch=2, met=_joined(42, 3072)
    ),
    "ltx-video": DiffusionTransformer(parameters=1.9e9, layers=28, width=2048, pixels=32, frames=8),
    "mochi-1": DiffusionTransformer(parameters=10e9, layers=48, width=3072, frames=6),
}


SAME = frozenset({  # words in names that do not change the architecture
    "base", "bf16", "dev", "diffusers", "fill", "fp8", "fp16", "gguf", "kontext", "krea", "ms", "preview", "px", "xl",
})  # fmt: skip
SHORT_NAMES = {"sdxl": "stable-diffusion-xl", "flux": "flux.1", "flux-dev": "flux.1", "flux-schnell": "flux.1-schnell"}


def known_name(name: str) -> str | None:
    """The longest name of ``KNOWN`` that ``name`` contains, such as ``flux.1`` in ``black-forest-labs/FLUX.1-dev``.

    None if there is no such name, or if ``name`` also contains a word for a different model, such as a size, ``lite``
    or ``refiner``.
    """
    low = re.sub(r"[/\s]", "-", name.lower())  # DiT-XL/2
    if low in SHORT_NAMES:
        return SHORT_NAMES[low]
    found = max((known for known in KNOWN if known in low), key=len, default=None)
    if found is None:
        return None
    rest = left_of(words_of(low), (*words_of(found), *words_of(name.rpartition("/")[0])))
    return found if all(word in SAME or re.fullmatch(r"v?\d(\.\d)?|\d{3,4}", word) for word in rest) else None


def base_name(model: str) -> str:
    """A model's name without suffixes for fine-tuning or storage formats, which do not change the architecture."""
    low = model.rpartition("/")[2].lower()
    return re.sub(
        r"-(instruct|thinking|it|fp8|bf16|vl|omni|coder|2507|0528|diffusers|r1|v3\.1|chat|v2)(?=-|$)", "", low
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A request for ``batch`` images or videos of one size, generated in ``steps`` steps on ``devices`` GPUs."""

    model: DiffusionTransformer
    device: DeviceProfile
    height: int
    width: int
    frames: int = 1
    steps: int = 28
    batch: int = 1
    devices: int = 1
    ring: int = 1  # devices in a ring for keys and values; the others exchange heads

    @property
    def levels(self) -> tuple[str, ...]:
        """Properties that other runs may share, such as the device; fitted rates have a deviation for each property."""
        gpu, sort = self.device.name, "video" if self.frames > 1 else "image"
        return gpu, sort, f"{gpu}|{sort}", f"n{self.devices}", f"{gpu}|n{self.devices}", f"{sort}|n{self.devices}"

    @property
    def product_s(self) -> float:
        """Seconds of one device's share of the matrix products, at its peak rate."""
        tokens = self.model.tokens(self.height, self.width, self.frames)
        return self.batch * self.model.product_flops(tokens, self.steps) / self.devices / _peak(self.device)

    @property
    def attention_s(self) -> float:
        """Seconds of one device's share of attention, at its peak rate."""
        tokens = self.model.tokens(self.height, self.width, self.frames)
        return self.batch * self.model.attention_flops(tokens, self.steps) / self.devices / _peak(self.device)


def _peak(device: DeviceProfile) -> float:
    """Dense rate of 16-bit matrix products.

    Raises:
        Unsupported: The sheet lists no rate for 16-bit matrix products.
    """
    if rate := device.rate("bf16", "fp16"):
        return rate
    raise Unsupported(f"{device.name} lists no rate for 16-bit products, which diffusion models need")


def rated_by_images(device: DeviceProfile) -> bool:
    """Whether matrix products use rates that were fitted to image models, not to diffusion models.

    This is so on NVIDIA cards without HBM, on which diffusion models were not timed.
    """
    return device.vendor == "NVIDIA" and not device.level("dram").technology.startswith("HBM")


def _products(picture: Picture) -> Amount:
    """The amount of work for matrix products, whose rate depends on the kind of GPU.

    GPUs with HBM use rates fitted to diffusion runs. NVIDIA's cards with GDDR have no such runs, so they use rates of
    image models in eager PyTorch, which are near the peak that the board's power allows. In diffusers, an H100 and a
    B200 reach only 20 to 25 % of their peaks, because other kernels dominate. A card with 1/6 of an H100's peak but 1/3
    of its bandwidth is expected to reach a larger share.
    """
    device, model = picture.device, picture.model
    if not rated_by_images(device):
        return Amount(picture.product_s, 0, named("products", picture.levels))
    setup = vision.Setup(device=device, runtime="pytorch eager", dtype="bf16")
    tokens = model.tokens(picture.height, picture.width, picture.frames)
    flops = picture.batch * model.product_flops(tokens, picture.steps) / picture.devices
    rated = Amount(flops / setup.peak_flops_per_s, 0, named("products", setup.levels))
    seconds = float(value_of([rated], vision.constants().terms()))
    return Amount(seconds, 0, (("products", 0.0),))  # the term only names the summand


def picture_law(picture: Picture) -> Law:
    """The amounts of work of a batch; ``whole_runs/sums.py`` predicts the seconds of the batch from them."""
    model, levels = picture.model, picture.levels
    launches = picture.steps * model.layers * KERNELS_A_LAYER
    pixels = picture.batch * picture.height * picture.width * picture.frames / 1e9
    tokens = picture.batch * model.tokens(picture.height, picture.width, picture.frames)
    bytes_moved = tokens * model.width * model.layers * picture.steps * model.passes * BYTES
    moved_s = bytes_moved / picture.devices / picture.device.mem_bandwidth_bytes_per_s
    law = [
        _products(picture),
        Amount(picture.attention_s, 1, named("attention", levels)),
        Amount(launches, 0, named("launches", levels)),
        Amount(moved_s, 2, named("activations", levels)),
        Amount(pixels, 3, named("pixels", levels)),
        Amount(1.0, 4, named("batch", levels)),
    ]
    if picture.devices > 1:
        exchanged: Terms = named("exchange", (*levels, "ring" if picture.ring > 1 else "heads"))
        law.append(Amount(moved_s, 5, exchanged))
        law.append(Amount(float(picture.steps * model.layers), 6, named("exchanges", levels)))
    return tuple(law)
